"""A policy whose numbers can be read off its observations, and an env that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training import TrainConfig
from rl_training.envs import make_vector_env
from rl_training.envs.vector import VectorEnv
from rl_training.types import PolicyOutput


class Count(gymnasium.Env[Any, Any]):
    """Shows [steps, length] and pays the steps taken; `lengths` gives an episode's length from its seed."""

    def __init__(
        self, length: int = 3, ending: str = "truncated", lengths: Callable[[int], int] | None = None
    ) -> None:
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.ending, self.lengths = length, ending, lengths
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        if self.lengths is not None and seed is not None:
            self.length = self.lengths(seed)
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps >= self.length
        terminated, truncated = (over, False) if self.ending == "terminated" else (False, over)
        return self._show(), float(self.steps), terminated, truncated, {}

    def _show(self) -> Any:
        return np.array([self.steps, self.length], np.float32)


class Reader(nn.Module):
    """Values are ten times the first number of the observation; its state counts the steps of an episode."""

    normalizer = None

    def __init__(self, stateful: bool = False) -> None:
        super().__init__()
        self.stateful = stateful
        self.seen: list[Tensor] = []
        self.modes: list[bool] = []

    def act(
        self, obs: Any, state: Any = None, deterministic: bool = False, generator: Any = None
    ) -> PolicyOutput:
        self.modes.append(self.training)
        if state is not None:
            self.seen.append(state["age"].clone())
            state = {"age": state["age"] + 1}
        rows = len(obs)
        actions = torch.zeros(rows, dtype=torch.int64)
        if not deterministic:
            actions = torch.randint(0, 2, (rows,), generator=generator)
        return PolicyOutput(actions, torch.zeros(rows), self.values(obs), state)

    def values(self, obs: Any, state: Any = None) -> Tensor:
        return obs[:, 0] * 10.0

    def env_actions(self, actions: Tensor) -> Tensor:
        return actions

    def initial_state(self, num_envs: int) -> Any:
        return {"age": torch.zeros(num_envs)} if self.stateful else None

    def reset_state(self, state: Any, ended: Tensor) -> Any:
        return {"age": torch.where(ended, 0.0, state["age"])}


def count_envs(num_envs: int = 2, seed: int = 0, **options: Any) -> VectorEnv:
    config = TrainConfig(algo="ppo", env_id="count", seed=seed)
    return make_vector_env(config, num_envs, env=lambda: Count(**options))
