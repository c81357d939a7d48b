"""What the commands that run several seeds refuse, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main
from rl_training.experiment import yaml
from rl_training.experiment.config import to_dict
from rl_training.experiment.layers import Layer, preset_layers, resolve_layers
from rl_training.zoo import origin

PRESET = "ppo/cartpole"
SUITE = """
description: small
seeds: [1]
evaluation: {{episodes: 2}}
presets:
  ppo/cartpole: {{band: [10, 11], basis: aim, {more}}}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Callable[[], list[str]]) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_suite(more: str = "") -> str:
    Path("small.yaml").write_text(SUITE.format(more=more))
    return "small.yaml"


def refused(capsys: Capture, *words: str) -> str:
    """What a command says that must train nothing, by which it is refused."""
    capsys.readouterr()
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert not Path("calls").exists()
    return err


def write_run(folder: str, *command: str, **changes: Any) -> Path:
    """A run of the preset that has ended, with other values."""
    config = resolve_layers([*preset_layers(PRESET), Layer("test", {"seed": 1, **changes})]).config
    run = Path(folder, "ppo-cartpole", "seed1", "run")
    (run / "checkpoints" / "step_5").mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.dump(to_dict(config)))
    pointers = {"latest_checkpoint": "checkpoints/step_5", "seed": 1, "latest_metrics": {"elapsed_s": 1.0}}
    metadata = {"status": "completed", "command": ["axiomrl", "train", *command], **pointers}
    (run / "metadata.json").write_text(json.dumps(metadata))
    return run


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("stopping.max_seconds", {"stopping": {"max_seconds": 0.2}}),
        ("evaluation.episodes", {"evaluation": {"episodes": 3}}),
        ("precision", {"precision": "bf16"}),
        ("total_timesteps", {"total_timesteps": 7}),
        ("hyperparams.gamma", {"hyperparams": {"gamma": 0.5}}),
        ("seed", {"seed": 9}),
    ],
)
def test_a_run_with_other_settings_is_no_result(capsys: Capture, key: str, changes: dict[str, Any]) -> None:
    run = write_run("out", **changes)
    for verb in ("run", "verify"):
        said = refused(capsys, "zoo", verb, write_suite(), "--output-dir", "out")
        assert f"{run}: made with another {key}: " in said
        assert "give another --output-dir, or remove those runs" in said


def test_what_a_run_may_choose_does_not_make_it_another(calls: Callable[[], list[str]]) -> None:
    free = {"threads": 3, "logging": {"tensorboard": False}, "checkpoint": {"every_steps": 99}}
    write_run("out", **free, evaluation={"num_envs": 2})
    assert main(["zoo", "run", write_suite(), "--output-dir", "out", "--quiet"]) == 0
    assert calls() == ["eval 1"]


def test_a_run_that_began_with_other_weights_is_no_result(
    capsys: Capture, calls: Callable[[], list[str]]
) -> None:
    run = write_run("runs/ppo-cartpole", "--preset", PRESET, "--init-from", "a/b")
    words = ["train", "--preset", PRESET, "--seeds", "1", "--quiet"]
    assert f"{run}: made with --init-from a/b, not nothing" in refused(capsys, *words)
    assert f"{run}: made with --init-from a/b, not a/c" in refused(capsys, *words, "--init-from", "a/c")
    assert main([*words, "--init-from", str(Path("a/b").resolve())]) == 0
    assert calls() == ["eval 1"]


def test_an_empty_configuration_of_a_run_is_named(capsys: Capture) -> None:
    run = write_run("out")
    (run / "config.yaml").write_text("")
    said = refused(capsys, "zoo", "run", write_suite(), "--output-dir", "out")
    assert f"{run / 'config.yaml'}: algo: required, but not given" in said


