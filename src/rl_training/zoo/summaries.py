"""A run in a few numbers: what tables and curves over many runs need, read without the whole of its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError
from rl_training.experiment.files import read_at_once
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.runs import CONFIG, EVALUATIONS, METADATA, METRICS
from rl_training.zoo.configs import Config, ConfigReader, value_at
from rl_training.zoo.records import RETURN, evaluation_of, mapping, number, read_rows

_TAIL = 16 << 10
_LARGE = 16 << 20
Evaluation = tuple[int, float | None, float]
"""Step, seconds, mean return."""
_NUMBERS = re.compile(rb"\[[-+.\deE, ]*\]")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What one run came to. `config` is shared by runs of one experiment: it has no seed in it."""

    path: str
    algo: str = "unknown"
    env_id: str = "unknown"
    seed: str = "unknown"
    preset: str | None = None
    status: str = "unknown"
    created: str = ""
    tags: Sequence[str] = ()
    steps: int = 0
    wall_seconds: float | None = None
    steps_per_second: float | None = None
    eval_steps: Sequence[int] = ()
    eval_seconds: Sequence[float | None] = ()
    eval_means: Sequence[float] = ()
    returns: Sequence[float] = ()
    training_return: float | None = None
    overrides: Sequence[str] = ()
    drifted: Sequence[str] = ()
    problems: Sequence[str] = ()
    config: Config = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The directory's name."""
        return os.path.basename(os.path.abspath(self.path))

    @property
    def final(self) -> float | None:
        """Mean return of the newest evaluation."""
        return self.eval_means[-1] if self.eval_means else None

    @property
    def best(self) -> float | None:
        """Mean return of the best evaluation."""
        return max(self.eval_means, default=None)

    def score(self, which: str = "final") -> float | None:
        """The number that stands for the run."""
        return self.best if which == "best" else self.final

    def value(self, key: str) -> Any:
        """A property of the run by the name commands use, or else a key of its config."""
        match key:
            case "env":
                return self.env_id
            case "run":
                return self.name
            case "score" | "final":
                return self.final
            case "time":
                return self.wall_seconds
            case "speed":
                return self.steps_per_second
            case "algo" | "seed" | "preset" | "status" | "created" | "tags" | "steps" | "best" | "path":
                return getattr(self, key)
            case _:
                return value_at(self.config, key)


FIELDS = (
    "algo", "env_id", "seed", "preset", "status", "created", "tags", "steps", "wall_seconds",
    "steps_per_second", "eval_steps", "eval_seconds", "eval_means", "returns", "training_return",
    "overrides", "drifted", "problems",
)  # fmt: skip
"""Everything but the path and the config, in the order the index keeps it."""


def summarize(path: str, names: frozenset[str], reader: ConfigReader) -> RunSummary:
    """Read a run directory that has these files; whatever is damaged is told in `problems`."""
    problems: list[str] = []
    config, own = _config(path, reader, problems)
    metadata = _metadata(path, problems)
    evaluations, returns = _evaluations(path, names, config, problems)
    last = _last_row(path, names, problems)
    parts = os.path.basename(path).split("__")
    known = parts if len(parts) >= 4 else ["unknown"] * 3
    elapsed = _milliseconds(last.get("elapsed_s")) if last else None
    logged = int(last["global_step"]) if last else 0
    seconds = [s for s in (elapsed, *(row[1] for row in evaluations)) if s]
    return RunSummary(
        path=path,
        algo=str(config.get("algo") or known[0]),
        env_id=str(config.get("env_id") or known[1]),
        seed=str(own.get("seed", known[2].removeprefix("seed"))),
        preset=str(metadata["preset"]) if metadata.get("preset") else None,
        status=str(metadata.get("status") or "unknown"),
        created=str(metadata.get("created_at_utc") or ""),
        tags=list(map(str, tags)) if isinstance(tags := metadata.get("tags"), list) else [],
        steps=max([0, logged, *(row[0] for row in evaluations)]),
        wall_seconds=max(seconds, default=None),
        steps_per_second=logged / elapsed if elapsed else None,
        eval_steps=[row[0] for row in evaluations],
        eval_seconds=[row[1] for row in evaluations],
        eval_means=[row[2] for row in evaluations],
        returns=returns,
        training_return=number(last.get(RETURN)) if last else None,
        overrides=_overrides(metadata),
        drifted=_drifted(metadata),
        problems=problems,
        config=config,
    )


def _config(folder: str, reader: ConfigReader, problems: list[str]) -> tuple[Config, Config]:
    try:
        return reader.read(f"{folder}/{CONFIG}")
    except (AxiomError, RecursionError) as error:
        problems.append(str(error).replace(f"{folder}/", ""))
    except OSError as error:
        problems.append(f"{CONFIG}: cannot be read: {error.strerror}")
    return {}, {}


