"""Tuning with real training: killed outright and resumed, a study comes to what it would have come to."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import rl_training
from rl_training.cli import main
from rl_training.experiment.layers import load_config, replace
from rl_training.experiment.metadata import read_metadata

SOURCE = str(Path(rl_training.__file__).parents[1])
STUDY = """
overrides:
  algo: ppo
  env_id: axiom/Identity-v0
  num_envs: 4
  hyperparams.num_steps: 32
  hyperparams.update_epochs: 1
  evaluation.every_steps: 1024
  evaluation.episodes: 2
  checkpoint.every_steps: 512
  logging.tensorboard: false
space:
  hyperparams.learning_rate: {low: 1e-4, high: 1e-2, log: true}
  network.hidden: [[8], [16, 16]]
steps: 3072
trials: 2
held_out: []
evaluation: {episodes: 5}
workers: 1
"""


def only_run(folder: Path, trial: int) -> Path:
    (run,) = [path for path in (folder / "trials" / f"{trial:04d}" / "seed1").iterdir() if path.is_dir()]
    return run


def test_a_killed_study_is_made_up_for_to_the_last_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="needs the extra tune")
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    study, out = tmp_path / "tiny.yaml", tmp_path / "out"
    study.write_text(STUDY)
    command = ["tune", "--config", str(study), "--output-dir", str(out), "--json"]
    process = multiprocessing.get_context("fork").Process(target=main, args=([*command, "--quiet"],))
    process.start()
    deadline = time.monotonic() + 300
    while not list(out.glob("trials/0000/*/*/checkpoints/step_512")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run = only_run(out, 0)
    process.kill()
    os.kill(int((run / ".lock").read_text()), signal.SIGKILL)  # and its run, which would save otherwise
    process.join()
    assert main(command) == 0
    record = json.loads(capsys.readouterr().out)
    assert [(trial["number"], trial["state"]) for trial in record["trials"]] == [
        (0, "completed"),
        (1, "completed"),
    ]
    (resume,) = read_metadata(run)["resumes"]
    assert resume["grade"] == "exact"
    assert only_run(out, 0) == run
    for trial in record["trials"]:  # what each would have come to if nobody had disturbed it
        config = load_config(out / "trials" / f"{trial['number']:04d}" / "config.yaml", seed=1)
        assert config.hyperparams.learning_rate == trial["params"]["hyperparams.learning_rate"]
        assert list(config.network.hidden or ()) == trial["params"]["network.hidden"]
        result = rl_training.train(replace(config, output_dir=str(tmp_path / "runs")))
        scores = rl_training.evaluate(result.checkpoint_path, num_episodes=5)
        assert trial["value"] == scores["return_mean"]
        rows = (result.run_dir / "evaluations.jsonl").read_text().splitlines()
        assert trial["reported"] == [json.loads(row)["return_mean"] for row in rows]
        assert len(rows) == 3
    best = max(record["trials"], key=lambda trial: trial["value"])
    preset = load_config(out / "best.yaml")
    assert preset.hyperparams.learning_rate == best["params"]["hyperparams.learning_rate"]
    assert record["validation"] is None
    assert main(["config", "--config", str(out / "best.yaml")]) == 0
    assert record["command"] == ["axiomrl", *command[:-1]]  # with its place: elsewhere it is another study


def test_without_the_extra_the_command_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    (tmp_path / "tiny.yaml").write_text(STUDY)
    assert main(["tune", "--config", str(tmp_path / "tiny.yaml")]) == 2
    message = 'error: tuning needs an optional dependency: pip install "axiomrl[tune]"\n'
    assert capsys.readouterr().err == message
