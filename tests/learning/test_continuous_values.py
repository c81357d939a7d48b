"""Continuous critics converge to values that can be worked out; a time limit ends nothing.

One state, reward 1 - a², and a limit of four steps. With discount γ the best action is 0 for ever, so that
Q*(a) = 1 - a² + γ / (1 - γ). With temperature α (SAC) the value of the state is the soft one,
V = (1 + α log ∫ exp(-a²/α) da) / (1 - γ), and Q(a) = 1 - a² + γ V.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import registry
from rl_training.data.samplers import UniformSampler
from rl_training.types import TransitionBatch

GAMMA, ALPHA = 0.6, 0.02
ACTIONS = torch.linspace(-0.8, 0.8, 9)


class Still(gymnasium.Env[Any, Any]):
    """The state never changes, and pays most for doing nothing."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.ones(1, np.float32), 1.0 - float(action[0]) ** 2, False, self.steps >= 4, {}


def learned(algo: str, folder: Path) -> np.ndarray:
    """Q of the actions, the lowest critic's."""
    soft = {"learn_temperature": False, "temperature": ALPHA} if algo != "td3" else {"target_noise": 0.0}
    agent = (
        registry.algorithm(algo)
        .cls(
            algo=algo,
            env=Still,
            seed=1,
            num_envs=4,
            total_timesteps=1_600,
            output_dir=str(folder),
            network={"hidden": (32, 32)},
            evaluation={"every_steps": 0},
            logging={"tensorboard": False},
            hyperparams={
                "gamma": GAMMA,
                "learning_starts": 800,
                "train_every": 4,
                "gradient_steps": 4,
                "batch_size": 64,
                "learning_rate": 5e-3,
                "learning_rate_schedule": "linear",
                "tau": 0.05,
                **soft,
            },
        )
        .learn()
    )
    rows = torch.stack([torch.ones_like(ACTIONS), ACTIONS], dim=1)
    with torch.no_grad():
        values: np.ndarray = agent.critics(rows).mean(-1).amin(0).numpy()
    return values


def analytic(algo: str) -> np.ndarray:
    value = 1.0 / (1.0 - GAMMA)
    if algo != "td3":
        grid = torch.linspace(-1.0, 1.0, 20_001, dtype=torch.float64)
        integral = torch.trapezoid(torch.exp(-grid.square() / ALPHA), grid)
        value = (1.0 + ALPHA * math.log(float(integral))) / (1.0 - GAMMA)
    values: np.ndarray = (1.0 - ACTIONS.square() + GAMMA * value).numpy()
    return values


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_values_are_the_analytic_ones(algo: str, tmp_path: Path) -> None:
    np.testing.assert_allclose(learned(algo, tmp_path), analytic(algo), atol=0.12)


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_they_are_not_when_a_time_limit_counts_as_the_end(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = UniformSampler.gather

    def confused(self: UniformSampler, index: torch.Tensor, *rest: Any) -> TransitionBatch:
        batch = gather(self, index, *rest)
        return replace(batch, discount=batch.discount * ~self.buffer.take("truncated", index))

    monkeypatch.setattr(UniformSampler, "gather", confused)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(learned(algo, tmp_path), analytic(algo), atol=0.3)
