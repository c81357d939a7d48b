"""Observations as users hand them in, brought into the batched form that policies take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rl_training.envs.spaces import Space, flat_mask
from rl_training.errors import EnvError, nearest
from rl_training.types import ACTION_MASK

if TYPE_CHECKING:
    from rl_training.types import Array, Obs


def batched(space: Space, obs: Any) -> tuple[Obs, bool]:
    """One observation or a batch of them with a leading batch axis, and whether that axis had to be added.

    Where an env gives its action mask in `info`, an observation without one allows every action.
    """
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], Mapping):
        raise EnvError("observation: reset() returns (observation, info), of which the first item is meant")
    if not isinstance(space, spaces.Dict):
        array, is_single = _with_axis("", space, obs)
        return array, is_single
    entries = _entries(space, obs)
    parts = {key: _with_axis(key, space[key], entries[key]) for key in space if key in entries}
    singles = {is_single for _, is_single in parts.values()}
    if len(singles) != 1:
        raise EnvError("observation: some entries are a batch and some are not")
    arrays = {key: array for key, (array, _) in parts.items()}
    if ACTION_MASK in space.spaces and ACTION_MASK not in arrays:
        rows = len(next(iter(arrays.values())))
        arrays[ACTION_MASK] = np.ones((rows, *(space[ACTION_MASK].shape or ())), np.int8)
    return {key: arrays[key] for key in space}, singles.pop()


def _entries(space: spaces.Dict, obs: Any) -> dict[str, Any]:
    """The entries of a Dict observation, those that are needed and no others."""
    wanted = [key for key in space if key != ACTION_MASK]
    if not isinstance(obs, Mapping):
        if wanted != ["obs"]:
            raise EnvError(f"observation: expected a mapping with {', '.join(wanted)}, got {_kind(obs)}")
        obs = {"obs": obs}
    for key in wanted:
        if key not in obs:
            near = nearest(key, map(str, obs))
            raise EnvError(f"observation: {key!r} is missing" + (f"; found {near!r}" if near else ""))
    entries = {key: obs[key] for key in space if key in obs}
    if isinstance(entries.get(ACTION_MASK), tuple):
        entries[ACTION_MASK] = flat_mask(entries[ACTION_MASK])
    return entries


def _with_axis(key: str, space: Space, value: Any) -> tuple[Array, bool]:
    name = f"observation {key!r}" if key else "observation"
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        array = np.empty(0, np.object_)
    shape = space.shape or ()
    is_single = array.ndim == len(shape)
    if array.dtype.kind not in "biuf" or array.shape[0 if is_single else 1 :] != shape:
        raise EnvError(f"{name}: expected shape {shape} (or a batch of them), got {_kind(value)}")
    with np.errstate(invalid="ignore", over="ignore"):  # what a cast loses is found below
        cast = array.astype(space.dtype, copy=False)
    fits = _fitting(space, array, cast)
    if not fits.all():
        found = f"{array[~fits].flat[0]} among {array.dtype} values"
        raise EnvError(f"{name}: expected {_wanted(space)}, got {found}")
    return (cast[None] if is_single else cast), is_single


def _fitting(space: Space, given: Array, cast: Array) -> Array:
    """Which values a policy can take: finite ones, and of integers those that the space has."""
    if cast.dtype.kind == "f":
        return np.asarray(np.isfinite(cast))
    low, high = _bounds(space)
    return np.asarray((cast == given) & (low <= cast) & (cast <= high))


def _bounds(space: Space) -> tuple[Any, Any]:
    """The least and the greatest integers of a space."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _wanted(space: Space) -> str:
    return f"{'finite numbers' if np.dtype(space.dtype).kind == 'f' else 'integers'} of {space}"


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"shape {tuple(shape)}" if shape is not None else type(value).__name__
