"""Image observations: where their axes are, and how they become the planes that convolutions read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where the axes of an image observation are, and its size as planes `[channels, height, width]`."""

    order: tuple[int, ...]
    channels: int
    height: int
    width: int


class Image(nn.Module):
    """Any image as float planes `[batch, channels, height, width]`: times `scale`, plus `offset`."""

    def __init__(self, layout: ImageLayout, scale: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.order = (0, *(axis + 1 for axis in layout.order))
        self.shape = (layout.channels, layout.height, layout.width)
        self.scale, self.offset = scale, offset

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(self.order).reshape(x.shape[0], *self.shape)
        # Convolutions, above all their backward pass, are faster so; bytes are cheaper to rearrange.
        x = x.contiguous(memory_format=torch.channels_last)
        if self.scale == 1.0 and self.offset == 0.0:
            return x.float()
        # There is much of it: one copy, changed in place.
        planes = x.to(torch.float32, copy=True).mul_(self.scale)
        return planes if self.offset == 0.0 else planes.add_(self.offset)


def image_layout(shape: Sequence[int]) -> ImageLayout:
    """The layout of a grey (2-D), coloured or grey-stacked (3-D), or stacked (4-D) image of this shape."""
    if len(shape) == 2:
        return ImageLayout((0, 1), 1, shape[0], shape[1])
    if len(shape) == 4:  # frames first: they become channels
        frame = image_layout(shape[1:])
        order = (0, *(axis + 1 for axis in frame.order))
        return ImageLayout(order, shape[0] * frame.channels, frame.height, frame.width)
    first, middle, last = shape
    if _channels_first(first, middle, last):
        return ImageLayout((0, 1, 2), first, middle, last)
    return ImageLayout((2, 0, 1), last, first, middle)


def _channels_first(first: int, middle: int, last: int) -> bool:
    """A usual number of channels (up to 4) decides; failing that, the squarer picture; then channels last."""
    if (first <= 4) != (last <= 4):
        return first <= 4
    return _elongation(middle, last) < _elongation(first, middle)


def _elongation(height: int, width: int) -> float:
    return max(height, width) / min(height, width)
