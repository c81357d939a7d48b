"""The gradient step of every algorithm: gradients, their norm, clipping, and Adam in one fused call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from rl_training.functional.flat import as_one
from rl_training.types import Averaging

__all__ = ["Adam", "GuardedOptimizer", "descend"]


class GuardedOptimizer(torch.optim.Optimizer):
    """An optimiser that takes gradients as they are and decides on the device whether to use them."""

    averaging: Averaging | None = None
    """Where several learners train together: gradients are their mean, as one flat tensor."""

    # Torch keeps its compiler away from these, and would take a second to import it for that.
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)

    def prepare(self) -> None:
        """Make what steps remember now instead of at the first of them."""
        raise NotImplementedError

    def apply(self, gradients: Sequence[Tensor], scale: Tensor | None, skip: Tensor) -> None:
        """One step against `gradients / scale`; where `skip` is 1, nothing happens."""
        raise NotImplementedError


class Adam(torch.optim.Adam, GuardedOptimizer):
    """`torch.optim.Adam` with the same arithmetic and state, less what `step` spends around its kernel."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: Tensor | float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(list(parameters), lr=lr, betas=betas, eps=eps, fused=True)
        self._moments: tuple[list[Tensor], list[Tensor], Tensor] | None = None

    def prepare(self) -> None:
        """Moments of zero, unless there are others."""
        self._moments = self._moments or self._prepare()

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], scale: Tensor | None, skip: Tensor) -> None:
        """One step against `gradients / scale`; where `skip` is 1, nothing happens."""
        means, squares, step = self._moments = self._moments or self._prepare()
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        step.add_(1).sub_(skip)
        torch._fused_adam_(
            group["params"], gradients, means, squares, [], [step] * len(means),
            lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=0.0, eps=group["eps"],
            amsgrad=False, maximize=False, grad_scale=scale, found_inf=skip,
        )  # type: ignore[call-overload]  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._moments = None

    def _prepare(self) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The moments as lists, made or loaded, and one count of steps, which all parameters share."""
        parameters = self.param_groups[0]["params"]
        first = self.state.get(parameters[0])
        step = first["step"] if first else torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            state = self.state[parameter]
            for name in ("exp_avg", "exp_avg_sq"):
                moment = torch.zeros_like(parameter)
                state[name] = moment.copy_(state[name]) if name in state else moment
            state["step"] = step
        states = [self.state[parameter] for parameter in parameters]
        return [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], step


def descend(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    max_grad_norm: float | None = None,
    *,
    after: Tensor | None = None,
) -> Tensor:
    """One step on `parameters` alone: the backward pass computes no gradient for anything else in the graph.

    Gradients are scaled down to `max_grad_norm`. A loss or a gradient that is not finite leaves weights and
    moments alone, and so does an `after` that is not: what an earlier step of the same update came to. That
    is decided on the device (fused optimisers know `found_inf`), so nothing is read back. The answer is the
    gradient's norm before clipping; in it or in the loss the trainer sees that it happened.
    """
    gradients: Sequence[Tensor] = torch.autograd.grad(loss, parameters, materialize_grads=True)
    loss = loss.detach()
    if isinstance(optimizer, GuardedOptimizer) and optimizer.averaging is not None:
        *gradients, loss = as_one(optimizer.averaging, [*gradients, loss])
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
    seen = norm + loss  # gradients of Huber's loss are finite where it is not
    if after is not None:
        seen = seen + after
    skip = (seen * 0.0).ne_(0.0)  # 0 times infinity is no number, and differs from 0
    scale = None if max_grad_norm is None else ((norm + 1e-6) / max_grad_norm).clamp_(min=1.0)
    if isinstance(optimizer, GuardedOptimizer):
        optimizer.apply(_laid_out(gradients, parameters), scale, skip)
        return norm
    if scale is not None:
        torch._foreach_div_(list(gradients), scale)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()
    return norm


def _laid_out(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the memory order of their parameters, which a fused kernel takes for granted."""
    return [
        gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimiser remembers of each parameter, by its number."""
    return {str(index): state for index, state in optimizer.state_dict()["state"].items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what `optimizer_state` gave."""
    # Copies: torch would share the saved moments with the optimiser, and training would change them.
    saved = {int(index): {k: v.clone() for k, v in moments.items()} for index, moments in state.items()}
    groups = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": saved, "param_groups": optimizer.state_dict()["param_groups"]})
    for group, ours in zip(optimizer.param_groups, groups, strict=True):
        group.update(ours)  # torch puts copies in their place, which schedules would no longer reach
