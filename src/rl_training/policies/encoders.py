"""Encoders: from one observation to a row of features. What comes after them never sees a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.policies.encoder_registry import register_encoder
from rl_training.policies.images import Image, ImageLayout

__all__ = [
    "ConvEncoder",
    "DictEncoder",
    "DrqCNN",
    "Encoder",
    "FlatEncoder",
    "ImpalaCNN",
    "NatureCNN",
    "OneHotEncoder",
    "SmallDrqCNN",
    "register_encoder",
]


class Encoder(nn.Module):
    """What every encoder offers: `out_dim` features for each observation of a batch."""

    out_dim: int


class FlatEncoder(Encoder):
    """The `mlp` encoder of numbers: a row of floats, times `scale`, read by the hidden layers after it."""

    def __init__(self, out_dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.out_dim = out_dim
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            x = x.reshape(x.shape[0], self.out_dim)
        x = x.float()
        return x if self.scale == 1.0 else x * self.scale


class OneHotEncoder(Encoder):
    """The `mlp` encoder of choices: a one-hot block for each (Discrete has one, MultiDiscrete several)."""

    columns: Tensor
    categories: Tensor

    def __init__(self, sizes: Sequence[int], starts: Sequence[int]) -> None:
        super().__init__()
        self.out_dim = sum(sizes)
        columns = [i for i, size in enumerate(sizes) for _ in range(size)]
        categories = [start + j for size, start in zip(sizes, starts, strict=True) for j in range(size)]
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.register_buffer("categories", torch.tensor(categories), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.reshape(x.shape[0], -1).index_select(1, self.columns) == self.categories).float()


class ConvEncoder(Encoder):
    """Convolutions over an image in channels-last memory, then a dense layer, both in `precision`."""

    planes: Image
    convs: nn.Sequential
    """All but the ReLU at their end."""
    dense: nn.Linear
    precision: torch.dtype = torch.float32

    def forward(self, obs: Tensor) -> Tensor:
        planes = self.planes(obs)
        if self.precision is torch.float32:
            return self.features(planes)
        with torch.autocast(planes.device.type, self.precision):
            return self.features(planes).float()

    def features(self, planes: Tensor) -> Tensor:
        """Rows of features."""
        return torch.relu_(self.dense(self.flat(planes)))

    def flat(self, planes: Tensor) -> Tensor:
        """What the convolutions see, as rows.

        Their last ReLU comes after the rows are put together, which takes a copy out of channels-last memory:
        so it reads and writes one order of memory, in its backward pass too.
        """
        return torch.relu_(self.convs(planes).flatten(1))


class NatureCNN(ConvEncoder):
    """Three convolutions and a dense layer (Mnih et al., 2015)."""

    min_size = 36

    def __init__(self, layout: ImageLayout, scale: float = 1.0, out_dim: int = 512) -> None:
        super().__init__()
        if min(layout.height, layout.width) < self.min_size:
            size = f"{layout.height}x{layout.width}"
            raise ConfigError(
                f"network.encoder: an image of {size} is too small for 'nature_cnn', which needs "
                f"{self.min_size}x{self.min_size}; use 'impala_cnn' or 'mlp', or resize the image"
            )
        self.planes = Image(layout, scale)
        self.convs = nn.Sequential(
            nn.Conv2d(layout.channels, 32, kernel_size=8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
        )
        self.dense = nn.Linear(_flat_size(self.convs, layout), out_dim)
        self.out_dim = out_dim


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.second = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(torch.relu_(self.first(torch.relu(x))))
        return out


class ImpalaCNN(ConvEncoder):
    """Three residual stages that halve the picture, and a dense layer (Espeholt et al., 2018)."""

    def __init__(
        self,
        layout: ImageLayout,
        scale: float = 1.0,
        out_dim: int = 256,
        stages: tuple[int, ...] = (16, 32, 32),
    ) -> None:
        super().__init__()
        self.planes = Image(layout, scale)
        layers: list[nn.Module] = []
        for before, after in zip((layout.channels, *stages), stages, strict=False):
            layers += [
                nn.Conv2d(before, after, kernel_size=3, padding=1),
                nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
                ResidualBlock(after),
                ResidualBlock(after),
            ]
        self.convs = nn.Sequential(*layers)
        self.dense = nn.Linear(_flat_size(self.convs, layout), out_dim)
        self.out_dim = out_dim


class DrqCNN(ConvEncoder):
    """3x3 convolutions and nothing behind them: a trunk should follow (Yarats et al., 2021)."""

    channels: tuple[int, ...] = (32, 32, 32, 32)
    strides: tuple[int, ...] = (2, 1, 1, 1)

    def __init__(self, layout: ImageLayout, scale: float = 1.0) -> None:
        super().__init__()
        self.planes = Image(layout, scale, offset=-0.5)  # colours around zero
        layers: list[nn.Module] = []
        sizes = zip((layout.channels, *self.channels), self.channels, self.strides, strict=False)
        for before, after, stride in sizes:
            layers += [nn.Conv2d(before, after, kernel_size=3, stride=stride), nn.ReLU(inplace=True)]
        self.convs = nn.Sequential(*layers[:-1])
        if min(layout.height, layout.width) < self.min_size():
            size, least = f"{layout.height}x{layout.width}", self.min_size()
            raise ConfigError(
                f"network.encoder: an image of {size} is too small for a {type(self).__name__}, which needs "
                f"{least}x{least}; use 'impala_cnn' or 'mlp', or resize the image"
            )
        self.out_dim = _flat_size(self.convs, layout)

    @classmethod
    def min_size(cls) -> int:
        """The smallest picture of which the last convolution leaves a pixel."""
        size = 1
        for stride in reversed(cls.strides):
            size = (size - 1) * stride + 3
        return size

    def features(self, planes: Tensor) -> Tensor:
        """Rows of features."""
        return self.flat(planes)


class SmallDrqCNN(DrqCNN):
    """The same for a CPU: fewer channels, and each convolution halves the picture."""

    channels = (16, 32, 32)
    strides = (2, 2, 2)


class DictEncoder(Encoder):
    """One encoder for each key of a flat Dict, their features side by side."""

    def __init__(self, parts: Mapping[str, Encoder]) -> None:
        super().__init__()
        self.keys = tuple(parts)
        self.parts = nn.ModuleList(parts.values())  # a list: keys may be no valid module names
        self.out_dim = sum(part.out_dim for part in parts.values())

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.cat([part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)], dim=-1)


def _flat_size(convs: nn.Sequential, layout: ImageLayout) -> int:
    with torch.no_grad():
        return int(convs(torch.zeros(1, layout.channels, layout.height, layout.width)).numel())


def set_precision(module: nn.Module, precision: torch.dtype) -> None:
    """Let the image encoders inside compute in `precision`; heads, losses and optimisers stay in fp32."""
    for part in module.modules():
        if isinstance(part, ConvEncoder):
            part.precision = precision