def test_verify_does_not_judge_what_other_code_has_made(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, calls: Callable[[], list[str]]
) -> None:
    words = ["zoo", "verify", write_suite(), "--quiet"]
    assert main(words) == 0
    assert main(words) == 0
    done = calls()
    monkeypatch.setattr(origin, "git_state", lambda: {"commit": "d", "is_dirty": False})
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert "seed1/run" in err
    assert "made by other code: commit c, now d" in err
    assert "give another --output-dir, or remove them" in err
    assert out == ""
    monkeypatch.setattr(origin, "git_state", lambda: {"commit": "c", "is_dirty": True})
    assert main(words) == 2
    assert "made by other code: no uncommitted changes, now there are some" in capsys.readouterr().err
    monkeypatch.setattr(origin, "git_state", lambda: {"commit": "d", "is_dirty": False})
    assert main(["zoo", "run", "small.yaml", "--quiet"]) == 0  # whose results name their commits
    assert calls() == done == ["train 1", "eval 1"]
    assert main([*words, "--output-dir", "other"]) == 0
    assert calls() == done * 2
    capsys.readouterr()
    (run,) = Path("other").glob("*/*/run*")
    about = json.loads((run / "metadata.json").read_text())
    (run / "metadata.json").write_text(json.dumps({**about, "git": {"commit": "d", "is_dirty": True}}))
    assert main([*words, "--output-dir", "other"]) == 0
    assert (
        "warning: 1 of the runs that are there were made with uncommitted changes" in capsys.readouterr().err
    )


def test_places_that_cannot_be_written_are_found_before_training(capsys: Capture) -> None:
    Path("file").touch()
    said = refused(capsys, "zoo", "run", write_suite(), "--results", "file")
    assert "file: cannot be written: File exists" in said
    said = refused(capsys, "zoo", "run", write_suite(), "--output-dir", "file/runs")
    assert "file/runs: cannot be written: Not a directory" in said


def test_other_settings_do_not_replace_the_results_of_a_preset(capsys: Capture) -> None:
    words = ["zoo", "run", PRESET, "--seeds", "1", "--quiet", "--results", "results"]
    said = refused(capsys, *words, "--hyperparams.gamma", "0.5")
    assert "(other hyperparams.gamma); give the file another name by --label" in said
    said = refused(capsys, *words, "--hyperparams.gamma", "0.5", "--label", "a/b")
    assert "--label: expected a part of a file name, got 'a/b'" in said
    said = refused(capsys, "zoo", "run", write_suite("steps: 7"), "--results", "results")
    assert "(other total_timesteps)" in said
    assert main([*words, "--no-logging.tensorboard"]) == 0  # what a run may choose
    assert main([*words, "--hyperparams.gamma", "0.5", "--label", "half", "--output-dir", "half"]) == 0
    assert sorted(path.name for path in Path("results").iterdir()) == [
        "ppo-cartpole-half.json",
        "ppo-cartpole.json",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--seed", "7"], "--seed: a run is made of each of several seeds; give --seeds"),
        (["--seeds", "1,2", "--num-seeds", "1"], "--seeds and --num-seeds cannot be combined"),
        (["--seeds", "1-100000000"], "'1-100000000': more than 1,000 seeds"),
        (["--seeds", "1-600,2001-2600"], "more than 1,000 seeds"),
        (["--num-seeds", "1e8"], "'1e8': more than 1,000 seeds"),
        (["--seeds", "5-1"], "expected seeds like 1,2,3 or 1-5"),
        (["--seeds", "1,5-3"], "expected seeds like 1,2,3 or 1-5"),
    ],
)
def test_seeds_that_are_refused(capsys: Capture, words: list[str], reason: str) -> None:
    assert reason in refused(capsys, "zoo", "run", PRESET, *words)


@pytest.mark.parametrize("verb", ["run", "commands"])
def test_overrides_of_a_suite_are_judged_before_anything_is_printed(capsys: Capture, verb: str) -> None:
    suite = write_suite("overrides: {hyperparams.gama: 0.5}")
    said = refused(capsys, "zoo", verb, suite)
    assert "small.yaml: presets.ppo/cartpole.overrides: --hyperparams.gama: unknown option" in said
    assert "did you mean --hyperparams.gamma?" in said
    suite = write_suite("overrides: {hyperparams.gamma: 5}")
    said = refused(capsys, "zoo", verb, suite)
    assert "small.yaml: presets.ppo/cartpole.overrides: hyperparams.gamma: must be" in said
