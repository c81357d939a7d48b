"""Evaluations of a run: those made while it was trained, and the one that it was judged by in the end.

`zoo run` and `train --seeds` judge a run by more episodes than evaluations on the way have, and keep the
result beside the run directory. It counts for the run and the checkpoint that it names, and for no other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.files import read_at_once
from rl_training.experiment.runs import CHECKPOINTS, EVALUATIONS
from rl_training.zoo.configs import Config, value_at
from rl_training.zoo.rows import Row, mapping, number, read_rows

EVALUATION = "evaluation.json"
_LARGE = 16 << 20
_NUMBERS = re.compile(rb"\[[-+.\deE, ]*\]")
Evaluation = tuple[int, float | None, float, int | None]
"""Step, seconds, mean return, number of episodes."""


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One evaluation: the mean of its episodes and how far they spread."""

    step: int
    mean: float
    std: float
    returns: tuple[float, ...]

    @property
    def low(self) -> float:
        """The worst episode."""
        return min(self.returns, default=self.mean)

    @property
    def high(self) -> float:
        """The best episode."""
        return max(self.returns, default=self.mean)


@dataclass(frozen=True, slots=True)
class Trained:
    """The evaluations made in training that have a mean, by step; `returns` are those of the newest."""

    points: Sequence[Evaluation] = ()
    returns: Sequence[float] = ()
    newest: int = -1
    """The step of the newest evaluation, with a mean or without."""
    diverged: bool = False
    """Has the newest no finite mean?"""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run's checkpoint came to by the protocol that it was judged by."""

    checkpoint: str
    mean: float | None
    std: float = 0.0
    episodes: int | None = None
    returns: Sequence[float] = ()

    @property
    def point(self) -> EvaluationPoint | None:
        """As an evaluation, if it has a mean."""
        if self.mean is None:
            return None
        return EvaluationPoint(self.step, self.mean, self.std, tuple(self.returns))

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        step = self.checkpoint.removeprefix("step_")
        return int(step) if step.isascii() and step.isdigit() else -1

    def is_final(self, metadata: Mapping[str, Any], newest: int) -> bool:
        """Is it of where training ended, with no evaluation after it?"""
        return self._is(metadata.get("latest_checkpoint")) and self.step >= newest

    def is_best(self, metadata: Mapping[str, Any]) -> bool:
        """Is it of the checkpoint that evaluated best on the way?"""
        return self._is(metadata.get("best_checkpoint"))

    def _is(self, pointed: Any) -> bool:
        return isinstance(pointed, str) and os.path.basename(pointed) == self.checkpoint


@dataclass(frozen=True, slots=True)
class Score:
    """A number that stands for a run, and the episodes behind it."""

    mean: float | None = None
    episodes: int | None = None
    returns: Sequence[float] = field(default_factory=list)


def final_score(trained: Trained, judged: Judgement | None, metadata: Mapping[str, Any]) -> Score:
    """What the run was judged by where it ended, or else its newest evaluation; none if that has no mean."""
    if judged is not None and judged.is_final(metadata, trained.newest):
        return Score(judged.mean, judged.episodes, judged.returns)
    if not trained.points or trained.diverged:
        return Score()
    *_, mean, episodes = trained.points[-1]
    return Score(mean, episodes or len(trained.returns) or None, trained.returns)


def best_score(trained: Trained, judged: Judgement | None, metadata: Mapping[str, Any]) -> Score:
    """What its best checkpoint was judged by, or else the best evaluation on the way, of equals the first."""
    if judged is not None and judged.is_best(metadata):
        return Score(judged.mean, judged.episodes, judged.returns)
    if not trained.points:
        return Score()
    best = max(trained.points, key=lambda point: point[2])
    last = len(trained.returns) if best is trained.points[-1] else 0
    return Score(best[2], best[3] or last or None)


def checkpoint_in(path: Any, run_name: str) -> str | None:
    """The checkpoint that a path names, if it lies in a run directory of this name."""
    *_, run, folder, checkpoint = ["", "", "", *str(path).split("/")]
    return checkpoint if (run, folder) == (run_name, CHECKPOINTS) else None


