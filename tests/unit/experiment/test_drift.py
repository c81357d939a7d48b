"""What may change between a checkpoint and its resume, what may not, and how it is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import registry
from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig, leaves, to_dict
from rl_training.experiment.drift import HARMLESS, NUMERIC, config_changes, drift_of, require_allowed
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.layers import Layer, resolve_layers
from rl_training.experiment.metadata import read_metadata, write_metadata

BASE = TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs={"sutton_barto_reward": True})
SMALL: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "total_timesteps": 64, "device": "cpu",
    "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1}, "network": {"hidden": [8]},
    "evaluation": {"every_steps": 0}, "logging": {"every_steps": 32, "tensorboard": False},
}  # fmt: skip


def effects(**changes: Any) -> dict[str, str]:
    resolved = resolve_layers([Layer("checkpoint", to_dict(BASE)), Layer("command line", changes)])
    return {change.key: change.effect for change in config_changes(BASE, resolved)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"seed": 0, "num_envs": 8}, {}),
        ({"total_timesteps": 5, "tags": ["x"], "output_dir": "o", "on_nan": "skip-update"},
         {"total_timesteps": "none", "tags": "none", "output_dir": "none", "on_nan": "none"}),
        ({"logging": {"every_steps": 7}, "checkpoint": {"keep_last": 9}, "evaluation": {"episodes": 3}},
         {"logging.every_steps": "none", "checkpoint.keep_last": "none", "evaluation.episodes": "none"}),
        ({"stopping": {"max_seconds": 5.0}}, {"stopping.max_seconds": "none"}),
        ({"threads": 2, "device": "cpu", "deterministic": False},
         {"threads": "numeric", "device": "numeric", "deterministic": "numeric"}),
        ({"env": {"backend": "async", "worker_timeout": 5}},
         {"env.backend": "none", "env.worker_timeout": "none"}),
        ({"env": {"backend": "native"}}, {"env.backend": "drift"}),
        ({"seed": 1, "num_envs": 4}, {"seed": "drift", "num_envs": "drift"}),
        ({"env_kwargs": {"sutton_barto_reward": False, "x": 1}},
         {"env_kwargs.sutton_barto_reward": "drift", "env_kwargs.x": "drift"}),
        ({"hyperparams": {"gamma": 0.9}, "network": {"hidden": [3]}, "env": {"clip_reward": 1.0}},
         {"hyperparams.gamma": "drift", "network.hidden": "drift", "env.clip_reward": "drift"}),
    ],
)  # fmt: skip
def test_effects(changes: dict[str, Any], expected: dict[str, str]) -> None:
    assert effects(**changes) == expected


def test_every_harmless_key_exists() -> None:
    known = {".".join(path[:n]) for path, _, _ in leaves(TrainConfig) for n in (1, 2, 3)}
    classes = {entry.cls.Hyperparams for entry in registry.algorithms().values()}
    known |= {f"hyperparams.{field.name}" for cls in classes for field in dataclasses.fields(cls)}
    assert set(HARMLESS) | set(NUMERIC) <= known


def test_a_refusal_names_key_values_and_place() -> None:
    layer = Layer("my.yaml", {"hyperparams": {"gamma": 0.9}, "seed": 3}, {("seed",): 7})
    changes = config_changes(BASE, resolve_layers([Layer("checkpoint", to_dict(BASE)), layer]))
    with pytest.raises(ConfigError) as caught:
        require_allowed(changes, allow_drift=False)
    assert caught.value.problems[:2] == ["seed: 0 → 3 (my.yaml:7)", "hyperparams.gamma: 0.99 → 0.9 (my.yaml)"]
    assert len(caught.value.problems) == 2
    assert "--allow-drift" in caught.value.__notes__[0]
    require_allowed(changes, allow_drift=True)
    require_allowed(changes, allow_drift=False, accepted=[change.record() for change in drift_of(changes)])
    other = [{**change.record(), "new": 0.8} for change in drift_of(changes)]
    with pytest.raises(ConfigError, match=r"gamma: 0\.99 → 0\.9"):
        require_allowed(changes, allow_drift=False, accepted=other)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return rl_training.train(SMALL, output_dir=str(tmp_path)).run_dir


def last_resume(run_dir: Path) -> dict[str, Any]:
    record: dict[str, Any] = read_metadata(run_dir)["resumes"][-1]
    return record


def test_drift_is_refused_then_allowed_recorded_and_not_asked_for_again(run_dir: Path) -> None:
    before = read_metadata(run_dir)
    with pytest.raises(ConfigError, match=r"hyperparams\.learning_rate: .* → 0\.5 \(keyword\)"):
        rl_training.resume(run_dir, total_timesteps=96, learning_rate=0.5)
    assert read_metadata(run_dir) == before  # nothing was touched
    rl_training.resume(run_dir, total_timesteps=96, learning_rate=0.5, allow_drift=True)
    record = last_resume(run_dir)
    assert record["grade"] == "drift"
    assert "hyperparams.learning_rate" in record["reason"]
    assert [(d["key"], d["new"], d["origin"]) for d in record["drift"]] == [
        ("hyperparams.learning_rate", 0.5, "keyword")
    ]
    assert [c["key"] for c in record["changed"]] == ["total_timesteps"]
    rl_training.resume(run_dir, total_timesteps=128)  # the checkpoint has the new value now
    assert (last_resume(run_dir)["grade"], last_resume(run_dir)["drift"]) == ("exact", [])


def test_a_run_killed_right_after_an_allowed_drift_goes_on_without_asking(run_dir: Path) -> None:
    class Die(rl_training.Callback):
        def on_train_start(self, trainer: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rl_training.resume(run_dir, total_timesteps=96, gamma=0.5, allow_drift=True, callbacks=Die())
    rl_training.resume(run_dir)
    assert last_resume(run_dir)["grade"] == "drift"
    assert last_resume(run_dir)["drift"][0]["key"] == "hyperparams.gamma"


def test_a_config_edited_by_hand_is_noticed_with_its_line(run_dir: Path) -> None:
    file = run_dir / "config.yaml"
    text = file.read_text()
    file.write_text(text.replace("num_envs: 2", "num_envs: 3", 1).replace("threads: 1", "threads: 2"))
    line = file.read_text().splitlines().index("num_envs: 3") + 1
    with pytest.raises(ConfigError, match=rf"num_envs: 2 → 3 \(.*config\.yaml:{line}\)"):
        rl_training.resume(run_dir, total_timesteps=96)
    file.write_text(text.replace("threads: 1", "threads: 2"))
    rl_training.resume(run_dir, total_timesteps=96)
    assert last_resume(run_dir)["grade"] == "numeric"
    assert "threads: 1 → 2" in last_resume(run_dir)["reason"]


def test_harmless_changes_leave_the_result_as_it_was(run_dir: Path, tmp_path: Path) -> None:
    rl_training.resume(
        run_dir, total_timesteps=128, tags=("x",), logging={"every_steps": 16}, env={"backend": "async"},
        checkpoint={"every_steps": 32, "keep_every": 64}, evaluation={"every_steps": 32, "episodes": 1},
    )  # fmt: skip
    assert last_resume(run_dir)["grade"] == "exact"
    whole = rl_training.train({**SMALL, "total_timesteps": 128}, output_dir=str(tmp_path / "whole"))
    ours = read_contents(run_dir / "checkpoints" / "step_128").fingerprint()
    theirs = read_contents(whole.checkpoint_path).fingerprint()
    assert ours["weights"] == theirs["weights"]
    assert {k for k in ours if ours[k] != theirs[k]} <= {"callbacks", "trainer", "envs"}


def test_what_does_not_fit_is_said_before_the_run_is_touched(run_dir: Path) -> None:
    before = (run_dir / "metadata.json").read_bytes()
    with pytest.raises(CheckpointError, match="do not fit"):
        rl_training.resume(run_dir, total_timesteps=96, network={"hidden": [9]}, allow_drift=True)
    assert (run_dir / "metadata.json").read_bytes() == before


def test_the_command_line_takes_the_same_overrides(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["resume", "--checkpoint", str(run_dir), "--total-timesteps", "96", "--hyperparams.gamma", "0.9"]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "hyperparams.gamma: 0.99 → 0.9 (command line)" in error
    assert "--allow-drift" in error
    assert main([*argv, "--allow-drift", "--logging.every-steps", "16"]) == 0
    error = capsys.readouterr().err
    assert "resuming at step 64: drift, the configuration was changed: hyperparams.gamma" in error
    assert "  logging.every_steps: 32 → 16 (command line)\n" in error
    assert main([*argv[:3], "--total-timesteps", "128", "--hyperparams.gama", "1"]) == 2
    assert "did you mean --hyperparams.gamma?" in capsys.readouterr().err


def test_another_machine_is_numeric_wherever_the_checkpoint_lies(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    copied = shutil.copytree(run_dir / "checkpoints" / "step_64", tmp_path / "copied")
    elsewhere = {"versions": {"torch": "9.9"}, "hardware": {"cpu": "another", "gpus": []}}
    monkeypatch.setattr("rl_training.experiment.run.surroundings", lambda: elsewhere)
    for path, where in ((run_dir, {}), (copied, {"output_dir": str(tmp_path / "new")})):
        result = rl_training.resume(path, total_timesteps=96, **where)
        assert last_resume(result.run_dir)["grade"] == "numeric"
        assert "→ 9.9" in last_resume(result.run_dir)["reason"]
        assert "→ another" in last_resume(result.run_dir)["reason"]
    rl_training.resume(run_dir, total_timesteps=128)  # from a checkpoint that was written here
    assert last_resume(run_dir)["grade"] == "exact"


def test_metadata_of_an_older_release_is_understood(run_dir: Path) -> None:
    metadata = read_metadata(run_dir)
    metadata["resumes"] = [{"at_utc": "", "step": 3, "grade": "exact", "reason": ""}]
    write_metadata(run_dir, metadata)
    with pytest.raises(ConfigError, match="gamma"):
        rl_training.resume(run_dir, total_timesteps=96, gamma=0.5)
    rl_training.resume(run_dir, total_timesteps=96)
    assert [r["grade"] for r in read_metadata(run_dir)["resumes"]] == ["exact", "exact"]
