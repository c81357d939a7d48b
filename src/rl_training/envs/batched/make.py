"""From an id to a vector env on a device; what is wrong with an env is said before the first step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.envs.backends import describe_failure
from rl_training.envs.batched.env import BatchedEnv, Registered, find_batched
from rl_training.envs.batched.random import env_keys
from rl_training.envs.batched.vector import BatchedVectorEnv
from rl_training.envs.check_spaces import Report, check_spaces
from rl_training.envs.registered import refused_argument, unknown_kwarg
from rl_training.envs.spaces import Space, leaf_spaces
from rl_training.errors import AxiomError, EnvError

ROWS = 3


def make_batched_vector_env(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    num_envs: int,
    max_episode_steps: int | None = None,
    *,
    seed: int,
    device: torch.device | str,
) -> BatchedVectorEnv:
    """`num_envs` copies on `device`; without a limit of the caller's episodes have the registered one."""
    entry = find_batched(env_id)
    env = make_batched(entry, env_kwargs, torch.device(device))
    if problems := examine_batched(env):
        raise EnvError("\n  - ".join([f"the batched env {env_id} cannot be trained on:", *problems]))
    limit = entry.max_episode_steps if max_episode_steps is None else max_episode_steps
    return BatchedVectorEnv(env, num_envs, seed=seed, time_limit=limit)


def batched_findings(env_id: str, env_kwargs: Mapping[str, Any]) -> list[str]:
    """What `check-env` says of an env: sentences that start with `error: ` or `warning: `."""
    entry = find_batched(env_id)
    problems = examine_batched(make_batched(entry, env_kwargs, torch.device("cpu")))
    limit = "warning: no time limit is known; register it with max_episode_steps unless every episode ends"
    return [*(f"error: {text}" for text in problems), *([limit] if entry.max_episode_steps is None else [])]


def make_batched(entry: Registered, env_kwargs: Mapping[str, Any], device: torch.device) -> BatchedEnv:
    """The env; why it cannot be made is an error that says so."""
    try:
        return entry.make(device, **env_kwargs)
    except AxiomError:
        raise
    except Exception as error:
        if key := refused_argument(error, env_kwargs):
            raise EnvError(unknown_kwarg(f"the batched {entry.id}", key, entry.make, "device")) from error
        raise EnvError(describe_failure(f"making the batched env {entry.id}", error)) from error


def examine_batched(env: BatchedEnv) -> list[str]:
    """Play one step of a few copies and say what does not fit; nothing where all does."""
    report = Report()
    check_spaces(env, report)
    if report.errors:
        return report.errors
    try:
        with torch.inference_mode():
            return list(dict.fromkeys(_problems(env)))
    except Exception as error:
        return [describe_failure("playing a step", error)]


def _problems(env: BatchedEnv) -> Iterator[str]:
    seeds = env_keys(1, ROWS, env.device)
    state = env.start(seeds)
    first = _described(state)
    yield from _misplaced("start() gives state", state, env)
    for key, rows in env.start(seeds[1:2]).items():
        if not torch.equal(rows, state[key][1:2]):
            yield f"start() gives another state[{key!r}] for the same seed: only the seed may decide"
    yield from _unlike("observe()", env.observe(state), env.observation_space)
    before = {key: rows.clone() for key, rows in state.items()}
    after, rewards, terminated = env.step(state, _actions(env.action_space, env.device))
    for key, rows in before.items():
        if not torch.equal(rows, state[key]):
            yield f"step() changes the state[{key!r}] it is given: it must make new tensors"
    if _described(after) != first:
        yield f"step() gives a state of {_described(after)}, start() one of {first}: they must be the same"
    yield from _misplaced("step() gives state", after, env)
    yield from _unlike("observe() after a step", env.observe(after), env.observation_space)
    if not rewards.is_floating_point() or rewards.shape != (ROWS,):
        yield f"step() gives rewards of {_shown(rewards)}: floats, one a copy, are needed"
    if terminated.dtype != torch.bool or terminated.shape != (ROWS,):
        yield f"step() gives terminated of {_shown(terminated)}: booleans, one a copy, are needed"


def _misplaced(what: str, state: Mapping[str, Tensor], env: BatchedEnv) -> Iterator[str]:
    for key, rows in state.items():
        if rows.dim() == 0 or len(rows) != ROWS:
            yield f"{what}[{key!r}] of shape {tuple(rows.shape)} for {ROWS} copies: one row each is needed"
        if rows.device.type != env.device.type:
            yield f"{what}[{key!r}] on {rows.device}, the env is on {env.device}: pass `device` on"


def _unlike(what: str, obs: Any, space: Space) -> Iterator[str]:
    parts = obs if isinstance(obs, dict) else {"": obs}
    wanted = leaf_spaces(space)
    if parts.keys() != wanted.keys():
        yield f"{what} gives {sorted(parts)}, the observation space has {sorted(wanted)}"
        return
    for key, part in parts.items():
        inner, name = wanted[key], f"{what}[{key!r}]" if key else what
        shape, dtype = (ROWS, *(inner.shape or ())), torch.from_numpy(np.zeros(1, inner.dtype)).dtype
        if tuple(part.shape) != shape or part.dtype != dtype:
            yield f"{name} gives {_shown(part)}, the observation space needs {_named(dtype)} of shape {shape}"
        elif part.is_floating_point() and not bool(part.isfinite().all()):
            yield f"{name} gives NaN or infinity"


def _actions(space: Space, device: torch.device) -> Tensor:
    space = copy.deepcopy(space)
    space.seed(1)
    return torch.as_tensor(np.stack([space.sample() for _ in range(ROWS)])).to(device)


def _described(state: Mapping[str, Tensor]) -> dict[str, str]:
    return {key: _shown(rows) for key, rows in state.items()}


def _shown(tensor: Tensor) -> str:
    return f"{_named(tensor.dtype)} {tuple(tensor.shape)}"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
