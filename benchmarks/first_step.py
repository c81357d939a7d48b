"""An env whose first step ends the process, to see how long it takes to get there (`startup.py`)."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np


class FirstStep(gym.Env[Any, Any]):
    """Shaped like CartPole."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        os._exit(0)


gym.register("FirstStep-v0", FirstStep, max_episode_steps=500)
