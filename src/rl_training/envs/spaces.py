"""What the rest of `envs/` needs to know about spaces: which are supported, how they are stored in arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.errors import EnvError
from rl_training.types import ACTION_MASK

if TYPE_CHECKING:
    from torch import Tensor

    from rl_training.types import Array, Obs, TensorObs

Space: TypeAlias = gymnasium.Space[Any]
ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose elements are plain arrays: supported as actions, and as observations, also in a flat Dict."""


def is_image(space: Space) -> bool:
    """Whether a space holds images: uint8 with two or three axes, or anything real with three."""
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)
    )


def channel_axis(shape: tuple[int, ...]) -> int:
    """Where a three-axis image keeps its channels: last, unless only the first axis is small enough."""
    few = (1, 2, 3, 4)
    return 0 if shape[0] in few and shape[-1] not in few else 2


def mask_size(action_space: Space) -> int | None:
    """The length of an action mask for this action space, or None where masks make no sense."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete):
        return int(action_space.nvec.sum())
    return None


def with_action_mask(observation_space: Space, action_space: Space) -> spaces.Dict:
    """The observation space after a mask from `info` has been moved into it."""
    size = mask_size(action_space)
    if size is None:
        raise EnvError(f"info['{ACTION_MASK}'] needs Discrete or MultiDiscrete actions, not {action_space}")
    inner = (
        dict(observation_space) if isinstance(observation_space, spaces.Dict) else {"obs": observation_space}
    )
    return spaces.Dict({**inner, ACTION_MASK: spaces.MultiBinary(size)})


def flat_mask(mask: Any) -> Array:
    """A mask as one int8 vector; Gymnasium's masks for MultiDiscrete are tuples, one array a component."""
    parts = mask if isinstance(mask, tuple | list) and len(mask) and np.ndim(mask[0]) else (mask,)
    return np.concatenate([np.asarray(part).ravel() for part in parts]).astype(np.int8)


def random_action(space: Space, source: Any = None) -> Any:
    """A random action that the mask in `source`, an observation or an info, allows if there is one."""
    if mask_size(space) is None or not isinstance(source, dict) or ACTION_MASK not in source:
        return space.sample()
    mask = flat_mask(source[ACTION_MASK])
    if isinstance(space, spaces.MultiDiscrete):
        return space.sample(mask=tuple(split_mask(mask, space)))
    return space.sample(mask=mask)


def split_mask(mask: Array, space: Space) -> list[Array]:
    """The part of a flat mask that belongs to each component of a MultiDiscrete."""
    sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.zeros(1, dtype=np.int64)
    return list(np.split(mask, np.cumsum(sizes)[:-1]))


def leaf_spaces(space: Space) -> dict[str, Space]:
    """The array spaces of an observation: its entries if it is a Dict, else itself under the empty key."""
    return dict(space) if isinstance(space, spaces.Dict) else {"": space}


def allocate(space: Space, num_envs: int, new: Callable[[tuple[int, ...], Any], Array] = np.zeros) -> Obs:
    """Storage for one element of `space` per env: the observation of a vector env."""
    if isinstance(space, spaces.Dict):
        return {key: new((num_envs, *(inner.shape or ())), inner.dtype) for key, inner in space.items()}
    return new((num_envs, *(space.shape or ())), space.dtype)


@overload
def take(obs: Obs, rows: Array) -> Obs: ...
@overload
def take(obs: TensorObs, rows: Tensor) -> TensorObs: ...
def take(obs: Any, rows: Any) -> Any:
    """A copy of some rows, by their indices or a flag a row."""
    if isinstance(obs, dict):
        return {key: value[rows] for key, value in obs.items()}
    return obs[rows]


def arrays(obs: Obs) -> list[Array]:
    """The arrays of an observation, in a fixed order."""
    return [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]
