"""Atari from the presets: what a short run leaves behind, with both backends and both families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from rl_training.experiment.presets import load_preset, preset_names
from rl_training.runtime.callbacks import StepBudget

pytest.importorskip("ale_py", reason="needs the extra: atari")

TINY: dict[str, Any] = {
    "num_envs": 2,
    "device": "cpu",
    "threads": 1,
    "evaluation": {"every_steps": 0},
    "logging": {"every_steps": 16, "tensorboard": False},
}


def train(preset: str, folder: Path, **changes: Any) -> Any:
    env = {"atari": {"threads": 1}, **changes.pop("env", {})}
    return rl_training.train(preset=preset, output_dir=str(folder), env=env, **{**TINY, **changes})


def test_ppo_trains_on_pixels_and_says_that_games_start_anew_after_a_resume(tmp_path: Path) -> None:
    hyperparams = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1}
    result = train("ppo/breakout", tmp_path, total_timesteps=64, hyperparams=hyperparams)
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert metadata["resume_grade"]["grade"] == "episode"
    assert "ale backend" in metadata["resume_grade"]["reason"]
    again = rl_training.resume(result.run_dir, total_timesteps=96)
    assert again.metrics["global_step"] == 96


def test_dqn_on_single_games_resumes_exactly(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "env": {"backend": "sync"},
        "hyperparams": {"learning_starts": 16, "buffer_size": 200, "batch_size": 8},
    }
    whole = train("dqn/breakout", tmp_path / "whole", total_timesteps=96, **changes)
    half = train("dqn/breakout", tmp_path / "half", total_timesteps=96, callbacks=[StepBudget(48)], **changes)
    metadata = json.loads((half.run_dir / "metadata.json").read_text())
    assert metadata["resume_grade"]["grade"] == "exact"
    rest = rl_training.resume(half.run_dir)
    expected = whole.algorithm.policy.state_dict()
    for name, weights in rest.algorithm.policy.state_dict().items():
        assert weights.equal(expected[name]), name
    assert not half.algorithm.policy.state_dict()[name].equal(weights)


def test_statistics_are_raw_games_whatever_the_learner_sees(tmp_path: Path) -> None:
    seen: dict[str, Any] = {"rewards": [], "terminated": 0.0}

    class Watch(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            seen["rewards"].append(trainer.buffer.steps("rewards").copy())
            seen["terminated"] += float(trainer.buffer.steps("dones").sum())
            seen["episodes"] = trainer.collector.statistics.count
            seen["returns"] = list(trainer.collector.statistics.returns)

    hyperparams = {"num_steps": 250, "num_minibatches": 1, "update_epochs": 1, "learning_rate": 1e-6}
    train("ppo/space-invaders", tmp_path, total_timesteps=1500, hyperparams=hyperparams, callbacks=[Watch()])
    rewards = np.concatenate(seen["rewards"])
    assert set(np.unique(rewards)) == {0.0, 1.0}  # invaders are worth 5 to 30 points
    assert seen["episodes"] >= 1
    assert seen["terminated"] > seen["episodes"]  # three lives a game
    assert max(seen["returns"]) > 20
    assert all(value % 5 == 0 for value in seen["returns"])


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "qr_dqn", "c51", "rainbow"])
def test_every_family_has_presets_for_the_six_games(algo: str) -> None:
    games = {"Pong", "Breakout", "SpaceInvaders", "Qbert", "Seaquest", "BeamRider"}
    found = {}
    for name in preset_names():
        data = load_preset(name).data
        if data["algo"] == algo and data["env_id"].startswith("ALE/"):
            found[data["env_id"]] = data["env"]
    assert set(found) == {f"ALE/{game}-v5" for game in games}
    for env in found.values():
        assert env["frame_stack"] == env["frame_skip"] == 4
        assert env["clip_reward"] == 1.0
        assert env["atari"]["preprocess"]


def test_videos_of_evaluations_are_kept_in_the_run(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra: video")
    pytest.importorskip("pygame", reason="needs the extra: classic")
    result = rl_training.train(
        preset="ppo/cartpole",
        total_timesteps=512,
        output_dir=str(tmp_path),
        evaluation={"every_steps": 256, "episodes": 2, "video": True},
        logging={"tensorboard": False},
    )
    videos = sorted(path.name for path in (result.run_dir / "videos").iterdir())
    assert videos == ["step_256.mp4", "step_512.mp4"]
    assert all(path.stat().st_size > 1000 for path in (result.run_dir / "videos").iterdir())
