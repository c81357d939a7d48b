"""Ensembles of critics as one batched computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.policies.activations import ACTIVATIONS
from rl_training.policies.batch_renorm import BatchRenorm

Norm = Literal["none", "layer", "batch_renorm"]


class LayerNorm(nn.Module):
    """Layer normalisation with a scale and a shift for each member of an ensemble."""

    def __init__(self, num_critics: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_critics, 1, width))
        self.shift = nn.Parameter(torch.zeros(num_critics, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, F.layer_norm(x, x.shape[-1:]), self.scale)


class CriticEnsemble(nn.Module):
    """`num_critics` separate MLPs whose weights are stacked: `[batch, in]` to `[critics, batch, out]`.

    A layer of all of them is one batched matrix product. Each has its own weights, drawn on its own, so they
    are the same functions as so many separate networks. `norm`: layer normalisation before each activation,
    or batch renormalisation of the input and after each activation.
    """

    def __init__(
        self,
        num_critics: int,
        in_dim: int,
        widths: Sequence[int],
        out_dim: int = 1,
        *,
        activation: str = "relu",
        norm: Norm = "none",
    ) -> None:
        super().__init__()
        self.num_critics, self.out_dim = num_critics, out_dim
        self.activation = ACTIVATIONS[activation]
        sizes = [(before, after) for before, after in zip((in_dim, *widths), (*widths, out_dim), strict=True)]
        self.weights = nn.ParameterList(
            _uniform((num_critics, before, after), before) for before, after in sizes
        )
        self.biases = nn.ParameterList(_uniform((num_critics, 1, after), before) for before, after in sizes)
        self.layer_norms: nn.ModuleList | None = None
        self.batch_norms: nn.ModuleList | None = None
        if norm == "layer":
            self.layer_norms = nn.ModuleList(LayerNorm(num_critics, width) for width in widths)
        elif norm == "batch_renorm":
            self.batch_norms = nn.ModuleList(
                BatchRenorm((num_critics, 1, width)) for width in (in_dim, *widths)
            )

    def forward(self, x: Tensor, training: bool = False) -> Tensor:
        """Values of all critics in float32; `training` matters to batch renormalisation alone."""
        weights, biases = list(self.weights), list(self.biases)
        x = x.expand(self.num_critics, *x.shape)
        if self.batch_norms is not None:
            x = self.batch_norms[0](x, training)
        for layer in range(len(weights) - 1):
            x = torch.baddbmm(biases[layer], x, weights[layer])
            if self.layer_norms is not None:
                x = self.layer_norms[layer](x)
            x = self.activation(x)
            if self.batch_norms is not None:
                x = self.batch_norms[layer + 1](x, training)
        return self._last(x, weights[-1], biases[-1]).float()

    def first(self, x: Tensor) -> Tensor:
        """The first critic's values alone, `[1, batch, out]`: TD3's actor asks no other."""
        if self.layer_norms is not None or self.batch_norms is not None:
            values: Tensor = self(x)
            return values[:1]
        weights, biases = list(self.weights), list(self.biases)
        for layer in range(len(weights) - 1):
            x = self.activation(torch.addmm(biases[layer][0], x, weights[layer][0]))
        return torch.addmm(biases[-1][0], x, weights[-1][0]).float().unsqueeze(0)

    def _last(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.out_dim > 1:
            return torch.baddbmm(bias, x, weight)
        # With one output a batched product of matrices takes ten times as long as the products themselves.
        products: Tensor = torch.linalg.vecdot(x, weight.transpose(1, 2))
        return products.unsqueeze(-1) + bias

    @torch.no_grad()
    def init_orthogonal(self) -> None:
        """Orthogonal weights, zero biases: gain √2 in hidden layers, 1 in the last."""
        for stack, bias in zip(self.weights, self.biases, strict=True):
            last = stack is self.weights[-1]
            for weight in stack:
                nn.init.orthogonal_(weight, 1.0 if last else math.sqrt(2.0))
            bias.zero_()


def _uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    """What torch gives a linear layer: uniform within ±1/√fan_in."""
    bound = 1.0 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
