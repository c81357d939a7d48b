"""What is different between the configuration of a checkpoint and the one a run is to go on with.

A resumed run ends bit for bit where it would have ended only if what shapes training stays as it was. Each
key has an effect on that: `none` (saving, reporting, when to stop), `numeric` (the same computation, whose
last bits may differ), or `drift` (another run from here on), which must be allowed explicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rl_training.envs.kinds import BACKENDS
from rl_training.errors import ConfigError
from rl_training.experiment import yaml
from rl_training.experiment.config import KeyPath, TrainConfig, to_dict
from rl_training.experiment.layers import Resolved
from rl_training.experiment.sections import flat

Effect = Literal["none", "numeric", "drift"]
Grade = tuple[str, str]
"""How exactly a run was picked up, and why not better."""

HARMLESS = (
    "output_dir",  # a run that goes on stays where it is
    "tags",
    "total_timesteps",  # the horizon of schedules is part of the state
    "on_nan",  # differs only where the run would have ended
    "env.worker_timeout",
    "env.max_worker_restarts",
    "env.atari.threads",
    "evaluation",  # has envs and seeds of its own
    "hyperparams.buffer_storage",  # the same numbers, elsewhere
    "checkpoint",  # saving is a pure observer
    "logging",
    "stopping",  # says when a run ends, not what it learns until then
)
NUMERIC = ("device", "precision", "threads", "compile", "deterministic")
_REPLAYED = {"auto", *(name for name, kind in BACKENDS.items() if kind.replays)}
"""Backends that step the same envs and put them back the same way; `auto` is what it was."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key that is not what it was, and where its new value comes from."""

    key: str
    old: Any
    new: Any
    origin: str
    effect: Effect

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} → {_shown(self.new)} ({self.origin})"

    def record(self) -> dict[str, Any]:
        """As it is kept in the metadata."""
        return {name: value for name, value in asdict(self).items() if name != "effect"}


def config_changes(old: TrainConfig, new: Resolved, source: str = "") -> list[Change]:
    """Every key whose value differs, in the order of the configuration; `source` is where it might stand."""
    before, after = dict(flat(to_dict(old))), dict(flat(to_dict(new.config)))
    return [
        Change(".".join(path), before.get(path), after.get(path), _origin(path, new.origins, source),
               _effect(path, before.get(path), after.get(path)))
        for path in dict.fromkeys([*before, *after])
        if before.get(path) != after.get(path)
    ]  # fmt: skip


def drift_of(changes: Iterable[Change]) -> list[Change]:
    """The changes that make it another run."""
    return [change for change in changes if change.effect == "drift"]


def require_allowed(
    changes: Sequence[Change], *, allow_drift: bool, accepted: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Refuse what would break exactness, unless it is allowed now or was when the run last went on."""
    known = {(str(record.get("key")), _shown(record.get("new"))) for record in accepted}
    refused = [change for change in drift_of(changes) if (change.key, _shown(change.new)) not in known]
    if refused and not allow_drift:
        error = ConfigError([str(change) for change in refused])
        error.add_note(
            "with that it would not be the same run any more; undo it, or accept it with --allow-drift "
            "(in Python: allow_drift=True)"
        )
        raise error


def graded(
    grade: Grade, before: Mapping[str, Any], now: Mapping[str, Any], changes: Sequence[Change]
) -> Grade:
    """The grade of the envs, lowered by what else is not as it was: software, hardware, configuration."""
    numeric = [*_differences(before, now), *(str(change) for change in changes if change.effect == "numeric")]
    if grade[0] == "exact" and numeric:
        grade = ("numeric", f"same state, but computed otherwise: {'; '.join(numeric)}")
    if drift := drift_of(changes):
        less = f"; besides, {grade[1]}" if grade[0] != "exact" else ""
        grade = ("drift", f"the configuration was changed: {'; '.join(map(str, drift))}{less}")
    return grade


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is not the same about software and hardware, as far as it is known."""
    return [
        f"{name} {then[name]} → {value}"
        for part, now in after.items()
        if isinstance(then := before.get(part), dict)
        for name, value in now.items()
        if name in then and then[name] != value
    ]


def _effect(path: KeyPath, old: Any, new: Any) -> Effect:
    key = ".".join(path)
    if key in HARMLESS or path[0] in HARMLESS:
        return "none"
    if key == "env.backend" and {old, new} <= _REPLAYED:
        return "none"
    return "numeric" if key in NUMERIC else "drift"


def _origin(path: KeyPath, origins: Mapping[KeyPath, str], source: str) -> str:
    """Where a value was written; a section that is gone has no lines of its own."""
    for end in range(len(path), 0, -1):
        if path[:end] in origins:
            return origins[path[:end]]
    return f"default, as it is not in {source}" if source else "default"


def _shown(value: Any) -> str:
    return yaml.dump_line({"value": value}).removeprefix("value: ")
