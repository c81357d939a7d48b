"""Activation functions by name. Those in place overwrite the output of the layer before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_FEW, _FEW_WITH_GRADIENT = 2_048, 32_768
"""Numbers up to which torch is as quick, without and with a gradient to come. Outside of inference the second
counts for both, so that a loss is the same number with and without its gradient."""


def tanh(x: Tensor) -> Tensor:
    """`torch.tanh` to the last bit or two; many numbers on a CPU take a seventh of the time with NumPy."""
    # Whoever records the operations on a tensor would not see what NumPy does to it.
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return torch.tanh(x)
    few = x.numel() < (_FEW if torch.is_inference_mode_enabled() else _FEW_WITH_GRADIENT)
    if few or x.dtype is not torch.float32 or x.device.type != "cpu" or not x.is_contiguous():
        return torch.tanh(x)
    if torch.is_inference_mode_enabled():  # in place: what it is given is the output of a layer
        numbers = x.numpy()
        np.tanh(numbers, out=numbers)
        return x
    learns = x.requires_grad and torch.is_grad_enabled()
    result: Tensor = _Tanh.apply(x) if learns else _by_numpy(x)  # type: ignore[no-untyped-call]
    return result


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _by_numpy(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward(gradients[0], *ctx.saved_tensors)  # type: ignore[no-any-return]


def _by_numpy(x: Tensor) -> Tensor:
    y = torch.empty_like(x)  # torch's memory is aligned, and what is multiplied next rounds accordingly
    np.tanh(x.detach().numpy(), out=y.numpy())
    return y


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh,
    "relu": torch.relu_,  # in place: what it is given is the output of a layer
    "elu": F.elu,
    "silu": F.silu,
    "gelu": F.gelu,
}
