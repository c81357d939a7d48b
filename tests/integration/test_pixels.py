"""Runs that learn from rendered pictures go on exactly where they stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rl_training
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.runtime.callbacks import StepBudget


def config(output: Path) -> dict[str, Any]:
    return {
        "preset": "drqv2/pendulum-pixels",
        "num_envs": 2,
        "total_timesteps": 120,
        "output_dir": str(output),
        "env": {"resize": [24, 24]},
        "network": {"hidden": [16]},
        "hyperparams": {"buffer_size": 80, "batch_size": 8, "learning_starts": 20, "train_every": 4},
        "evaluation": {"every_steps": 0},
        "logging": {"every_steps": 60, "tensorboard": False},
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor | np.ndarray):
        return bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b)))
    return bool(a == b)


def test_resume_from_pixels_equals_never_having_stopped(tmp_path: Path) -> None:
    whole = rl_training.train(config(tmp_path))
    half = rl_training.train(config(tmp_path), callbacks=StepBudget(64))
    rest = rl_training.resume(half.run_dir)
    metadata = json.loads((rest.run_dir / "metadata.json").read_text())
    assert metadata["resumes"][-1]["grade"] == "exact", metadata["resumes"]
    # 24 x 24 of the newest frame, 4 each of action, reward, generation and age, 3 flags, 1 of history
    assert metadata["resources"]["replay_buffer"]["bytes_per_transition"] == 24 * 24 + 16 + 3 + 1
    first, second = (read_checkpoint(result.checkpoint_path).state for result in (whole, rest))
    for component in first.keys() - {"clock", "callbacks"}:
        assert same(first[component], second[component]), component
    assert {"policy", "networks", "optimizers", "buffer", "envs"} <= first.keys()
