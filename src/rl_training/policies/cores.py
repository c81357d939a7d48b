"""Cores: what lies between an encoder's features and the heads. Recurrent cores belong here too."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.policies.activations import ACTIVATIONS


class MLP(nn.Module):
    """Hidden layers, each followed by the activation. Without widths it hands its input on."""

    def __init__(self, in_dim: int, widths: Sequence[int], activation: str = "tanh") -> None:
        super().__init__()
        self.out_dim = widths[-1] if widths else in_dim
        self.layers = nn.ModuleList(
            nn.Linear(before, after) for before, after in zip((in_dim, *widths), widths, strict=False)
        )
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        # Functional calls: at small batches a module call costs about as much as its arithmetic.
        activation = self.activation
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = activation(F.linear(x, layer.weight, layer.bias))
        return x
