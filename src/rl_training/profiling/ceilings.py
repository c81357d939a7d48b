"""What training could reach at most: its envs without a policy, and its updates without envs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.envs import make_vector_env
from rl_training.envs.batched.vector import BatchedVectorEnv
from rl_training.envs.spaces import random_action
from rl_training.envs.vector import VectorEnv
from rl_training.profiling.bench import Bench
from rl_training.runtime.on_policy import OnPolicyTrainer
from rl_training.runtime.stopwatch import updating
from rl_training.types import ACTION_MASK, Array, Obs

BANK = 64
"""Sets of random actions that are drawn beforehand and taken in turn."""
WARM_UP = 10
SLICES = 5
"""A ceiling is the fastest of so many slices of time: whatever else ran on the machine does not lower it."""


@dataclass(frozen=True, slots=True)
class UpdateSpeed:
    """Updates alone, and the env steps that they would keep up with."""

    updates_per_second: float
    steps_per_second: float
    steps_per_update: float


def env_speed(bench: Bench, seconds: float) -> float:
    """Steps a second of the same vector env with random actions and nothing else; only `step` is timed."""
    config, device = bench.config, bench.device
    seed = config.seed + 1  # not the episodes of training
    with make_vector_env(config, config.num_envs, seed=seed, device=device) as envs, bench.settings():
        step = _tensor_step(envs) if _stays_on_device(bench, envs) else _host_step(envs)
        for _ in range(WARM_UP):
            step()
        bench.synchronize()
        return max(_env_slice(bench, step, envs.num_envs, seconds / SLICES) for _ in range(SLICES))


def _env_slice(bench: Bench, step: Callable[[], float], num_envs: int, seconds: float) -> float:
    spent, steps, end = 0.0, 0, perf_counter() + seconds
    while True:
        spent += step()
        steps += num_envs
        if perf_counter() >= end:
            break
    before = perf_counter()
    bench.synchronize()
    return steps / (spent + perf_counter() - before)


def update_speed(
    bench: Bench, per_iteration: float, steps_per_iteration: float, seconds: float
) -> UpdateSpeed:
    """Updates on one batch again and again, in the proportion to env steps that training had.

    The networks are of no use afterwards.
    """
    trainer, update = bench.trainer, getattr(*updating(bench.trainer))
    with bench.settings():
        batch = trainer.batch()
        first = _before_epochs(trainer)
        count = max(1, round(per_iteration))
        update(batch)
        bench.synchronize()

        def iterations_per_second() -> float:
            begin, iterations = perf_counter(), 0
            while True:
                first()
                for _ in range(count):
                    update(batch)
                iterations += 1
                if perf_counter() - begin >= seconds / SLICES:
                    break
            bench.synchronize()
            return iterations / (perf_counter() - begin)

        rate = max(iterations_per_second() for _ in range(SLICES))
    steps = steps_per_iteration * count / max(per_iteration, 1e-9)
    return UpdateSpeed(rate * count, rate * steps, steps / count)


def _before_epochs(trainer: Any) -> Callable[[], Any]:
    """What an algorithm does once a rollout besides its updates, if it does anything."""
    algorithm = trainer.algorithm
    default = OnPolicyAlgorithm.before_epochs
    if not isinstance(trainer, OnPolicyTrainer) or type(algorithm).before_epochs is default:
        return lambda: None
    rollout = trainer.buffer.whole()
    return lambda: algorithm.before_epochs(rollout)


def _stays_on_device(bench: Bench, envs: VectorEnv) -> bool:
    return isinstance(envs, BatchedVectorEnv) and bench.trainer.collector.stepping.tensors


def _host_step(envs: VectorEnv) -> Callable[[], float]:
    """A step that answers how long it took, the choice of actions not counted."""
    space = envs.spec.action_space
    space.seed(0)
    obs: Obs = envs.reset()
    masked = isinstance(obs, dict) and ACTION_MASK in obs
    bank = [] if masked else [_actions(envs, obs) for _ in range(BANK)]
    turn = 0

    def step() -> float:
        nonlocal obs, turn
        actions = _actions(envs, obs) if masked else bank[turn]
        turn = (turn + 1) % BANK
        begin = perf_counter()
        obs = envs.step(actions).obs
        return perf_counter() - begin

    return step


def _tensor_step(envs: Any) -> Callable[[], float]:
    """The same for envs that are tensors; what is launched is waited for at the end."""
    obs = envs.reset()
    bank = [torch.as_tensor(_actions(envs, obs)).to(envs.device) for _ in range(BANK)]
    turn = 0

    def step() -> float:
        nonlocal turn
        turn = (turn + 1) % BANK
        begin = perf_counter()
        with torch.inference_mode():
            envs.step_tensors(bank[turn])
        return perf_counter() - begin

    return step


def _actions(envs: VectorEnv, obs: Obs) -> Array:
    """A random action for every env, allowed ones where there are masks."""
    space = envs.spec.action_space
    rows = [
        {ACTION_MASK: obs[ACTION_MASK][i]} if isinstance(obs, dict) and ACTION_MASK in obs else None
        for i in range(envs.num_envs)
    ]
    return np.stack([random_action(space, row) for row in rows])
