"""Hindsight makes the difference where chance never finds the goal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training


def success_rate(preset: str, tmp_path: Path, episodes: int = 100, **overrides: Any) -> float:
    quiet = {"evaluation": {"every_steps": 0}, "logging": {"tensorboard": False}}
    result = rl_training.train(preset=preset, output_dir=str(tmp_path), **quiet, **overrides)
    played = rl_training.evaluate(result.run_dir, which="latest", num_episodes=episodes)
    rate: float = played["success_rate"]
    assert rate == np.mean(played["successes"])
    return rate


def test_hindsight_finds_the_goal_among_a_thousand_where_plain_replay_does_not(tmp_path: Path) -> None:
    smaller = {"seed": 11, "env_kwargs": {"n_bits": 10}, "total_timesteps": 4_000}
    assert success_rate("dqn/bit-flip", tmp_path, **smaller) >= 0.9
    assert success_rate("dqn/bit-flip", tmp_path, hyperparams={"her": "none"}, **smaller) <= 0.1


@pytest.mark.full
@pytest.mark.parametrize("preset", ["dqn/bit-flip", "sac/point-goal", "td3/point-goal"])
def test_preset_over_five_seeds(preset: str, tmp_path: Path) -> None:
    rates = [success_rate(preset, tmp_path, seed=seed) for seed in range(1, 6)]
    assert np.mean(rates) >= 0.9, rates
