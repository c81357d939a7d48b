"""What is wrong with an env, in words: against the Gymnasium API and against what training needs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_training.envs.backends import Env
from rl_training.envs.check_spaces import Report, check_spaces
from rl_training.envs.spaces import Space, flat_mask, mask_size, random_action, split_mask
from rl_training.types import ACTION_MASK

STEPS = 12
SEED = 1


def check_env(env: Env) -> list[str]:
    """Every finding as one sentence that starts with `error: ` or `warning: `; never raises."""
    return examine(env).findings


def examine(env: Any) -> Report:
    """Play a few steps twice with the same seed, and look at everything that comes back."""
    report = Report()
    if not isinstance(env, gymnasium.Env):
        report.error(f"{type(env).__name__} is not a gymnasium.Env")
        return report
    try:
        check_spaces(env, report)
        _check_time_limit(env, report)
        if not report.errors:
            first = _play(env, report)
            second = _play(env, report) if first is not None and not report.errors else None
            if first is not None and second is not None:
                _compare(first, second, report)
    except Exception as error:
        report.error(f"checking the env raised {type(error).__name__}: {error}")
    return report


def _check_time_limit(env: Env, report: Report) -> None:
    layer: Any = env
    while layer is not None:
        if isinstance(layer, TimeLimit):
            return
        layer = getattr(layer, "env", None)
    if getattr(env.spec, "max_episode_steps", None) is None:
        report.warning(
            "no time limit is known; set env.max_episode_steps unless every episode ends by itself"
        )


def _play(env: Env, report: Report) -> list[Any] | None:
    """One seeded start and a few random steps, all checked; returns what was seen, None if that broke off."""
    actions: Space = copy.deepcopy(env.action_space)
    actions.seed(SEED)
    started = _attempt("reset(seed=…)", report, lambda: env.reset(seed=SEED))
    if started is None:
        _blame_core(env, None, report)
        return None
    if not _check_reset(env, started.value, report):
        return None
    obs, info = started.value
    seen = [copy.deepcopy(obs)]
    for _ in range(STEPS):
        action = random_action(actions, info if ACTION_MASK in info else obs)
        outcome = _attempt("step()", report, lambda action=action: env.step(action))
        if outcome is None:
            _blame_core(env, action, report)
            return None
        if not _check_step(env, outcome.value, report):
            return None
        obs, reward, terminated, truncated, info = outcome.value
        seen.append(copy.deepcopy((obs, reward, terminated, truncated)))
        if terminated or truncated:
            break
    return seen


def _blame_core(env: Env, action: Any, report: Report) -> None:
    """A wrapper that unpacks what the env itself returned raises about that: say what it was instead."""
    core = env.unwrapped
    if core is env:
        return
    inner = Report()
    try:
        started = core.reset(seed=SEED)
        if _has_reset_shape(started, inner) and action is not None:
            _has_step_shape(core.step(action), inner)
    except Exception:
        return  # the first finding stands
    if inner.findings:
        report.findings[-1:] = inner.findings


@dataclass(frozen=True)
class _Returned:
    value: Any


def _attempt(call: str, report: Report, function: Any) -> _Returned | None:
    try:
        return _Returned(function())
    except Exception as error:
        report.error(f"{call} raised {type(error).__name__}: {error}")
        return None


def _has_reset_shape(result: Any, report: Report) -> bool:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return True
    report.error(f"reset() returned {_outline(result)}; it must return (observation, info dict)")
    return False


def _has_step_shape(result: Any, report: Report) -> bool:
    if isinstance(result, tuple) and len(result) == 5:
        return True
    report.error(
        f"step() returned {_outline(result)}; "
        "it must return (observation, reward, terminated, truncated, info)"
    )
    return False


def _check_reset(env: Env, result: Any, report: Report) -> bool:
    if not _has_reset_shape(result, report):
        return False
    obs, info = result
    _check_observation(obs, env.observation_space, "reset()", report)
    report.masked = ACTION_MASK in info
    if report.masked:
        _check_mask(info[ACTION_MASK], env.action_space, "reset()", report)
    return not report.errors


def _check_step(env: Env, result: Any, report: Report) -> bool:
    if not _has_step_shape(result, report):
        return False
    obs, reward, terminated, truncated, info = result
    _check_observation(obs, env.observation_space, "step()", report)
    _check_reward(reward, report)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            report.error(f"step() returned {name}={flag!r} of type {type(flag).__name__}; it must be a bool")
    if not isinstance(info, dict):
        report.error(f"step() returned info of type {type(info).__name__}; it must be a dict")
    elif ACTION_MASK in info and not report.masked:
        report.error(
            f"step() gives info['{ACTION_MASK}'] but reset() does not; give it from the first observation on"
        )
    elif ACTION_MASK in info:
        _check_mask(info[ACTION_MASK], env.action_space, "step()", report)
    elif report.masked and not (terminated or truncated):
        report.warning(
            f"step() gave no info['{ACTION_MASK}'] although reset() did; every action is allowed then"
        )
    return not report.errors


def _check_reward(reward: Any, report: Report) -> None:
    if isinstance(reward, np.ndarray) and reward.ndim:
        report.error(f"step() returned a reward of shape {reward.shape}; it must be a single number")
        return
    try:
        value = float(reward)
    except (TypeError, ValueError):
        report.error(f"step() returned the reward {reward!r}; it must be a number")
        return
    if not np.isfinite(value):
        report.error(f"step() returned the reward {value}; it must be finite")


def _check_mask(mask: Any, space: Space, call: str, report: Report) -> None:
    size = mask_size(space)
    if size is None:
        report.error(f"{call} gives info['{ACTION_MASK}'], which needs Discrete or MultiDiscrete actions")
        return
    values = flat_mask(mask)
    if values.shape != (size,):
        report.error(
            f"info['{ACTION_MASK}'] from {call} has {values.size} entries; the action space needs {size}"
        )
        return
    parts = [values] if isinstance(space, spaces.Discrete) else split_mask(values, space)
    if not all(part.any() for part in parts):
        report.error(f"info['{ACTION_MASK}'] from {call} allows no action at all")


def _check_observation(obs: Any, space: Space, call: str, report: Report, name: str = "observation") -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict):
            report.error(f"{name} from {call} is a {type(obs).__name__}; the space is a Dict")
        elif missing := sorted(set(space) ^ set(obs)):
            report.error(
                f"{name} from {call} and its space differ in the keys {', '.join(map(repr, missing))}"
            )
        else:
            for key, inner in space.items():
                _check_observation(obs[key], inner, call, report, f"{name}[{key!r}]")
        return
    where = f"{name} from {call}"
    try:
        value = np.asarray(obs)
    except ValueError:
        report.error(f"{where} is not an array")
        return
    if value.shape != (space.shape or ()):
        report.error(f"{where} has shape {value.shape}; the space says {space.shape}")
    elif not np.can_cast(value.dtype, np.dtype(space.dtype), casting="same_kind"):
        report.error(f"{where} has dtype {value.dtype}; the space says {space.dtype}")
    elif np.issubdtype(value.dtype, np.floating) and np.isnan(value).any():
        report.error(f"{where} holds NaN")
    elif isinstance(space, spaces.Box) and ((value < space.low) | (value > space.high)).any():
        report.warning(f"{where} lies outside its space: {_outside(value, space)}")
    elif not isinstance(space, spaces.Box) and not space.contains(value.astype(space.dtype)[()]):
        report.error(f"{where} lies outside its space: {value} is not in {space}")
    elif value.dtype != space.dtype and isinstance(space, spaces.Box):
        report.warning(f"{where} has dtype {value.dtype}; it is cast to the space's {space.dtype}")


def _outside(value: Any, space: spaces.Box) -> str:
    index = np.unravel_index(int(np.argmax((value < space.low) | (value > space.high))), value.shape)
    place = f" at index {tuple(map(int, index))}" if index else ""
    return f"{value[index]} is not within [{space.low[index]}, {space.high[index]}]{place}"


def _compare(first: list[Any], second: list[Any], report: Report) -> None:
    for t, (a, b) in enumerate(zip(first, second, strict=False)):
        if not _same(a, b):
            what = "reset(seed=…)" if t == 0 else f"step {t}"
            report.warning(
                f"the same seed and actions gave something else the second time (from {what} on): "
                "call super().reset(seed=seed) in reset() and draw from self.np_random, or runs with it "
                "cannot be reproduced"
            )
            return


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return np.array_equal(np.asarray(a), np.asarray(b))


def _outline(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} items ({', '.join(type(item).__name__ for item in result)})"
    return f"a {type(result).__name__}"