def _metadata(folder: str, problems: list[str]) -> Mapping[str, Any]:
    try:
        data = json.loads(read_at_once(f"{folder}/{METADATA}", _LARGE))
        if isinstance(data, dict):
            return data
    except (OSError, ValueError, RecursionError):
        pass
    try:
        return read_metadata(Path(folder))  # which knows how to say what is wrong
    except (AxiomError, RecursionError) as error:
        problems.append(str(error).replace(f"{folder}/", ""))
        return {}


def _evaluations(
    folder: str, names: frozenset[str], config: Config, problems: list[str]
) -> tuple[list[Evaluation], list[float]]:
    """Every evaluation by step, and the last one's returns; none is no problem where none is asked for."""
    if EVALUATIONS not in names:
        if number(value_at(config, "evaluation.every_steps")) != 0:
            problems.append(f"{EVALUATIONS}: not there")
        return [], []
    path = f"{folder}/{EVALUATIONS}"
    if (sound := _sound_evaluations(path)) is not None:
        return sound
    rows = list(read_rows(Path(path), problems))
    found = [
        (int(row["global_step"]), _milliseconds(row.get("elapsed_s")), mean, row)
        for row in rows
        if (mean := number(row.get("return_mean"))) is not None
    ]
    if len(found) < len(rows):
        problems.append(f"{EVALUATIONS}: {len(rows) - len(found)} without a mean return, left out")
    found.sort(key=lambda row: row[0])
    return [row[:3] for row in found], _returns(found[-1][3]) if found else []


def _sound_evaluations(path: str) -> tuple[list[Evaluation], list[float]] | None:
    """The evaluations of a file without a flaw, parsed at once; None for what must be read line by line.

    Returns and seeds of single episodes are most of such a file, and only the last ones are wanted: other
    lists of numbers become a zero before the text is parsed.
    """
    try:
        head, _, last = read_at_once(path, _LARGE).removesuffix(b"\n").rpartition(b"\n")
        before = _NUMBERS.sub(b"0", head).replace(b"\n", b",") + b"," if head else b""
        rows = json.loads(b"[%b%b]" % (before, last))
        found = [
            (row["global_step"], _milliseconds(row.get("elapsed_s")), row["return_mean"]) for row in rows
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    lines = head.count(b"\n") + 2 if head else 1
    steps = [s for s, _, mean in found if type(s) is int and type(mean) is float and abs(mean) < 1e100]
    is_sound = len(found) == len(steps) == lines and steps == sorted(steps) and steps[0] >= 0
    return (found, _returns(rows[-1])) if is_sound else None


def _milliseconds(value: Any) -> float | None:
    """Seconds to the third decimal: nobody times a run more finely, and the index stays small."""
    seconds = number(value)
    return None if seconds is None else round(seconds, 3)


def _returns(row: Mapping[str, Any]) -> list[float]:
    """The returns of an evaluation's episodes."""
    point = evaluation_of(dict(row))
    return list(point.returns) if point else []


def _last_row(folder: str, names: frozenset[str], problems: list[str]) -> Mapping[str, Any] | None:
    """The newest readable line of the metrics, without reading what is before it."""
    if METRICS not in names:
        problems.append(f"{METRICS}: not there")
        return None
    try:
        lines = read_at_once(f"{folder}/{METRICS}", _TAIL, only_end=True).split(b"\n")
    except OSError as error:
        problems.append(f"{METRICS}: cannot be read: {error.strerror}")
        return None
    damaged = False
    for line in reversed(lines):
        if not line.strip():
            continue
        if (row := _row(line)) is not None:
            if damaged:
                problems.append(f"{METRICS}: damaged at its end")
            return row
        damaged = True
    if damaged:
        problems.append(f"{METRICS}: damaged")
    return None


def _row(line: bytes) -> Mapping[str, Any] | None:
    try:
        row = mapping(json.loads(line))
    except (ValueError, RecursionError):
        return None
    step = number(row.get("global_step"))
    return row if step is not None and step >= 0 else None


def _overrides(metadata: Mapping[str, Any]) -> list[str]:
    """Hyperparameters that were set on the command line; what they are is in the config."""
    command = metadata.get("command")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    names = [
        word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word[:2] == "--"
    ]
    return list(dict.fromkeys(name for name in names if name.startswith("hyperparams.")))


def _drifted(metadata: Mapping[str, Any]) -> list[str]:
    """Changes of the configuration in the middle of the run that `resume --allow-drift` let pass."""
    resumes = metadata.get("resumes")
    changes = [
        mapping(change)
        for resume in (resumes if isinstance(resumes, list) else ())
        if isinstance(mapping(resume).get("drift"), list)
        for change in mapping(resume)["drift"]
    ]
    return list(dict.fromkeys(str(change["key"]) for change in changes if change.get("key")))
