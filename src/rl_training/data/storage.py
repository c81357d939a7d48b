"""Where the tensors of a replay buffer live: in memory, on a device, or in files mapped into memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor of zeros."""


def in_memory(device: torch.device | str = "cpu") -> Allocate:
    """Ordinary tensors; in main memory the system gives them room only as they are written to."""
    return partial(_zeros, device=torch.device(device))


def pinned() -> Allocate:
    """Tensors in main memory that a GPU can read by itself: `seen_by` shows them to it."""
    return _pinned_zeros


def pinned_bytes(size: int) -> int:
    """Memory that a `pinned` tensor takes: torch rounds up to a power of two, and takes all of it at once."""
    return 1 << max(0, size - 1).bit_length()


def seen_by(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Gives a GPU's view of `pinned` memory. It reads over the bus what the host has written last."""

    def view(tensor: Tensor) -> Tensor:
        return torch.as_tensor(_CudaArray(tensor), device=device)

    return view


class _CudaArray:
    """Pinned memory under the name by which CUDA libraries know arrays; it keeps the memory alive."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": tensor.numpy().dtype.str,
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


def on_disk(folder: Path) -> Allocate:
    """Tensors in main memory's address space whose contents the system keeps in files in `folder`.

    The files have no name, so that they are gone when the process is, however it ends; and they are sparse:
    they take room as they are written to.
    """
    return partial(_mapped, folder=folder)


def rows_of(tensor: Tensor) -> Any:
    """The rows of a tensor `[slots, envs, …]` by flat index: NumPy's in main memory, cheaper for few rows."""
    flat = tensor.flatten(0, 1)
    return flat.numpy() if tensor.device.type == "cpu" else DeviceRows(flat)


class DeviceRows:
    """A tensor that is written and read by NumPy's indices wherever it is."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, rows: Array) -> Tensor:
        return self.tensor[torch.from_numpy(rows).to(self.tensor.device)]

    def __setitem__(self, rows: Array, values: Any) -> None:
        index = torch.from_numpy(rows).to(self.tensor.device)
        self.tensor[index] = torch.as_tensor(values).to(self.tensor.device, self.tensor.dtype)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":  # torch would write all the zeros
        return torch.from_numpy(np.zeros(shape, _numpy_dtype(dtype)))
    return torch.zeros(shape, dtype=dtype, device=device)


def _pinned_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=True)


def _mapped(shape: tuple[int, ...], dtype: torch.dtype, folder: Path) -> Tensor:
    numpy_dtype = _numpy_dtype(dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.ftruncate(file.fileno(), max(1, prod(shape) * numpy_dtype.itemsize))
        area = mmap.mmap(file.fileno(), 0)
    if hasattr(area, "madvise"):
        area.madvise(mmap.MADV_RANDOM)  # batches are drawn from all over: reading ahead would be wasted
    return torch.from_numpy(np.frombuffer(area, numpy_dtype, prod(shape)).reshape(shape))


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    found: np.dtype[Any] = torch.zeros(0, dtype=dtype).numpy().dtype
    return found
