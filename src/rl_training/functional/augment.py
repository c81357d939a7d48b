"""Changes to pictures that leave their meaning alone."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def shifted(images: Tensor, shifts: Tensor) -> Tensor:
    """`[batch, height, width, …]` moved by `shifts` `[batch, 2]`, in pixels up and to the left, each its own.

    What comes in from outside repeats the pixels at the edge: the crop of a picture that was padded so.
    """
    batch, height, width = images.shape[:3]
    rows = _moved(height, shifts[:, 0])
    columns = _moved(width, shifts[:, 1])
    pixels = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).reshape(batch, height * width)
    first = torch.arange(batch, device=images.device).unsqueeze(1) * (height * width)
    flat = images.reshape(batch * height * width, -1)
    return flat.index_select(0, (first + pixels).flatten()).reshape(images.shape)


def random_shifts(batch: int, pad: int, generator: Generator, device: torch.device) -> Tensor:
    """Whole pixels from -pad to pad in both directions, for each picture on its own."""
    return torch.randint(-pad, pad + 1, (batch, 2), generator=generator, device=device)


def _moved(size: int, by: Tensor) -> Tensor:
    places = torch.arange(size, device=by.device) + by.unsqueeze(1)
    return places.clamp_(0, size - 1)
