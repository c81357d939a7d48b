"""What a module of a small network costs besides its arithmetic, kept low in one place."""

from __future__ import annotations

from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn


class Part(nn.Module):
    """A module that finds its submodules as plain attributes.

    torch looks for them only when everything else has failed, which at small batches takes as long as an
    operation does. Parameters and buffers are left to torch, which exchanges them: `.to` and exports do.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Module):
            self.__dict__[name] = value


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """The output of an `nn.Linear`, without the search for its parameters."""
    parameters = layer._parameters
    weight = parameters["weight"]
    assert weight is not None
    return F.linear(x, weight, parameters["bias"])


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that a module has registered as buffers, without the search for each of them."""
    return cast("dict[str, Tensor]", module._buffers)
