"""Several tensors as one row of numbers, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of several tensors in one row."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def parts_of(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a row made by `flat`, in the shapes of the tensors it was made of."""
    parts = torch.split(row, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def as_one(change: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What `change` makes of every number, told all of them at once."""
    return parts_of(change(flat(tensors)), tensors)


@torch.no_grad()
def assign_flat(parameters: Sequence[Tensor], row: Tensor) -> None:
    """Write a row made by `flat` back, in place."""
    for parameter, part in zip(parameters, parts_of(row, parameters), strict=True):
        parameter.copy_(part)
