"""Envs of which the eighth ends the process at its first step, to see how long it takes (`startup.py`).

A library that looks at an env before it trains makes one for that, and gets to that step with seven of eight.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np


class FirstStep(gym.Env[Any, Any]):
    """Shaped like CartPole."""

    made = 0
    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        type(self).made += 1
        self.number = self.made

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.number == 8:
            os._exit(0)
        return np.zeros(4, np.float32), 1.0, False, False, {}


gym.register("FirstStep-v0", FirstStep, max_episode_steps=500)
