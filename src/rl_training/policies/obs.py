"""Observations from the host to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rl_training.types import Array, Obs, TensorObs

_CONVERTED = {np.dtype(np.float64): np.float32, np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def to_tensor(obs: Obs, device: torch.device | str = "cpu") -> TensorObs:
    """The observation as tensors on `device`; on the CPU they share the array's memory where they can."""
    if isinstance(obs, dict):
        return {key: _tensor(array, device) for key, array in obs.items()}
    return _tensor(obs, device)


def _tensor(array: Array, device: torch.device | str) -> Tensor:
    wanted = _CONVERTED.get(array.dtype)
    if wanted is not None:
        array = array.astype(wanted)
    elif not array.flags.writeable:
        array = array.copy()  # torch cannot express read-only memory
    return torch.from_numpy(array).to(device)
