"""Envs with goals, in the convention of Gymnasium-Robotics: what they must offer, and how they judge.

Observations are Dicts with `observation`, `achieved_goal` and `desired_goal`, and the env has
`compute_reward(achieved, desired, info)`. Where it also has `compute_terminated`, that decides which goals
end an episode. Both are asked about goals that were never set, long after the step, so `info` is empty.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.envs.backends import Env, describe_failure
from rl_training.envs.spaces import Space
from rl_training.envs.wrappers import FrameSkip, FrameStack, MapImages
from rl_training.errors import ConfigError
from rl_training.types import ACHIEVED_GOAL, DESIRED_GOAL, GoalTask

if TYPE_CHECKING:
    from rl_training.types import Array

KEYS = ("observation", ACHIEVED_GOAL, DESIRED_GOAL)
_KEY = "hyperparams.her"


def find_goal_task(env: Env) -> GoalTask:
    """The env's own judgement of goals, for many at once; a ConfigError says what it lacks."""
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    goals = _goal_space(env.observation_space, name)
    _refuse_changed_goals(env)
    if not env.has_wrapper_attr("compute_reward"):
        raise ConfigError(f"{_KEY}: env {name} has no compute_reward(achieved_goal, desired_goal, info)")
    reward = _for_rows(env.get_wrapper_attr("compute_reward"), goals, f"{name}: compute_reward()")
    if not env.has_wrapper_attr("compute_terminated"):
        return GoalTask(reward, None)
    try:
        ends = _for_rows(env.get_wrapper_attr("compute_terminated"), goals, f"{name}: compute_terminated()")
    except ConfigError as error:
        if isinstance(error.__cause__, NotImplementedError):  # declared by a base class and left at that
            return GoalTask(reward, None)
        raise
    return GoalTask(reward, ends)


def _goal_space(space: Space, name: str) -> Space:
    """The space of goals, if the observation has what it must."""
    keys = list(space) if isinstance(space, spaces.Dict) else []
    if missing := [key for key in KEYS if key not in keys]:
        found = f"a Dict of {', '.join(keys)}" if keys else f"a {type(space).__name__}"
        raise ConfigError(
            f"{_KEY}: env {name} has no goals: its observation is {found}, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )
    assert isinstance(space, spaces.Dict)
    achieved, desired = space[ACHIEVED_GOAL], space[DESIRED_GOAL]
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise ConfigError(
            f"{_KEY}: env {name}: {ACHIEVED_GOAL} ({achieved}) and {DESIRED_GOAL} ({desired}) differ in kind"
        )
    return achieved


def _refuse_changed_goals(env: Env) -> None:
    """The env judges goals and single steps as it made them itself."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, FrameSkip):
            raise ConfigError(f"{_KEY}: cannot be combined with env.frame_skip, which adds rewards up")
        if isinstance(layer, FrameStack):
            raise ConfigError(f"{_KEY}: cannot be combined with env.frame_stack, which stacks goals")
        if isinstance(layer, MapImages) and ACHIEVED_GOAL in layer.selected:
            raise ConfigError(f"{_KEY}: cannot be combined with env.grayscale or env.resize of goals")
        layer = layer.env


def _for_rows(function: Callable[..., Any], goals: Space, where: str) -> Callable[[Array, Array], Array]:
    """`function` for rows of goals: at once if it can do that, which is tried, else row by row."""

    def one_by_one(achieved: Array, desired: Array) -> Array:
        return np.array([np.asarray(function(a, d, {})) for a, d in zip(achieved, desired, strict=True)])

    def at_once(achieved: Array, desired: Array) -> Array:
        return np.asarray(function(achieved, desired, {}))

    goals = copy.deepcopy(goals)
    goals.seed(0)
    first, other = (np.asarray(goals.sample()) for _ in range(2))
    achieved, desired = np.stack([first, first, other]), np.stack([first, other, first])
    try:
        expected = one_by_one(achieved, desired)
    except Exception as error:
        raise ConfigError(f"{_KEY}: {describe_failure(where, error)}") from error
    if expected.shape != (3,):
        raise ConfigError(f"{_KEY}: {where} gave shape {expected.shape[1:]} for one goal, not a number")
    try:
        can_do_many = _alike(at_once(achieved, desired), expected)
    except Exception:  # it was written for single goals
        can_do_many = False
    return at_once if can_do_many else one_by_one


def _alike(one: Array, other: Array) -> bool:
    """Equal but for the last bits."""
    return one.shape == other.shape and np.allclose(one, other)
