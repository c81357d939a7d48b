"""Runs as reports read them: whatever can be read, and in words what could not. Never imports torch."""

from __future__ import annotations

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
from rl_training.zoo.evaluations import EvaluationPoint, evaluation_of, read_judgement, sorted_rows
from rl_training.zoo.rows import Row, number, read_rows

RETURN, LENGTH, STEPS = "rollout/return_mean", "rollout/length_mean", "environment steps"
Point = tuple[float, float]


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
    final_evaluation: EvaluationPoint | None = None
    """What the run was judged by where it ended, or else the newest evaluation, if that has a mean."""
    best_evaluation: EvaluationPoint | None = None
    """What its best checkpoint was judged by, or else the best evaluation; of equals the first."""
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
    rows = sorted_rows(path / EVALUATIONS, problems)
    evaluations = [point for row in rows if (point := evaluation_of(row))]
    final, best = evaluation_of(rows[-1]) if rows else None, max(evaluations, key=_mean, default=None)
    if (judged := read_judgement(str(path.resolve()), problems)) is not None:
        newest = int(rows[-1]["global_step"]) if rows else -1
        final = judged.point if judged.is_final(metadata, newest) else final
        best = judged.point if judged.is_best(metadata) else best
    checkpoints = _checkpoints(path)
    problems += _lost_checkpoints(metadata, checkpoints)
    return RunRecord(
        path=path,
        config=config,
        metadata=metadata,
        metrics=metrics,
        evaluations=tuple(evaluations),
        evaluation_seconds=max([number(row.get("elapsed_s")) or 0.0 for row in rows], default=0.0),
        final_evaluation=final,
        best_evaluation=best,
        checkpoints=checkpoints,
        problems=tuple(problems),
    )


def _mean(evaluation: EvaluationPoint) -> float:
    return evaluation.mean


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
