"""Presets reach what they promise: one of them here, more of them with `--full`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rl_training


def test_cartpole_preset_is_solved_within_its_budget(tmp_path: Path) -> None:
    result = rl_training.train(
        preset="ppo/cartpole",
        seed=1,
        output_dir=str(tmp_path),
        stopping={"target_return": 500.0},
        logging={"tensorboard": False},
    )
    assert result.stop_reason is not None
    assert "reached the target" in result.stop_reason
    assert result.metrics["global_step"] <= 60_000
    assert rl_training.evaluate(result.run_dir, num_episodes=20)["return_mean"] >= 475


@pytest.mark.full
@pytest.mark.parametrize(
    ("preset", "episodes", "threshold"),
    [
        ("ppo/cartpole", 20, 475.0),
        ("ppo/pendulum", 100, -195.0),
        ("ppo/acrobot", 100, -90.0),
        *((f"{algo}/pendulum", 100, -170.0) for algo in ("sac", "td3", "tqc", "ddpg", "crossq", "redq")),
        ("sac/mountain-car-continuous", 20, 90.0),
    ],
)
def test_preset_over_five_seeds(preset: str, episodes: int, threshold: float, tmp_path: Path) -> None:
    means = []
    for seed in range(1, 6):
        result = rl_training.train(preset=preset, seed=seed, output_dir=str(tmp_path))
        evaluation = rl_training.evaluate(result.run_dir, which="latest", num_episodes=episodes)
        means.append(evaluation["return_mean"])
    assert np.mean(means) > threshold, means
