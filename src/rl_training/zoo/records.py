"""Runs as reports read them: whatever can be read, and in words what could not. Never imports torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError, CheckpointError
from rl_training.experiment import yaml
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.runs import (
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METADATA,
    METRICS,
    is_checkpoint_dir,
    missing_path_message,
)

RETURN, LENGTH, STEPS = "rollout/return_mean", "rollout/length_mean", "environment steps"
Point = tuple[float, float]
Row = dict[str, Any]


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
class CheckpointEntry:
    """A checkpoint as it lies in the run directory."""

    step: int
    size: int
    complete: bool


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything a run directory tells; `problems` says what it should have told and did not."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Row, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    evaluation_seconds: float = 0.0
    checkpoints: tuple[CheckpointEntry, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.resolve().name

    @property
    def algo(self) -> str:
        """Algorithm id."""
        return self._named("algo", 0)

    @property
    def env_id(self) -> str:
        """Environment id."""
        return self._named("env_id", 1)

    @property
    def seed(self) -> str:
        """Seed, as text."""
        return self._named("seed", 2).removeprefix("seed")

    @property
    def title(self) -> str:
        """Algorithm on environment; short ids are acronyms."""
        short = self.algo.isalnum() and len(self.algo) <= 4
        return f"{self.algo.upper() if short else self.algo} on {self.env_id}"

    @property
    def status(self) -> str:
        """How the run ended, or `unknown`."""
        return str(self.metadata.get("status") or "unknown")

    @property
    def steps(self) -> int:
        """The last step that anything was recorded at."""
        logged = [int(row["global_step"]) for row in self.metrics]
        return max([0, *logged, *(e.step for e in self.evaluations)])

    @property
    def wall_seconds(self) -> float | None:
        """Seconds of training up to the last record, over all resumes."""
        seconds = [number(row.get("elapsed_s")) for row in self.metrics]
        return max([s for s in (*seconds, self.evaluation_seconds) if s], default=None)

    @property
    def steps_per_second(self) -> float | None:
        """Mean over the run as logged, everything included."""
        for row in reversed(self.metrics):
            if elapsed := number(row.get("elapsed_s")):
                return float(row["global_step"]) / elapsed
        return None

    @property
    def final_evaluation(self) -> EvaluationPoint | None:
        """The newest evaluation."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def best_evaluation(self) -> EvaluationPoint | None:
        """The evaluation with the highest mean; of equals the first, as the best checkpoint is chosen."""
        return max(self.evaluations, key=lambda e: e.mean, default=None)

    def series(self, key: str) -> list[Point]:
        """A metric over environment steps; what is not a number is left out."""
        values = ((float(row["global_step"]), number(row.get(key))) for row in self.metrics)
        return sorted((step, value) for step, value in values if value is not None)

    def keys(self, prefix: str) -> list[str]:
        """Names of the metrics under a prefix, in the order they were first logged."""
        return list(dict.fromkeys(key for row in self.metrics for key in row if key.startswith(prefix)))

    def seconds_by_part(self) -> dict[str, float]:
        """Where the logged time went: each line's shares, weighted by the time that line covers."""
        totals = dict.fromkeys(self.keys("time/"), 0.0)
        before = 0.0
        for row in self.metrics:
            now = number(row.get("elapsed_s"))
            if now is None:
                continue
            covered, before = max(0.0, now - before), now
            for key in totals:
                totals[key] += (number(row.get(key)) or 0.0) * covered
        return {key.removeprefix("time/"): seconds for key, seconds in totals.items()}

    def _named(self, key: str, position: int) -> str:
        """A value of the config; the directory's name knows it too, should the config be lost."""
        if self.config.get(key) is not None:
            return str(self.config[key])
        parts = self.name.split("__")
        return parts[position] if len(parts) >= 4 else "unknown"


