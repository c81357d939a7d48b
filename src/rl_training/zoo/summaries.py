"""A run in a few numbers: what tables and curves over many runs need, read without the whole of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError
from rl_training.experiment.files import read_at_once
from rl_training.experiment.metadata import PRESET_DIFFERENCES, read_metadata
from rl_training.experiment.runs import CONFIG, METADATA, METRICS
from rl_training.experiment.sections import ABSENT
from rl_training.zoo.configs import Config, ConfigReader, Difference, difference, is_free, value_at
from rl_training.zoo.evaluations import best_score, final_score, milliseconds, read_judgement, read_trained
from rl_training.zoo.records import RETURN
from rl_training.zoo.rows import mapping, number, row_of

_TAIL = 16 << 10
_LARGE = 16 << 20


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
    final: float | None = None
    """The mean return that the run was judged by where it ended, or else that of its newest evaluation."""
    final_episodes: int | None = None
    best: float | None = None
    """The same of its best checkpoint."""
    best_episodes: int | None = None
    returns: Sequence[float] = ()
    """Of the episodes behind `final`."""
    training_return: float | None = None
    overrides: Sequence[str] = ()
    drifted: Sequence[str] = ()
    """Keys that a resume changed in the middle of the run."""
    departures: Sequence[Difference] | None = None
    """What is not as in the preset, as it was noted when the run was made; None: it was not."""
    unasked: Sequence[Difference] = field(default_factory=list)
    """What is not as the manifest says that the run belongs to."""
    granted: Sequence[str] = field(default_factory=list)
    """Keys in which that manifest wants something else than the preset."""
    problems: Sequence[str] = ()
    config: Config = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The directory's name."""
        return os.path.basename(os.path.abspath(self.path))

    def score(self, which: str = "final") -> float | None:
        """The number that stands for the run."""
        return self.best if which == "best" else self.final

    def episodes(self, which: str = "final") -> int | None:
        """How many episodes are behind that number, where it is known."""
        return self.best_episodes if which == "best" else self.final_episodes

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
    "steps_per_second", "eval_steps", "eval_seconds", "eval_means", "final", "final_episodes", "best",
    "best_episodes", "returns", "training_return",
    "overrides", "drifted", "departures", "unasked", "granted", "problems",
)  # fmt: skip
"""Everything but the path and the config, in the order the index keeps it."""


def summarize(path: str, real: str, names: frozenset[str], reader: ConfigReader) -> RunSummary:
    """Read a run directory (`real` is where it really lies) that has these files, and what lies beside it.

    Whatever is damaged is told in `problems`.
    """
    problems: list[str] = []
    config, own = _config(path, reader, problems)
    metadata = _metadata(path, problems)
    trained = read_trained(path, names, config, problems)
    judged = read_judgement(real, problems)
    final, best = final_score(trained, judged, metadata), best_score(trained, judged, metadata)
    last = _last_row(path, names, problems)
    parts = os.path.basename(path).split("__")
    known = parts if len(parts) >= 4 else ["unknown"] * 3
    elapsed = milliseconds(last.get("elapsed_s")) if last else None
    logged = int(last["global_step"]) if last else 0
    seconds = [s for s in (elapsed, *(row[1] for row in trained.points)) if s]
    return RunSummary(
        path=path,
        algo=str(config.get("algo") or known[0]),
        env_id=str(config.get("env_id") or known[1]),
        seed=str(own.get("seed", known[2].removeprefix("seed"))),
        preset=str(metadata["preset"]) if metadata.get("preset") else None,
        status=str(metadata.get("status") or "unknown"),
        created=str(metadata.get("created_at_utc") or ""),
        tags=list(map(str, tags)) if isinstance(tags := metadata.get("tags"), list) else [],
        steps=max(0, logged, trained.newest),
        wall_seconds=max(seconds, default=None),
        steps_per_second=logged / elapsed if elapsed else None,
        eval_steps=[row[0] for row in trained.points],
        eval_seconds=[row[1] for row in trained.points],
        eval_means=[row[2] for row in trained.points],
        final=final.mean,
        final_episodes=final.episodes,
        best=best.mean,
        best_episodes=best.episodes,
        returns=final.returns,
        training_return=number(last.get(RETURN)) if last else None,
        overrides=_overrides(metadata),
        drifted=_drifted(metadata),
        departures=_departures(metadata),
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
        if (row := row_of(line)) is not None:
            if damaged:
                problems.append(f"{METRICS}: damaged at its end")
            return row
        damaged = True
    if damaged:
        problems.append(f"{METRICS}: damaged")
    return None


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


def _departures(metadata: Mapping[str, Any]) -> list[Difference] | None:
    """Where the run left its preset, as far as that makes it another experiment."""
    noted = metadata.get(PRESET_DIFFERENCES)
    if not isinstance(noted, list):
        return None
    found = [mapping(change) for change in noted]
    return [
        difference(str(change["key"]), change.get("preset", ABSENT), change.get("run", ABSENT))
        for change in found
        if change.get("key") and not is_free(str(change["key"]))
    ]
