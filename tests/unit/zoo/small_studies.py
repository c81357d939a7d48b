"""Small studies for tests: files, and the stand-in for training that they are run with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rl_training.zoo import runner
from rl_training.zoo.display import NoDisplay
from rl_training.zoo.tuning.record import TrialRecord, read_record
from rl_training.zoo.tuning.study import Design, load_study
from rl_training.zoo.tuning.tuner import Tuner

FAKE = Path(__file__).with_name("fake_axiomrl.py")
SOURCE = str(Path(runner.__file__).parents[2])
TIMES = ("seconds",)
STUDY = """\
overrides: {algo: a2c, env_id: CartPole-v1, evaluation.every_steps: 1, hyperparams.learning_rate: 1e-5}
space:
  hyperparams.learning_rate: {low: 1e-5, high: 1e-1, log: true}
  hyperparams.gamma: {low: 0.9, high: 0.999}
steps: 5
held_out: []
evaluation: {episodes: 2}
"""


def write_study(folder: Path, *more: str, text: str = STUDY) -> Path:
    """A study file with lines of its own."""
    path = folder / "small.yaml"
    path.write_text(text + "".join(f"{line}\n" for line in more))
    return path


def tune(path: Path, folder: Path, *, width: int = 1) -> Tuner:
    """Run a study with the stand-in."""
    runner.CHILD, runner._PAUSE = [sys.executable, str(FAKE)], 0.01
    made = Tuner(load_study(path), folder, width, NoDisplay())
    made.run()
    return made


def trials_of(folder: Path) -> list[TrialRecord]:
    """What came of the trials."""
    return list(read_record(folder).trials)


def without_times(trials: list[TrialRecord]) -> list[dict[str, Any]]:
    """Trials as data that can be compared."""
    from dataclasses import asdict

    return [{k: v for k, v in asdict(trial).items() if k not in TIMES} for trial in trials]


def save(folder: Path, data: dict[str, Any]) -> Path:
    """A record of a study that nobody ran."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(data))
    return folder


def design_of(folder: Path, *more: str, text: str = STUDY) -> Design:
    """A study that was read and checked."""
    return load_study(write_study(folder, *more, text=text))
