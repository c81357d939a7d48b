"""Observations from the host to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rl_training.types import ACTION_MASK

if TYPE_CHECKING:
    from rl_training.policies.normalizer import ObsNormalizer
    from rl_training.types import Array, Obs, TensorObs

_CONVERTED = {np.dtype(np.float64): np.float32, np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def to_tensor(obs: Obs | TensorObs, device: torch.device | str = "cpu") -> TensorObs:
    """The observation as tensors on `device`, in memory of torch's own; tensors that are there stay theirs.

    A matrix product may round differently where its input is aligned differently. NumPy's and shared memory
    begin wherever there is room, torch's own at multiples of 64 bytes: so a run is the same in any process.
    """
    if isinstance(obs, dict):
        return {key: _tensor(array, device) for key, array in obs.items()}
    return _tensor(obs, device)


class Staging:
    """A place in torch's own memory for observations like the first one, each instead of the last."""

    def __init__(self, first: Obs) -> None:
        self.tensors = to_tensor(first)
        self._arrays = _arrays(self.tensors)

    def show(self, obs: Obs) -> TensorObs:
        """What `to_tensor` would give, until the next call."""
        arrays = self._arrays
        if isinstance(arrays, dict):
            for key, array in arrays.items():
                array[...] = obs[key]
        else:
            arrays[...] = obs
        return self.tensors


def _arrays(tensors: TensorObs) -> Any:
    """The same memory for NumPy."""
    if isinstance(tensors, dict):
        return {key: tensor.numpy() for key, tensor in tensors.items()}
    return tensors.numpy()


def _tensor(array: Array | Tensor, device: torch.device | str) -> Tensor:
    if isinstance(array, Tensor):
        return array.to(device)
    wanted = _CONVERTED.get(array.dtype)
    if wanted is not None:
        array = array.astype(wanted)
    elif not array.flags.writeable:
        array = array.copy()  # torch cannot express read-only memory
    return torch.from_numpy(array).to(device, copy=True)


def read_obs(
    obs: TensorObs, normalizer: ObsNormalizer | None, *, masked: bool, leaf: str | None
) -> tuple[TensorObs, Tensor | None]:
    """What an encoder reads of an observation, normalised, and the action mask that came with it.

    `masked`: the observation is a Dict with a mask; `leaf`: the one other key of it, if the encoder reads a
    plain observation.
    """
    if normalizer is not None:
        obs = normalizer.forward(obs)
    if not masked:
        return obs, None
    assert isinstance(obs, dict)
    mask = obs[ACTION_MASK]
    if leaf is not None:
        return obs[leaf], mask
    return {key: value for key, value in obs.items() if key != ACTION_MASK}, mask
