"""What a study has come to, in one file (`study.json`) that needs neither Optuna nor torch to be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment import yaml
from rl_training.experiment.config import to_dict
from rl_training.experiment.files import replace_atomically, to_json
from rl_training.zoo.configs import flat, shown, value_at
from rl_training.zoo.rows import mapping, number
from rl_training.zoo.tuning.shape import SCHEMA_VERSION, check_shape

if TYPE_CHECKING:
    from rl_training.zoo.tuning.study import Design

RECORD, STUDY, PRESET = "study.json", "study.yaml", "best.yaml"
FREE = ("description", "trials", "workers", "held_out", "preset", "config", "overrides")
"""What a study that goes on may say otherwise; what is tuned is compared as a whole."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial."""

    number: int
    state: str
    params: Mapping[str, Any]
    value: float | None = None
    """Its score; of a pruned trial, the last value on the way."""
    reported: Sequence[float] = ()
    """Values on the way, in order."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Mean return by seed."""
    seconds: float | None = None
    error: str | None = None


class Scored(Protocol):
    """A trial as far as its score goes."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def value(self) -> float | None: ...


TrialT = TypeVar("TrialT", bound=Scored)


def best_of(trials: Sequence[TrialT]) -> TrialT | None:
    """The completed trial with the highest score; of equals the first."""
    done = [trial for trial in trials if trial.state == "completed" and trial.value is not None]
    return max(done, key=lambda trial: (trial.value, -trial.number), default=None)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as reports read it."""

    path: Path
    data: Mapping[str, Any]
    trials: Sequence[TrialRecord]

    @property
    def name(self) -> str:
        """How it is called."""
        return str(self.data.get("name") or self.path.name)

    @property
    def space(self) -> Mapping[str, Mapping[str, Any]]:
        """What is searched, by dotted key."""
        return mapping(self.data["space"])

    @property
    def base(self) -> Mapping[str, Any]:
        """The base configuration's values of what is searched."""
        return mapping(self.data["base"].get("values"))

    @property
    def validation(self) -> Mapping[str, Any]:
        """The comparison of best and base on held-out seeds, or nothing."""
        return mapping(self.data.get("validation"))

    @property
    def imports(self) -> list[str]:
        """Modules that its configurations need."""
        return list(self.data.get("imports") or ())

    @property
    def best(self) -> TrialRecord | None:
        """The completed trial with the highest score."""
        return best_of(self.trials)

    def of(self, *states: str) -> list[TrialRecord]:
        """Trials in one of these states that have a value."""
        return [trial for trial in self.trials if trial.state in states and trial.value is not None]

    def count(self, state: str) -> int:
        """How many trials are in a state."""
        return sum(trial.state == state for trial in self.trials)


def write_record(folder: Path, design: Design, trials: Sequence[TrialRecord], **more: Any) -> dict[str, Any]:
    """Bring the record up to date, in one step."""
    study, base = design.study, design.base
    values = to_dict(base.config)
    data = {
        "schema_version": SCHEMA_VERSION,
        "name": study.name,
        "description": study.description,
        "base": {
            "preset": study.preset, "config": study.config, "overrides": study.overrides,
            "algo": base.config.algo, "env_id": base.config.env_id,
            "values": {d.key: value_at(values, d.key) for d in design.dimensions},
        },
        "space": {d.key: _dimension(asdict(d)) for d in design.dimensions},
        "asked": design.trials,
        "steps": study.steps,
        "seeds": list(study.seeds),
        "held_out": list(study.held_out),
        "evaluation": {**to_dict(study.evaluation), "on_the_way": design.evaluations},
        "sampler": to_dict(study.sampler),
        "pruner": to_dict(study.pruner),
        "seed": study.seed,
        "warnings": list(design.warnings),
        **more,
        "trials": [asdict(trial) for trial in trials],
    }  # fmt: skip
    replace_atomically(folder / RECORD, (to_json(data, indent=1) + "\n").encode())
    return data


def read_record(path: str | Path) -> StudyRecord:
    """A study by its directory, or by its record."""
    path = Path(path)
    file = path / RECORD if path.is_dir() else path
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        hint = f"no {RECORD} in it" if path.is_dir() else str(error.strerror)
        raise AxiomError(f"{path}: not a study: {hint}; name the directory that `tune` printed") from None
    except (ValueError, RecursionError) as error:
        raise AxiomError(f"{file}: cannot be read: {error}") from None
    check_shape(file, data)
    return StudyRecord(file.parent, data, [_trial(entry) for entry in data["trials"]])


def claim(folder: Path, design: Design) -> None:
    """Note what the study is, or make sure that the one in this folder is the same."""
    study = {key: value for key, value in to_dict(design.study).items() if key not in FREE}
    base = {k: v for k, v in to_dict(design.base.config).items() if k not in ("seed", "output_dir", "tags")}
    asked = {**study, "base": base}
    file = folder / STUDY
    if not file.exists():
        replace_atomically(file, yaml.dump(asked).encode())
        return
    there, now = dict(flat(yaml.load_file(file).data)), dict(flat(asked))
    keys = [*there, *(key for key in now if key.startswith("space."))]  # elsewhere, fields may be added
    different = [key for key in dict.fromkeys(keys) if there.get(key) != now.get(key)]
    if different:
        raise ConfigError(
            [
                *(
                    f"{folder}: begun with another {key.removeprefix('base.')}: {shown(there.get(key))}, "
                    f"not {shown(now.get(key))}"
                    for key in different
                ),
                "give another --output-dir, or remove that study",
            ]
        )


def _dimension(values: dict[str, Any]) -> dict[str, Any]:
    own = ("kind", "choices") if values["kind"] == "choice" else ("kind", "low", "high", "log", "step")
    return {name: values[name] for name in own}


def _trial(entry: Mapping[str, Any]) -> TrialRecord:
    """A trial; values that are no numbers are left out."""
    return TrialRecord(
        entry["number"],
        entry["state"],
        mapping(entry.get("params")),
        number(entry.get("value")),
        [n for value in entry.get("reported", ()) if (n := number(value)) is not None],
        {key: n for key, value in entry.get("scores", {}).items() if (n := number(value)) is not None},
        number(entry.get("seconds")),
        entry.get("error"),
    )
