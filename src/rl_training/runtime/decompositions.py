"""Operations that torch's compiler does not know, or does slowly, in terms of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.runtime.products import pays, product

Tensors = Sequence[Tensor]


_NOTHING, _NOTHING_SQUARED = 2.0**-100, 2.0**-120
"""Moments below these move no weight. Those of a unit that has died would go on to shrink to numbers that a
processor has no exponent for, and stay there, where many processors compute far slower."""


def _adam(
    params: Tensors,
    grads: Tensors,
    means: Tensors,
    squares: Tensors,
    _largest: Tensors,
    steps: Tensors,
    *,
    lr: Tensor | float,
    beta1: float,
    beta2: float,
    eps: float,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    **_: Any,
) -> None:
    """What torch's fused Adam does, in operations that a compiler can fuse with those around them."""
    # 1 - β^t loses half its digits in float32 at the first steps. Written as exponentials, which Inductor
    # computes once: powers it would compute again for every few weights.
    count = steps[0].double()
    rate = (lr / (1.0 - torch.exp(count * _log(beta1)))).float()
    root = (1.0 - torch.exp(count * _log(beta2))).sqrt().float()
    keep = None if found_inf is None else found_inf == 0
    for param, grad, mean, square in zip(params, grads, means, squares, strict=True):
        scaled = grad if grad_scale is None else grad / grad_scale
        new_mean = mean + (scaled - mean) * (1.0 - beta1)
        new_square = square * beta2 + scaled * scaled * (1.0 - beta2)
        new_mean = torch.where(new_mean.abs() < _NOTHING, 0.0, new_mean)
        new_square = torch.where(new_square < _NOTHING_SQUARED, 0.0, new_square)
        new_param = param - rate * new_mean / (new_square.sqrt() / root + eps)
        for old, new in ((mean, new_mean), (square, new_square), (param, new_param)):
            old.copy_(new if keep is None else torch.where(keep, new, old))


def _log(number: float) -> float:
    return math.log(number) if number else -math.inf


def _product(left: Tensor, right: Tensor) -> Any:
    """A product, or a stack of them, by the quicker library."""
    return product(left, right) if pays(left, right) else NotImplemented


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """The same and then the bias, which a compiler adds in whatever comes next."""
    if left.device.type != "cpu":
        return NotImplemented
    found = product(left, right) if pays(left, right) else torch.mm(left, right)
    return found * alpha - bias * -beta  # a sum torch's compiler would turn back into `addmm`


def _baddbmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Products, then the bias."""
    return torch.bmm(left, right) * alpha + bias * beta


def _foreach_norm(tensors: Tensors, order: float = 2, dtype: torch.dtype | None = None) -> Any:
    """One by one, each where its numbers come from: on a CPU nothing is gained by having them together."""
    if tensors[0].device.type != "cpu":
        return NotImplemented
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]


_SATURATED = 9.0
"""From here on, tanh is 1 in float32."""
_ABOVE = (1.3354657832676615e-08, 2.060907896252592e-05, 3.4955878789247937e-03, 0.13381025408596187, 1.0)
_BELOW = (7.776556612088227e-07, 3.285634446912623e-04, 2.587698119150935e-02, 0.46714340999855375, 1.0)
"""Coefficients of x² in a quotient that is tanh x / x up to 2e-8 of it, fitted to the largest such error."""


def _tanh(x: Tensor) -> Any:
    """A quotient of polynomials: vectorised, it takes less than half the time of the one in a library."""
    if x.device.type != "cpu" or x.dtype is not torch.float32:
        return NotImplemented
    x = x.clamp(-_SATURATED, _SATURATED)
    square = x * x
    above, below = (_polynomial(coefficients, square) for coefficients in (_ABOVE, _BELOW))
    return (x * above / below).clamp(-1.0, 1.0)


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Its value at x; the first coefficient is that of the highest power."""
    first, second, *others = coefficients
    value = first * x + second
    for coefficient in others:
        value = value * x + coefficient
    return value


DECOMPOSED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.tanh.default: _tanh,
    torch.ops.aten.mm.default: _product,
    torch.ops.aten.addmm.default: _addmm,
    torch.ops.aten.bmm.default: _product,
    torch.ops.aten.baddbmm.default: _baddbmm,
    torch.ops.aten._foreach_norm.Scalar: _foreach_norm,
    torch.ops.aten._fused_adam_.default: _adam,
    torch.ops.aten._fused_adam_.tensor_lr: _adam,
}