def read_judgement(run_dir: str, problems: list[str]) -> Judgement | None:
    """The result that lies beside a run directory (given by its real path), if it is this run's."""
    folder, name = os.path.split(run_dir)
    try:
        data = mapping(json.loads(read_at_once(f"{folder}/{EVALUATION}", _LARGE)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        problems.append(f"{EVALUATION} beside it: cannot be read")
        return None
    checkpoint = checkpoint_in(data.get("checkpoint"), name)
    if checkpoint is None:
        return None
    mean, returns = number(data.get("return_mean")), _finite(data.get("returns"))
    if mean is None:
        problems.append(f"{EVALUATION} beside it: no mean return that is a finite number")
    episodes = int(number(data.get("num_episodes")) or len(returns)) or None
    return Judgement(checkpoint, mean, number(data.get("return_std")) or 0.0, episodes, returns)


def read_trained(folder: str, names: frozenset[str], config: Config, problems: list[str]) -> Trained:
    """Every evaluation made in training; none is no problem where none is asked for."""
    if EVALUATIONS not in names:
        if number(value_at(config, "evaluation.every_steps")) != 0:
            problems.append(f"{EVALUATIONS}: not there")
        return Trained()
    path = f"{folder}/{EVALUATIONS}"
    if (sound := _read_sound(path)) is not None:
        return sound
    return trained_from(sorted_rows(Path(path), problems))


def trained_from(rows: Sequence[Row]) -> Trained:
    """Evaluations from rows by step, whatever else these hold."""
    found = [
        ((int(row["global_step"]), milliseconds(row.get("elapsed_s")), mean, _episodes(row)), row)
        for row in rows
        if (mean := number(row.get("return_mean"))) is not None
    ]
    newest = int(rows[-1]["global_step"]) if rows else -1
    if not found:
        return Trained(newest=newest, diverged=bool(rows))
    points, last = [point for point, _ in found], found[-1][1]
    return Trained(points, _finite(last.get("returns")), newest, diverged=last is not rows[-1])


def sorted_rows(path: Path, problems: list[str]) -> list[Row]:
    """The rows of a file of evaluations by step; says how many have no mean, and whether the newest has."""
    rows = sorted(read_rows(path, problems), key=lambda row: int(row["global_step"]))
    without = [row for row in rows if number(row.get("return_mean")) is None]
    if without:
        last = "; the newest is one of them, so there is no final score" if without[-1] is rows[-1] else ""
        problems.append(f"{EVALUATIONS}: {len(without)} without a mean return, left out{last}")
    return rows


def evaluation_of(row: Row) -> EvaluationPoint | None:
    """A row as an evaluation, if it has a mean."""
    mean = number(row.get("return_mean"))
    if mean is None:
        return None
    returns = tuple(_finite(row.get("returns")))
    return EvaluationPoint(int(row["global_step"]), mean, number(row.get("return_std")) or 0.0, returns)


def milliseconds(value: Any) -> float | None:
    """Seconds to the third decimal: nobody times a run more finely, and the index stays small."""
    seconds = number(value)
    return None if seconds is None else round(seconds, 3)


def _read_sound(path: str) -> Trained | None:
    """The evaluations of a file without a flaw, parsed at once; None for what must be read line by line.

    Returns and seeds of single episodes are most of such a file, and only the last ones are wanted: other
    lists of numbers become a zero before the text is parsed.
    """
    try:
        head, _, last = read_at_once(path, _LARGE).removesuffix(b"\n").rpartition(b"\n")
        before = _NUMBERS.sub(b"0", head).replace(b"\n", b",") + b"," if head else b""
        rows = json.loads(b"[%b%b]" % (before, last))
        found = [
            (row["global_step"], milliseconds(row.get("elapsed_s")), row["return_mean"], _episodes(row))
            for row in rows
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    lines = head.count(b"\n") + 2 if head else 1
    steps = [s for s, _, mean, _ in found if type(s) is int and type(mean) is float and abs(mean) < 1e100]
    is_sound = len(found) == len(steps) == lines and steps == sorted(steps) and steps[0] >= 0
    return Trained(found, _finite(rows[-1].get("returns")), steps[-1]) if is_sound else None


def _episodes(row: Mapping[str, Any]) -> int | None:
    count = row.get("num_episodes")
    return count if type(count) is int and count > 0 else None


def _finite(values: Any) -> list[float]:
    """The numbers of a list, if it is one."""
    found = map(number, values) if isinstance(values, list) else ()
    return [value for value in found if value is not None]
