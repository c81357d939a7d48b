"""RMSprop as TensorFlow writes it, with which A2C's published results were made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.optim import GuardedOptimizer


class RMSprop(GuardedOptimizer):
    """RMSprop with ε under the square root and a mean square that starts at one instead of zero.

    The first steps are therefore small, where torch's own divides by a nearly empty average.
    """

    def __init__(self, params: Iterable[Tensor], lr: Tensor, alpha: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    def prepare(self) -> None:
        """Mean squares of one, unless there are others."""
        for parameter in self.param_groups[0]["params"]:
            if not self.state[parameter]:
                self.state[parameter]["square_avg"] = torch.ones_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step against the gradients that the parameters hold."""
        gradients = [parameter.grad for parameter in self.param_groups[0]["params"]]
        self.apply(gradients, None, torch.zeros((), device=gradients[0].device))

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], scale: Tensor | None, skip: Tensor) -> None:
        """w ← w − lr · g / √(m + ε), m the running mean of g²; nothing changes where `skip` is 1."""
        self.prepare()
        group = self.param_groups[0]
        averages = [self.state[parameter]["square_avg"] for parameter in group["params"]]
        bad = skip.bool()
        scaled = gradients if scale is None else torch._foreach_div(list(gradients), scale)
        kept = [gradient.masked_fill(bad, 0.0) for gradient in scaled]
        torch._foreach_mul_(averages, skip.clamp_min(group["alpha"]))  # 1 where nothing may change
        torch._foreach_addcmul_(averages, kept, kept, value=1.0 - group["alpha"])
        roots = torch._foreach_add(averages, group["eps"])
        torch._foreach_sqrt_(roots)
        steps = torch._foreach_div(kept, roots)
        torch._foreach_mul_(steps, group["lr"])
        torch._foreach_sub_(group["params"], steps)
