"""Observations that are stacks of frames: every frame is stored once, and stacks are rebuilt when drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor

from rl_training.types import ACTION_MASK, Array, Obs

Shape = tuple[int, ...]
_FEW_CHANNELS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Stack:
    """An observation of `shape` that is the last `frames` frames, oldest first, joined along `axis`."""

    frames: int
    axis: int
    shape: Shape

    @property
    def frame_shape(self) -> Shape:
        """The shape of one frame; it keeps the axis along which frames are joined."""
        size = self.shape[self.axis] // self.frames
        return (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])

    def split(self, obs: Array) -> Array:
        """`[batch, …]` as `[batch, frames, …]`, a view."""
        frame, axis = self.frame_shape, self.axis
        parts = obs.reshape(len(obs), *frame[:axis], self.frames, *frame[axis:])
        return np.moveaxis(parts, axis + 1, 1)

    def join(self, frames: Tensor) -> Tensor:
        """`[…, frames, …]` as the observations `[…, …]` that they were."""
        first = -(len(self.shape) + 1)
        return frames.movedim(first, first + self.axis).reshape(*frames.shape[:first], *self.shape)


def frame_stacks(space: gymnasium.Space[Any], frames: int) -> dict[str, Stack]:
    """The entries of an observation that `env.frame_stack` made stacks of `frames`, by key ("": all of it).

    Images are stacked along their channels, anything else along a new first axis. An image of which it cannot
    be told where its channels are is left out: it is stored whole.
    """
    if frames == 1:
        return {}
    entries = dict(space) if isinstance(space, spaces.Dict) else {"": space}
    found = {
        key: _stack(tuple(entry.shape), frames)
        for key, entry in entries.items()
        if isinstance(entry, spaces.Box) and key != ACTION_MASK
    }
    return {key: stack for key, stack in found.items() if stack is not None}


def _stack(shape: Shape, frames: int) -> Stack | None:
    if len(shape) == 3:
        sizes = {axis: shape[axis] / frames for axis in (0, 2)}
        axes = [axis for axis, size in sizes.items() if size in _FEW_CHANNELS]
    else:
        axes = [0] if shape and shape[0] == frames else []
    return Stack(frames, axes[0], shape) if len(axes) == 1 else None


class FrameHistory:
    """What every env's stacks hold now: it tells how much of a new observation is stored already."""

    def __init__(self, stacks: Mapping[str, Stack], dtypes: Mapping[str, Any], num_envs: int) -> None:
        self.stacks = dict(stacks)
        self.lookback = next(iter(self.stacks.values())).frames - 1
        """How many frames a stack has beside the newest one."""
        self.known = np.zeros(num_envs, np.uint8)
        """How many slots before each env's current one hold older frames of its stack."""
        self._current = {
            key: np.zeros((num_envs, stack.frames, *stack.frame_shape), dtypes[key])
            for key, stack in self.stacks.items()
        }

    def follows(self, obs: Obs, columns: Array | slice = slice(None)) -> Array:
        """For which envs the older frames of an observation are the newer ones of the observation before."""
        return _all(
            given[:, :-1] == self._current[key][columns][:, 1:] for key, given in self._split(obs).items()
        )

    def repeats(self, columns: Array) -> Array:
        """Which envs show the same frame all over, as at the start of an episode."""
        return _all(frames[columns, :-1] == frames[columns, -1:] for frames in self._current.values())

    def keep(self, obs: Obs) -> None:
        """Take note of what all envs show now."""
        for key, frames in self._split(obs).items():
            self._current[key][...] = frames

    def older(self, columns: Array, frame: int) -> Obs:
        """One of the older frames of some envs, with no other entries of the observation."""
        frames: dict[str, Array] = {key: now[columns, frame] for key, now in self._current.items()}
        return frames.pop("") if "" in frames else frames

    def newest(self, obs: Obs) -> Obs:
        """An observation with its stacks reduced to what a slot stores."""
        newest = {key: frames[:, -1] for key, frames in self._split(obs).items()}
        return {**obs, **newest} if isinstance(obs, dict) else newest[""]

    def _split(self, obs: Obs) -> dict[str, Array]:
        given = obs if isinstance(obs, dict) else {"": obs}
        return {
            key: stack.split(np.asarray(given[key], self._current[key].dtype))
            for key, stack in self.stacks.items()
        }


def _all(same: Iterable[Array]) -> Array:
    """Rows in which everything is true, in all of the arrays."""
    rows = [part.all(axis=tuple(range(1, part.ndim))) for part in same]
    both: Array = np.logical_and.reduce(rows)
    return both
