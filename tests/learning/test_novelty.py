"""A reward for novelty finds what chance does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

import rl_training

WAY = [1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1]
LENGTH = len(WAY)


class Stairs(gymnasium.Env[Any, Any]):
    """One of two actions climbs, another at each stair; the other falls to the bottom. The top alone pays.

    Chance climbs them once in 2²⁰ attempts, of which training makes some ten thousand.
    """

    tops = 0

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Discrete(LENGTH + 1)
        self.action_space = spaces.Discrete(2)
        self.stair = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.stair = self.steps = 0
        return self.stair, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.stair = self.stair + 1 if action == WAY[self.stair] else 0
        top = self.stair == LENGTH
        Stairs.tops += top
        return self.stair, float(top), top, self.steps == 3 * LENGTH, {}


def times_at_the_top(kind: str, seed: int, tmp_path: Path) -> int:
    Stairs.tops = 0
    rl_training.PPO(
        env=Stairs,
        seed=seed,
        total_timesteps=30_000,
        num_envs=8,
        num_steps=30,
        learning_rate=1e-3,
        ent_coef=0.01,
        intrinsic={"kind": kind, "update_steps": 8},
        evaluation={"every_steps": 0},
        logging={"tensorboard": False},
        output_dir=str(tmp_path),
    ).learn()
    return Stairs.tops


@pytest.mark.parametrize("seed", [1, 2])
def test_the_goal_is_found_with_novelty_and_not_without(seed: int, tmp_path: Path) -> None:
    assert times_at_the_top("none", seed, tmp_path) == 0
    assert times_at_the_top("rnd", seed, tmp_path) > 30
