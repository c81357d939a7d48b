"""Drift: tasks, hyperparameters and protocols that are not what a preset or a manifest laid down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest
import yaml
from zoo_runs import metadata, write_run, write_seeds

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig, leaves, to_dict
from rl_training.experiment.layers import (
    Layer,
    file_layers,
    keyword_layer,
    preset_differences,
    preset_layers,
    resolve_layers,
)
from rl_training.zoo import scan as scanning
from rl_training.zoo.configs import OPEN
from rl_training.zoo.drift import drift_of
from rl_training.zoo.groups import group_runs
from rl_training.zoo.scan import scan
from rl_training.zoo.sources import runs_of

PRESET = "ppo/cartpole"


def resolved(*layers: Layer) -> TrainConfig:
    return resolve_layers([*preset_layers(PRESET), *layers]).config


def write(folder: Path, config: TrainConfig, *, noted: bool = True, **more: Any) -> Path:
    """A run directory as training would leave it; without the note, as older versions did."""
    data = metadata() | {"preset": PRESET, "resumes": []} | more
    if noted:
        data["preset_differences"] = preset_differences(config, PRESET)
    return write_run(folder, config=to_dict(config), metadata=data)


def drift(folder: Path) -> list[str]:
    (run,) = scan([folder]).runs
    return [str(change) for change in drift_of(run)]


def from_file(folder: Path, values: Mapping[str, Any]) -> TrainConfig:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"preset": PRESET, **values}))
    return resolve_layers(file_layers(path)).config


# From the preset


@pytest.mark.parametrize("noted", [True, False])
def test_a_faithful_run_has_no_drift_whatever_is_free(tmp_path: Path, noted: bool) -> None:
    free = {
        "seed": 3, "output_dir": "x", "tags": ["a"], "device": "cpu", "threads": 2,
        "env": {"backend": "sync"},
        "logging": {"every_steps": 7}, "checkpoint": {"every_steps": 9}, "evaluation": {"num_envs": 2},
    }  # fmt: skip
    write(tmp_path, resolved(Layer("test", free)), noted=noted)
    assert drift(tmp_path) == []


def test_what_a_preset_names_and_an_older_version_did_not_know_is_flagged(tmp_path: Path) -> None:
    values = to_dict(resolved())
    del values["hyperparams"]["gae_lambda"]
    write_run(tmp_path, config=values, metadata=metadata() | {"preset": PRESET, "resumes": []})
    assert drift(tmp_path) == ["hyperparams.gae_lambda: the default instead of 0.8"]


@pytest.mark.parametrize("noted", [True, False])
def test_another_task_is_flagged(tmp_path: Path, noted: bool) -> None:
    other = resolved(Layer("test", {"env_kwargs": {"sutton_barto_reward": True, "x": None}}))
    write(tmp_path, other, noted=noted)
    assert drift(tmp_path) == [
        "env_kwargs.sutton_barto_reward: true instead of the default",
        "env_kwargs.x: null instead of the default",
    ]


def test_hyperparameters_beyond_the_preset_are_flagged_wherever_they_were_set(tmp_path: Path) -> None:
    """In a file on top of the preset, and in Python: neither is in the command."""
    write(tmp_path / "file", from_file(tmp_path, {"hyperparams": {"vf_coef": 9.0}}))
    assert drift(tmp_path / "file") == ["hyperparams.vf_coef: 9 instead of 0.5"]
    write(tmp_path / "python", resolved(keyword_layer({"vf_coef": 9.0, "gamma": 0.5}, "ppo")))
    assert drift(tmp_path / "python") == [
        "hyperparams.gamma: 0.5 instead of 0.98",
        "hyperparams.vf_coef: 9 instead of 0.5",
    ]


def test_the_command_line_of_a_run_that_noted_its_differences_is_not_guessed_at(tmp_path: Path) -> None:
    words = ["axiomrl", "train", "--hyperparams.vf-coef=0.5"]  # which is the default
    write(tmp_path / "new", resolved(), command=words)
    write(tmp_path / "old", resolved(), noted=False, command=words)
    assert drift(tmp_path / "new") == []
    assert drift(tmp_path / "old") == ["hyperparams.vf_coef: 0.5 instead of the default"]


def test_what_was_noted_holds_where_the_preset_or_the_config_is_lost(tmp_path: Path) -> None:
    note = [{"key": "hyperparams.gamma", "preset": 0.98, "run": 0.5}, {"key": "seed", "preset": 0, "run": 1}]
    data = {"preset_differences": note, "resumes": []}
    write_run(tmp_path / "gone", metadata=metadata() | data | {"preset": "of/another-version"})
    write_run(tmp_path / "torn", metadata=metadata() | data, config=None)
    for folder in ("gone", "torn"):
        assert drift(tmp_path / folder) == ["hyperparams.gamma: 0.5 instead of 0.98"]


@pytest.mark.parametrize("note", [None, "x", 3, [None, 4, {"preset": 1}], {}])
def test_a_note_that_makes_no_sense_is_survived(tmp_path: Path, note: Any) -> None:
    data = metadata() | {"preset": PRESET, "resumes": [], "preset_differences": note}
    write_run(tmp_path, config=to_dict(resolved()), metadata=data)
    assert drift(tmp_path) == []


def test_open_sections_are_those_that_take_any_key() -> None:
    hints = get_type_hints(TrainConfig)
    top = [f.name for f in fields(TrainConfig) if get_origin(hints[f.name]) is dict]
    assert list(OPEN) == top
    for path, field, owner in leaves(TrainConfig):
        assert len(path) == 1 or get_origin(get_type_hints(owner)[field.name]) is not dict


def test_runs_with_and_without_a_key_of_the_env_are_told_apart(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [1.0], env_kwargs={})
    write_seeds(tmp_path / "b", [2.0], env_kwargs={"g": 9.8})
    (group,) = group_runs(scan([tmp_path]).runs)
    assert group.mixed == {"env_kwargs.g": ["9.8", "\u2013"]}


# From the manifest


def suite(folder: Path, config: TrainConfig, **more: Any) -> Path:
    """A run where `zoo run` puts it, below a manifest that asks for this configuration."""
    run = write(folder / "ppo-cartpole" / "seed7", config)
    data = {
        "episodes": 2, "checkpoint": "latest", "runs": [{"name": PRESET, "preset": PRESET, "seed": 7}],
        "configs": {PRESET: {k: v for k, v in to_dict(config).items() if k != "seed"}}, "overrides": {},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(data | more))
    return run


def test_what_the_suite_lays_down_is_no_drift_below_its_manifest(tmp_path: Path) -> None:
    config = resolved(Layer("suite", {"total_timesteps": 20_000, "hyperparams": {"gamma": 0.9}}))
    run = suite(tmp_path, config)
    assert drift(tmp_path) == [
        "total_timesteps: 20000 instead of 100000",
        "hyperparams.gamma: 0.9 instead of 0.98",
    ]
    suite_values = {"total_timesteps": 20_000, "hyperparams.gamma": 0.9}
    data = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(data | {"overrides": {PRESET: suite_values}}))
    for path in (tmp_path, tmp_path / "ppo-cartpole", run):
        assert drift(path) == []


def test_a_run_that_differs_from_its_manifest_is_flagged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = suite(tmp_path, resolved(Layer("suite", {"total_timesteps": 20_000})), overrides={
        PRESET: {"total_timesteps": 20_000}
    })  # fmt: skip
    changed = resolved(Layer("x", {"total_timesteps": 30_000, "env_kwargs": {"g": 1}, "device": "cpu"}))
    (run / "config.yaml").write_text(yaml.safe_dump(to_dict(changed)))
    assert drift(tmp_path) == [
        "total_timesteps: 30000 instead of 20000",
        "env_kwargs.g: 1 instead of the default",
    ]
    assert main(["report", str(tmp_path)]) == 0
    assert "1 of 1: env_kwargs.g, total_timesteps" in capsys.readouterr().out
    assert main(["leaderboard", str(tmp_path), "--min-seeds", "1"]) == 0
    assert "drift in 1 of 1" in capsys.readouterr().out


def test_a_run_judged_otherwise_than_its_manifest_says_is_flagged(tmp_path: Path) -> None:
    run = suite(tmp_path, resolved(), episodes=100)
    assert drift(tmp_path) == ["judged.episodes: 2 instead of 100"]  # the newest evaluation in training
    judged = {
        "return_mean": 1.0, "num_episodes": 100, "returns": [1.0] * 100,
        "checkpoint": f"{run}/checkpoints/step_4000", "which": "latest",
    }  # fmt: skip
    (run.parent / "evaluation.json").write_text(json.dumps(judged))
    assert drift(tmp_path) == []
    (run.parent / "evaluation.json").unlink()
    status = metadata() | {"status": "running", "resumes": [], "preset": PRESET}
    (run / "metadata.json").write_text(json.dumps(status))
    assert drift(tmp_path) == []  # it has not been judged yet


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"configs": 3}', '{"configs": {"ppo/cartpole": 3}, "runs": [3, {}]}']
)
def test_a_manifest_that_lays_down_nothing_changes_nothing(tmp_path: Path, content: str) -> None:
    suite(tmp_path, resolved(keyword_layer({"gamma": 0.5}, "ppo")))
    (tmp_path / "manifest.json").write_text(content)
    assert drift(tmp_path) == ["hyperparams.gamma: 0.5 instead of 0.98"]


def test_seeds_that_a_later_command_did_not_ask_for_are_still_what_the_suite_lays_down(
    tmp_path: Path,
) -> None:
    config = resolved(keyword_layer({"gamma": 0.5}, "ppo"))
    granted = {PRESET: {"hyperparams.gamma": 0.5}}
    suite(tmp_path, config, runs=[{"name": PRESET, "seed": 8}], overrides=granted)
    assert drift(tmp_path) == []
    suite(tmp_path / "x", config, runs=[{"name": "ppo/pendulum", "seed": 7}], configs={}, overrides=granted)
    assert drift(tmp_path / "x") == ["hyperparams.gamma: 0.5 instead of 0.98"]  # of another manifest


def test_a_manifest_shows_the_drift_that_its_runs_show(tmp_path: Path) -> None:
    config = resolved(keyword_layer({"gamma": 0.5}, "ppo"))
    listed = {"name": PRESET, "preset": PRESET, "seed": 7, "return_mean": 1.0}
    suite(tmp_path, config, runs=[listed])
    (run,) = runs_of(tmp_path / "manifest.json")
    assert [str(change) for change in drift_of(run)] == drift(tmp_path)
    suite(tmp_path / "x", config, runs=[listed], overrides={PRESET: {"hyperparams.gamma": 0.5}})
    (run,) = runs_of(tmp_path / "x" / "manifest.json")
    assert drift_of(run) == ()


def test_the_index_notices_another_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "WORTH_INDEXING", 1)
    monkeypatch.setattr(scanning, "SETTLED_NS", 0)
    suite(tmp_path, resolved())
    assert [drift(tmp_path), drift(tmp_path)] == [[], []]
    other = to_dict(resolved(keyword_layer({"gamma": 0.5}, "ppo")))
    data = json.loads((tmp_path / "manifest.json").read_text()) | {"configs": {PRESET: other}}
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    os.utime(tmp_path / "manifest.json", ns=(1, 10**18))
    flagged = ["hyperparams.gamma: 0.98 instead of 0.5"]
    assert drift(tmp_path) == flagged
    assert scan([tmp_path]).indexed == 1
    assert drift(tmp_path) == flagged  # from the index
