"""Linear layers with learned noise on their weights (Fortunato et al. 2018), for exploration without dice."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from rl_training.policies.modules import linear


@dataclass(frozen=True, slots=True)
class Noise:
    """Where a network's noise comes from; `shared`: one draw for all rows of a batch, not one a row."""

    generator: Generator | None
    shared: bool = True


class NoisyLinear(nn.Module):
    """A linear layer whose weights are mean + σ·ε with factorised Gaussian ε. Without noise: the means."""

    def __init__(self, in_dim: int, out_dim: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound, spread = 1.0 / math.sqrt(in_dim), sigma / math.sqrt(in_dim)
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_dim).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_dim, in_dim), spread))
        self.bias_sigma = nn.Parameter(torch.full((out_dim,), spread))

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        mean = F.linear(x, self.weight, self.bias)
        if noise is None:
            return mean
        # (σ ∘ ε_out ε_inᵀ) x = ε_out ∘ σ(ε_in ∘ x): the weights themselves are never made, so every row can
        # have noise of its own.
        rows = 1 if noise.shared else len(x)
        out_dim, in_dim = self.weight.shape
        drawn = torch.randn(rows, in_dim + out_dim, generator=noise.generator, device=x.device)
        drawn = drawn.sign() * drawn.abs().sqrt()
        inward, outward = drawn[:, :in_dim], drawn[:, in_dim:]
        return mean + F.linear(x * inward, self.weight_sigma, self.bias_sigma) * outward


def apply_linear(layer: nn.Module, x: Tensor, noise: Noise | None) -> Tensor:
    """A layer's output, with noise if it is a noisy one."""
    if isinstance(layer, NoisyLinear):
        return layer.forward(x, noise)
    return linear(layer, x)