def read_run(path: str | Path) -> RunRecord:
    """Read a run directory, however damaged; only what is no run at all is an error."""
    path = Path(path)
    _require_run(path)
    problems: list[str] = []
    config = _config(path, problems)
    metadata = _metadata(path, problems)
    metrics = tuple(read_rows(path / METRICS, problems))
    rows = list(read_rows(path / EVALUATIONS, problems))
    evaluations = [point for row in rows if (point := evaluation_of(row))]
    if len(evaluations) < len(rows):
        problems.append(f"{EVALUATIONS}: {len(rows) - len(evaluations)} without a mean return, left out")
    checkpoints = _checkpoints(path)
    problems += _lost_checkpoints(metadata, checkpoints)
    return RunRecord(
        path=path,
        config=config,
        metadata=metadata,
        metrics=metrics,
        evaluations=tuple(sorted(evaluations, key=lambda e: e.step)),
        evaluation_seconds=max([number(row.get("elapsed_s")) or 0.0 for row in rows], default=0.0),
        checkpoints=checkpoints,
        problems=tuple(problems),
    )


def number(value: Any) -> float | None:
    """A number one can draw, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e100 else None  # NaN is not below anything


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping from a file, or an empty one where the file has something else."""
    return value if isinstance(value, dict) else {}


def _require_run(path: Path) -> None:
    """Two of a run's own files make a run: one may be lost, and one alone may be anybody's."""
    try:
        names = (CONFIG, METADATA, METRICS, EVALUATIONS, CHECKPOINTS)
        found = [name for name in names if (path / name).exists()]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(found) >= 2 and not is_checkpoint_dir(path):
        return
    if is_checkpoint_dir(path):
        raise CheckpointError(f"{path}: a checkpoint; name the run directory it belongs to")
    raise CheckpointError(missing_path_message(path))


def _config(path: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        return yaml.load_file(path / CONFIG).data
    except (AxiomError, RecursionError) as error:
        problems.append(_problem(path, CONFIG, error))
        return {}


def _metadata(path: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        return read_metadata(path)
    except (AxiomError, RecursionError) as error:
        problems.append(_problem(path, METADATA, error))
        return {}


def _problem(path: Path, name: str, error: Exception) -> str:
    """Why a file could not be read, with names relative to the run."""
    if isinstance(error, RecursionError):
        return f"{name}: nested too deeply"
    return str(error).replace(f"{path}/", "").replace(str(path), path.resolve().name)


def read_rows(path: Path, problems: list[str]) -> Iterator[Row]:
    """The readable rows of a JSONL file; a torn line costs itself and no other."""
    bad: list[int] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line_number, line in enumerate(file, 1):
                row = _row(line)
                if row is None:
                    bad.append(line_number)
                else:
                    yield row
    except OSError as error:
        problems.append(f"{path.name}: cannot be read: {error.strerror}")
    if bad:
        where = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        problems.append(f"{path.name}: {len(bad)} damaged line{'s' * (len(bad) > 1)} left out: line {where}")


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = number(row.get("global_step")) if isinstance(row, dict) else None
    return row if step is not None and step >= 0 else None


def evaluation_of(row: Row) -> EvaluationPoint | None:
    mean = number(row.get("return_mean"))
    if mean is None:
        return None
    returns = row.get("returns")
    numbers = [number(r) for r in returns] if isinstance(returns, list) else []
    finite = tuple(r for r in numbers if r is not None)
    return EvaluationPoint(int(row["global_step"]), mean, number(row.get("return_std")) or 0.0, finite)


def _checkpoints(path: Path) -> tuple[CheckpointEntry, ...]:
    entries = []
    for folder in (path / CHECKPOINTS).glob("step_*"):
        step = folder.name.removeprefix("step_")
        if step.isascii() and step.isdigit() and folder.is_dir():
            size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
            entries.append(CheckpointEntry(int(step), size, is_checkpoint_dir(folder)))
    return tuple(sorted(entries, key=lambda entry: entry.step))


def _lost_checkpoints(metadata: Mapping[str, Any], found: tuple[CheckpointEntry, ...]) -> Iterator[str]:
    """Checkpoints the metadata points to that are not there."""
    names = {f"{CHECKPOINTS}/step_{entry.step}" for entry in found}
    for key in ("best_checkpoint", "latest_checkpoint"):
        pointed = metadata.get(key)
        if pointed is not None and str(pointed) not in names:
            yield f"{METADATA}: {key.replace('_', ' ')} is {pointed}, which is not there"
