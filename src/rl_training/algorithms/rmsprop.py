"""RMSprop as TensorFlow writes it, with which A2C's published results were made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class RMSprop(torch.optim.Optimizer):
    """RMSprop with ε under the square root and a mean square that starts at one instead of zero.

    The first steps are therefore small, where torch's own divides by a nearly empty average. Weights and
    averages stand still where `found_inf` is set, decided on the device, as in torch's fused optimisers.
    """

    found_inf: Tensor | None = None

    def __init__(self, params: Iterable[Tensor], lr: Tensor, alpha: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """w ← w − lr · g / √(m + ε), m the running mean of g²."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["square_avg"] = torch.ones_like(p)
            averages = [self.state[p]["square_avg"] for p in params]
            gradients, keep = [p.grad for p in params], group["alpha"]
            if self.found_inf is not None:
                bad = self.found_inf.bool()
                gradients = [g.masked_fill(bad, 0.0) for g in gradients]
                keep = bad.to(averages[0].dtype).clamp_min(keep)  # 1 where nothing may change
            torch._foreach_mul_(averages, keep)
            torch._foreach_addcmul_(averages, gradients, gradients, value=1.0 - group["alpha"])
            scale = torch._foreach_add(averages, group["eps"])
            torch._foreach_sqrt_(scale)
            steps = torch._foreach_div(gradients, scale)
            torch._foreach_mul_(steps, group["lr"])
            torch._foreach_sub_(params, steps)
