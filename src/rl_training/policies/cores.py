"""Cores: what lies between an encoder's features and the heads. Recurrent cores belong here too."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.policies.activations import ACTIVATIONS
from rl_training.policies.modules import Part, linear


class MLP(Part):
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
            x = activation(linear(layer, x))
        return x
