"""The runner with real training: exact after a kill, and judged by bands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.cli import main
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.fingerprint import compare, read_contents
from rl_training.experiment.metadata import read_metadata
from rl_training.zoo.drift import drift_of
from rl_training.zoo.scan import scan
from rl_training.zoo.sources import read_manifest

SOURCE = str(Path(rl_training.__file__).parents[1])
TINY = [
    "--num-envs", "2", "--hyperparams.num-steps", "64", "--hyperparams.update-epochs", "1",
    "--no-logging.tensorboard", "--checkpoint.every-steps", "256", "--evaluation.episodes", "1",
]  # fmt: skip
SUITE = """
description: tiny
seeds: [4]
evaluation: {{episodes: 2}}
presets:
  ppo/cartpole:
    steps: 256
    band: {band}
    basis: aim
    overrides: {{num_envs: 2, hyperparams.num_steps: 64, logging.tensorboard: false, evaluation.episodes: 1}}
"""


@pytest.fixture(autouse=True)
def _children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)


def without_times(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: without_times(v) for k, v in data.items() if k not in ("seconds", "elapsed_s")}
    return [without_times(value) for value in data] if isinstance(data, list) else data


def seeds(folder: Path, *more: str) -> list[str]:
    chosen = ["train", "--preset", "ppo/cartpole", "--seeds", "1", "--eval-episodes", "2"]
    return [*chosen, "--total-timesteps", "6144", *TINY, "--output-dir", str(folder), "--quiet", *more]


def only_run(folder: Path) -> Path:
    (found,) = [
        path for path in (folder / "ppo-cartpole" / "ppo-cartpole" / "seed1").iterdir() if path.is_dir()
    ]
    return found


def test_a_killed_runner_is_made_up_for_to_the_last_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(seeds(whole)) == 0
    manifest = whole / "ppo-cartpole" / "manifest.json"
    assert capsys.readouterr().out == f"{manifest}\n"

    process = subprocess.Popen([sys.executable, "-m", "rl_training.cli", *seeds(cut)])
    deadline = time.monotonic() + 300
    while not list(cut.glob("*/*/*/*/checkpoints/step_512")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert main(seeds(cut)) == 0  # waits for the run, which notices and saves

    (resume,) = read_metadata(only_run(cut))["resumes"]
    assert 0 < resume["step"] < 6144
    assert resume["grade"] == "exact"
    contents = [read_contents(find_checkpoint(only_run(folder), "latest")) for folder in (whole, cut)]
    assert [d for d in compare(*contents) if "elapsed" not in d.entry and d.component != "clock"] == []
    manifests = [json.loads((f / "ppo-cartpole" / "manifest.json").read_text()) for f in (whole, cut)]
    assert without_times(manifests[0]) == without_times(manifests[1])
    (run,) = read_manifest(cut / "ppo-cartpole" / "manifest.json")
    assert (run.algo, run.env_id, run.steps, len(run.returns)) == ("ppo", "CartPole-v1", 6144, 2)
    (found,) = scan([cut]).runs
    assert (found.final, found.returns, found.episodes()) == (run.final, run.returns, 2)
    keys = {change.key for change in drift_of(found)}  # no suite lays these down
    assert {"total_timesteps", "num_envs", "hyperparams.num_steps", "evaluation.episodes"} <= keys
    assert list(found.unasked) == []

    assert main(seeds(cut, "--hyperparams.gamma", "0.5")) == 2
    assert "made with another hyperparams.gamma: 0.98, not 0.5" in capsys.readouterr().err
    assert main(seeds(cut, "--seed", "1")) == 2
    assert "--seed and --seeds cannot be combined" in capsys.readouterr().err


def test_verify_judges_by_the_band_and_runs_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE.format(band="[499, 500]"))
    assert main(["zoo", "verify", "tiny.yaml", "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert out == "runs/zoo/tiny/manifest.json\n"
    assert "is below its band" in err
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("evaluation*")}
    suite.write_text(SUITE.format(band="[1, 500]"))
    assert main(["zoo", "verify", "tiny.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "inside" in out
    assert "1 of 1 runs are already there" in err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("evaluation*")} == before
    assert main(["zoo", "run", "tiny.yaml", "--results", "results", "--label", "tiny", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "results" / "ppo-cartpole-tiny.json").read_text())
    assert written["runs"][0]["returns"] == printed["runs"][0]["returns"]
    assert written["runs"][0]["command"][:4] == ["axiomrl", "train", "--preset", "ppo/cartpole"]
    assert main(["report", "runs/zoo/tiny", "--format", "html"]) == 0  # though it has a manifest
    assert "ppo/cartpole" in (tmp_path / "runs/zoo/tiny/report.html").read_text()
    (found,) = scan([Path("runs")]).runs
    assert found.final == printed["runs"][0]["return_mean"]
    assert drift_of(found) == ()  # steps and overrides are what the suite says
    assert printed["overrides"]["ppo/cartpole"]["hyperparams.num_steps"] == 64
    noted = {change["key"]: change for change in read_metadata(Path(found.path))["preset_differences"]}
    assert noted["num_envs"] == {"key": "num_envs", "preset": 8, "run": 2}
    config = Path(found.path) / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.98", "gamma: 0.5"))
    (found,) = scan([Path("runs")]).runs
    assert [str(change) for change in drift_of(found)] == ["hyperparams.gamma: 0.5 instead of 0.98"]
    capsys.readouterr()
    assert main(["zoo", "verify", "ppo/cartpole-no-velocity"]) == 2
    assert "no suite says what is expected of it" in capsys.readouterr().err
