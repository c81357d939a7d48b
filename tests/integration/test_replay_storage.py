"""Runs whose replay buffer is a file, or holds stacks of frames: resumed, reported, refused in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.runtime import memory
from rl_training.runtime.callbacks import StepBudget


def config(output: Path, **hyperparams: Any) -> dict[str, Any]:
    return {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "total_timesteps": 240,
        "output_dir": str(output),
        "env": {"frame_stack": 3},
        "network": {"hidden": [8]},
        "hyperparams": {
            "buffer_size": 80, "batch_size": 8, "learning_starts": 20, "train_every": 4, "n_step": 2,
            "prioritized": True, **hyperparams,
        },
        "evaluation": {"every_steps": 0},
        "logging": {"every_steps": 60, "tensorboard": False},
    }  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_a_run_on_disk_goes_on_where_it_stopped_and_equals_one_in_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = rl_training.train(config(tmp_path / "memory"), progress=True)
    said = capfd.readouterr().err
    # 16 of the newest frame, 8 of action, 4 of reward, 3 flags, 4 each of generation and age, 1 of history
    assert "replay buffer: 80 transitions of 40 bytes, 3.2 kB in memory when full" in said
    resources = json.loads((whole.run_dir / "metadata.json").read_text())["resources"]
    assert resources["replay_buffer"] == {
        "transitions": 80, "bytes_per_transition": 40, "bytes": 3200, "storage": "device"
    }  # fmt: skip
    half = rl_training.train(config(tmp_path / "disk", buffer_storage="disk"), callbacks=StepBudget(120))
    assert [p.name for p in half.run_dir.iterdir() if "tmp" in p.name] == []
    rest = rl_training.resume(half.run_dir)
    states = [read_checkpoint(result.checkpoint_path).state for result in (whole, rest)]
    for component in ("policy", "buffer", "sampler", "optimizers"):
        if component in states[0]:
            assert same(states[0][component], states[1][component]), component
    assert states[0]["buffer"]["segments"][0]["obs"].shape[2:] == (1, 4)


def test_what_does_not_fit_is_refused_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: 2**20)
    too_large = config(tmp_path, buffer_size=100_000)
    with pytest.raises(ConfigError, match=r"hyperparams\.buffer_size: needs .* of memory, 0\.0 GiB are free"):
        rl_training.train(too_large)
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: memory.shutil._ntuple_diskusage(9, 9, 0))
    monkeypatch.setenv("HOME", str(tmp_path))
    space = rf"hyperparams\.buffer_size: needs .* of disk space in {tmp_path}/runs, .* are free"
    with pytest.raises(ConfigError, match=space):
        rl_training.train(config(Path("~/runs"), buffer_storage="disk"))
    assert not list(tmp_path.iterdir())
