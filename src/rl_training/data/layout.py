"""Which shapes and dtypes experience of a given env has in a buffer."""

from __future__ import annotations

from typing import Any, TypedDict

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rl_training.types import Spec

Shape = tuple[int, ...]


class RolloutLayout(TypedDict):
    """The arguments that size a `RolloutBuffer`."""

    obs_shape: Shape | dict[str, Shape]
    obs_dtype: torch.dtype | dict[str, torch.dtype]
    action_shape: Shape
    action_dtype: torch.dtype


def rollout_layout(spec: Spec) -> RolloutLayout:
    """Shapes and dtypes of one observation and one policy action (see `Policy.env_actions`)."""
    space = spec.observation_space
    action_shape, action_dtype = _action_layout(spec.action_space)
    if isinstance(space, spaces.Dict):
        layouts = {key: _obs_layout(part) for key, part in space.spaces.items()}
        return RolloutLayout(
            obs_shape={key: shape for key, (shape, _) in layouts.items()},
            obs_dtype={key: dtype for key, (_, dtype) in layouts.items()},
            action_shape=action_shape,
            action_dtype=action_dtype,
        )
    shape, dtype = _obs_layout(space)
    return RolloutLayout(
        obs_shape=shape, obs_dtype=dtype, action_shape=action_shape, action_dtype=action_dtype
    )


def _obs_layout(space: gymnasium.Space[Any]) -> tuple[Shape, torch.dtype]:
    """Floating-point observations are kept in single precision, everything else as it comes."""
    dtype = np.dtype(space.dtype)
    if np.issubdtype(dtype, np.floating):
        return tuple(space.shape or ()), torch.float32
    return tuple(space.shape or ()), torch.from_numpy(np.zeros(1, dtype)).dtype


def _action_layout(space: gymnasium.Space[Any]) -> tuple[Shape, torch.dtype]:
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    return tuple(space.shape or ()), torch.int64 if discrete else torch.float32
