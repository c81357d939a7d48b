"""Control from pictures alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import rl_training
from rl_training.algorithms import DrQv2

QUIET = {"evaluation": {"every_steps": 0}, "logging": {"tensorboard": False}}


def test_drqv2_points_at_what_it_sees(tmp_path: Path) -> None:
    agent = DrQv2(
        env_id="axiom/Spot-v0",
        output_dir=str(tmp_path),
        num_envs=8,
        total_timesteps=2_000,
        env={"pixels": True, "grayscale": True},
        network={"encoder": "drq_cnn_small", "hidden": [64, 64]},
        hyperparams={
            "buffer_size": 4_000, "batch_size": 64, "learning_starts": 400, "train_every": 8,
            "gradient_steps": 2, "learning_rate": 1e-3, "gamma": 0.5, "n_step": 1, "shift_pad": 1,
        },
        **QUIET,
    )  # fmt: skip
    before = agent.evaluate(num_episodes=20)["return_mean"]
    after = agent.learn().evaluate(num_episodes=20)["return_mean"]
    assert before < -4.0  # an answer in the middle is worth -16/3
    assert after > -1.0, after


@pytest.mark.full
def test_preset_swings_up_from_pixels(tmp_path: Path) -> None:
    result = rl_training.train(preset="drqv2/pendulum-pixels", seed=1, output_dir=str(tmp_path), **QUIET)
    assert rl_training.evaluate(result.run_dir, which="latest", num_episodes=20)["return_mean"] > -400
