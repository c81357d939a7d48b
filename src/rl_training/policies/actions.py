"""From a policy's own actions to those of the env. Bounds come from the Spec, so they are not saved again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_training.policies.modules import buffers_of

if TYPE_CHECKING:
    from rl_training.types import Array


class SameActions(nn.Module):
    """The env takes the policy's actions as they are."""

    def forward(self, actions: Tensor) -> Tensor:
        return actions


class OffsetActions(nn.Module):
    """Choices counted from 0 become choices counted from the space's start."""

    start: Tensor

    def __init__(self, start: Array) -> None:
        super().__init__()
        self.register_buffer("start", torch.as_tensor(start), persistent=False)

    def forward(self, actions: Tensor) -> Tensor:
        return actions + self.start


class BinaryActions(nn.Module):
    """Float bits become the small integers of a MultiBinary space."""

    def forward(self, actions: Tensor) -> Tensor:
        return actions.to(torch.int8)


class BoundedActions(nn.Module):
    """Actions clipped to the bounds or, if they come in [-1, 1], rescaled to them."""

    low: Tensor
    high: Tensor
    reach: Tensor

    def __init__(self, low: Array, high: Array, rescale: bool = False) -> None:
        super().__init__()
        self.rescale = rescale
        self.register_buffer("low", torch.as_tensor(low, dtype=torch.float32), persistent=False)
        self.register_buffer("high", torch.as_tensor(high, dtype=torch.float32), persistent=False)
        self.register_buffer("reach", 0.5 * (self.high - self.low), persistent=False)

    def forward(self, actions: Tensor) -> Tensor:
        buffers = buffers_of(self)
        low, high = buffers["low"], buffers["high"]
        if self.rescale:
            actions = low + (actions + 1.0) * buffers["reach"]
        return torch.clamp(actions, low, high)
