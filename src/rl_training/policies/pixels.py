"""What pixel control puts around an encoder: random shifts before it, trunks behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from rl_training.functional.augment import random_shifts, shifted
from rl_training.policies.cores import MLP
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.images import ImageLayout

if TYPE_CHECKING:
    from rl_training.types import TensorObs


class Trunk(nn.Module):
    """The many features of convolutions as a few bounded numbers: linear, LayerNorm, tanh."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))


class TrunkMLP(MLP):
    """Hidden layers behind a trunk of their own."""

    def __init__(self, in_dim: int, trunk: int, widths: Sequence[int], activation: str = "relu") -> None:
        super().__init__(trunk, widths, activation)
        self.trunk = Trunk(in_dim, trunk)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.trunk(x))


class TrunkCritics(CriticEnsemble):
    """Critics that share one trunk, through which the features pass and the actions do not."""

    def __init__(
        self, num_critics: int, in_dim: int, actions: int, trunk: int, widths: Sequence[int], activation: str
    ) -> None:
        super().__init__(num_critics, trunk + actions, widths, activation=activation)
        self.sizes = (in_dim, actions)
        self.trunk = Trunk(in_dim, trunk)

    def forward(self, x: Tensor, training: bool = False) -> Tensor:
        """Values of all critics for rows of features and actions."""
        features, actions = torch.split_with_sizes(x, self.sizes, dim=1)
        return super().forward(torch.cat([self.trunk(features), actions], dim=1), training)

    def first(self, x: Tensor) -> Tensor:
        """The first critic's values alone."""
        return self.forward(x)[:1]


class RandomShift:
    """Moves every image of an observation by up to `pad` pixels; all frames of a stack alike."""

    def __init__(self, layouts: Mapping[str, ImageLayout], pad: int) -> None:
        self.layouts, self.pad = dict(layouts), pad

    def __call__(self, obs: TensorObs, generator: Generator) -> TensorObs:
        """The observations, moved; what is no image stays as it is."""
        if isinstance(obs, dict):
            return {key: self._image(key, value, generator) for key, value in obs.items()}
        return self._image("", obs, generator)

    def _image(self, key: str, images: Tensor, generator: Generator) -> Tensor:
        layout = self.layouts.get(key)
        if layout is None or self.pad == 0:
            return images
        # Height and width first, whatever is left behind them; and back.
        *rest, height, width = (axis + 1 for axis in layout.order)
        forth = (0, height, width, *rest)
        back = [forth.index(axis) for axis in range(images.dim())]
        shifts = random_shifts(len(images), self.pad, generator, images.device)
        return shifted(images.permute(forth), shifts).permute(back)


__all__ = ["RandomShift", "Trunk", "TrunkCritics", "TrunkMLP"]
