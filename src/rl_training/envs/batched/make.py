"""From an id to a vector env on a device; what is wrong with an env is said before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.envs.backends import describe_failure
from rl_training.envs.batched.check import examine_batched
from rl_training.envs.batched.env import BatchedEnv, Registered, find_batched
from rl_training.envs.batched.vector import BatchedVectorEnv
from rl_training.envs.registered import refused_argument, unknown_kwarg
from rl_training.errors import AxiomError, EnvError


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
    return BatchedVectorEnv(env, num_envs, seed=seed, time_limit=limit, env_id=entry.id)


def batched_findings(env_id: str, env_kwargs: Mapping[str, Any]) -> list[str]:
    """What `check-env` says of an env: sentences that start with `error: ` or `warning: `."""
    entry = find_batched(env_id)
    problems = examine_batched(make_batched(entry, env_kwargs, torch.device("cpu")))
    limit = "warning: no time limit is known; register it with max_episode_steps unless every episode ends"
    return [*(f"error: {text}" for text in problems), *([limit] if entry.max_episode_steps is None else [])]


def make_batched(entry: Registered, env_kwargs: Mapping[str, Any], device: torch.device) -> BatchedEnv:
    """The env; why it cannot be made is an error that says so."""
    try:
        env = entry.make(device, **env_kwargs)
    except AxiomError:
        raise
    except Exception as error:
        if key := refused_argument(error, env_kwargs):
            raise EnvError(unknown_kwarg(f"the batched {entry.id}", key, entry.make, "device")) from error
        raise EnvError(describe_failure(f"making the batched env {entry.id}", error)) from error
    if not isinstance(getattr(env, "device", None), torch.device):
        own = f"{entry.make.__name__}.__init__"
        raise EnvError(
            f"the batched env {entry.id} has no device: {own} must call super().__init__(device), "
            "with the device that it is given"
        )
    return env
