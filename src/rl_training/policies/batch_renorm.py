"""Batch renormalisation (Ioffe 2017): batch statistics in training that agree with those used later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.policies.cores import MLP


class BatchRenorm(nn.Module):
    """Normalises the rows of `[…, batch, features]` and then scales and shifts them by what it has learned.

    With `training`, by the batch's own mean and deviation, corrected towards the running ones by factors
    that carry no gradient and are clipped; until `warmup` batches have been seen there is no correction and
    this is batch normalisation. Otherwise by the running statistics. The mode is an argument and no property
    of the module: a critic is used in both within one update.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        *,
        momentum: float = 0.01,
        warmup: int = 100_000,
        r_max: float = 3.0,
        d_max: float = 5.0,
        eps: float = 1e-3,
    ) -> None:
        super().__init__()
        self.momentum, self.warmup, self.r_max, self.d_max, self.eps = momentum, warmup, r_max, d_max, eps
        self.scale = nn.Parameter(torch.ones(*shape))
        self.shift = nn.Parameter(torch.zeros(*shape))
        self.register_buffer("mean", torch.zeros(*shape))
        self.register_buffer("var", torch.ones(*shape))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, training: bool = False) -> Tensor:
        if not training:
            factor = self.scale * torch.rsqrt(self.var + self.eps)
            return (x - self.mean) * factor + self.shift
        mean = x.mean(-2, keepdim=True)
        var = x.var(-2, keepdim=True, correction=0)
        std = torch.sqrt(var + self.eps)
        r, d = self._correction(mean.detach(), std.detach())
        out = ((x - mean) / std * r + d) * self.scale + self.shift
        with torch.no_grad():
            self.mean.lerp_(mean, self.momentum)
            self.var.lerp_(var, self.momentum)
            self.batches.add_(1)
        return out

    def _correction(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Ioffe's r and d, and 1 and 0 during the warm-up."""
        running = torch.sqrt(self.var + self.eps)
        warm = self.batches >= self.warmup
        r = (std / running).clamp(1.0 / self.r_max, self.r_max)
        d = ((mean - self.mean) / running).clamp(-self.d_max, self.d_max)
        return torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)


class RenormMLP(MLP):
    """An MLP with batch renormalisation of its input and after each hidden layer, as in CrossQ."""

    def __init__(self, in_dim: int, widths: Sequence[int], activation: str = "relu") -> None:
        super().__init__(in_dim, widths, activation)
        self.norms = nn.ModuleList(BatchRenorm((1, width)) for width in (in_dim, *widths))

    def forward(self, x: Tensor, training: bool = False) -> Tensor:
        first, *rest = self.norms
        x = first(x, training)
        for layer, norm in zip(self.layers, rest, strict=True):
            x = norm(self.activation(layer(x)), training)
        return x
