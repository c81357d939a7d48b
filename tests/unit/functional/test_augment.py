"""Random shifts, pixel by pixel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.functional.augment import random_shifts, shifted


def planes(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float()


def test_a_shift_by_hand() -> None:
    image = torch.arange(9, dtype=torch.uint8).reshape(1, 3, 3, 1)
    moved = shifted(image, torch.tensor([[1, -1]]))[0, :, :, 0]
    assert moved.dtype == torch.uint8
    assert moved.tolist() == [[3, 3, 4], [6, 6, 7], [6, 6, 7]]
    assert torch.equal(shifted(image, torch.zeros(1, 2, dtype=torch.int64)), image)


def test_a_shift_is_a_crop_of_the_padded_picture() -> None:
    pad, height, width = 4, 9, 12
    g = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50, height, width, 6), generator=g, dtype=torch.uint8)
    shifts = random_shifts(50, pad, g, torch.device("cpu"))
    padded = F.pad(planes(images), (pad, pad, pad, pad), mode="replicate")
    moved = planes(shifted(images, shifts))
    for i, (down, right) in enumerate((shifts + pad).tolist()):
        assert torch.equal(moved[i], padded[i, :, down : down + height, right : right + width])


def test_a_shift_equals_the_papers_bilinear_sampling() -> None:
    """Its grid lies on whole pixels (section 3.1, and the published code), where bilinear is exact."""
    pad, size, n = 4, 24, 20
    g = torch.Generator().manual_seed(1)
    images = torch.randint(256, (n, size, size, 3), generator=g, dtype=torch.uint8)
    shifts = random_shifts(n, pad, g, torch.device("cpu"))
    whole = size + 2 * pad
    centres = torch.linspace(-1 + 1 / whole, 1 - 1 / whole, whole)[:size]
    across = centres.expand(size, size)
    grid = torch.stack([across, across.T], dim=2).expand(n, size, size, 2)
    steps = (shifts + pad).flip(1).reshape(n, 1, 1, 2) * 2.0 / whole
    padded = F.pad(planes(images), (pad, pad, pad, pad), mode="replicate")
    expected = F.grid_sample(padded, grid + steps, padding_mode="zeros", align_corners=False)
    torch.testing.assert_close(planes(shifted(images, shifts)), expected, rtol=0, atol=0.01)


def test_every_shift_comes_equally_often_and_axes_are_independent() -> None:
    shifts = random_shifts(50_000, 2, torch.Generator().manual_seed(0), torch.device("cpu"))
    counts = torch.bincount((shifts[:, 0] + 2) * 5 + shifts[:, 1] + 2, minlength=25)
    assert counts.min() > 1_800
    assert counts.max() < 2_200
