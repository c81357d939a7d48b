"""Drift: what in a run is not as was laid down, so that a number never passes for another experiment's.

What its manifest asked for comes first (`zoo.asked`), then what its preset says: the preset's own values, and
the package's defaults where it is silent. Defaults of hyperparameters live with the algorithms, whose import
would need torch: what differs there was noted when the run was made. Runs that are older than this note are
flagged for hyperparameters that were set on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rl_training.errors import AxiomError
from rl_training.experiment.presets import load_preset
from rl_training.experiment.sections import ABSENT, differing, merged
from rl_training.zoo.configs import Config, Difference, difference, flat, is_free, is_open, value_at
from rl_training.zoo.summaries import RunSummary

PROTOCOL = ("total_timesteps", "evaluation", "stopping", "judged")
"""How long is trained and how it is measured."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One key that is not what was laid down."""

    key: str
    expected: str
    found: str
    kind: Literal["config", "protocol", "resume"]

    @classmethod
    def of(cls, changed: Sequence[str]) -> Drift:
        """A difference as drift."""
        key, expected, found = changed
        return cls(key, expected, found, "protocol" if key.split(".")[0] in PROTOCOL else "config")

    def __str__(self) -> str:
        if self.kind == "resume":
            return f"{self.key} was changed in the middle of the run"
        return f"{self.key}: {self.found} instead of {self.expected}"


def drift_of(run: RunSummary) -> tuple[Drift, ...]:
    """Everything in a run that is not as its manifest and its preset say, and what a resume changed."""
    found = [Drift.of(changed) for changed in run.unasked]
    if run.preset is not None:
        settled = {*run.granted, *(change.key for change in found)}
        found += (change for change in _from_preset(run, run.preset) if change.key not in settled)
    return (*found, *(Drift(key, "", "", "resume") for key in run.drifted))


def differences(expected: Config, found: Config) -> Iterator[Difference]:
    """Values that are laid down and that a run does not have; in open sections also those that it adds.

    Other keys that only one of them has are those of another version, or of a part of a configuration.
    """
    for path, wanted, value in differing(expected, found):
        key = ".".join(path)
        in_both = path[0] in expected and path[0] in found
        if is_free(key) or (ABSENT in (wanted, value) and not (is_open(key) and in_both)):
            continue
        yield difference(key, wanted, value)


@cache
def expected_config(preset: str) -> Mapping[str, Any] | None:
    """What a preset lays down: defaults that need no algorithm, and its own values on top."""
    try:
        own = load_preset(preset).data
    except AxiomError:
        return None  # a preset of another version, or of the user's own
    return merged(_defaults(), own)


def _from_preset(run: RunSummary, preset: str) -> Iterable[Drift]:
    """What the preset as it is now lays down; of all else, what the run noted."""
    if not run.config or expected_config(preset) is None:
        return map(Drift.of, run.departures or ())
    noted = _overridden(run) if run.departures is None else run.departures
    named = _named(preset) if noted else ()
    beyond = [Drift.of(changed) for changed in noted if changed[0] not in named and not is_open(changed[0])]
    return (*_compared(preset, _Same(run.config)), *beyond)


@cache
def _named(preset: str) -> frozenset[str]:
    """The keys that a preset, or a default beside it, lays down."""
    return frozenset(key for key, _ in flat(expected_config(preset) or {}))


def _overridden(run: RunSummary) -> list[Difference]:
    """Hyperparameters that were set on the command line."""
    return [difference(key, ABSENT, value_at(run.config, key)) for key in run.overrides]


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A config that is compared by what it is, so that runs which share one are judged once."""

    config: Config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.config is self.config


@cache
def _compared(preset: str, found: _Same) -> tuple[Drift, ...]:
    expected = expected_config(preset)
    if expected is None:
        return ()
    return tuple(map(Drift.of, (*differences(expected, found.config), *_not_yet_known(preset, found.config))))


def _not_yet_known(preset: str, found: Config) -> Iterator[Difference]:
    """What the preset names in a section that the run has without it, as runs of older versions do."""
    own = dict(flat(found))
    for key, wanted in flat(load_preset(preset).data):
        section, _, name = key.partition(".")
        if name and section in found and key not in own and not is_open(key) and not is_free(key):
            yield difference(key, wanted, ABSENT)


@cache
def _defaults() -> Mapping[str, Any]:
    """The package's defaults, hyperparameters apart."""
    from dataclasses import MISSING, fields

    from rl_training.experiment.config import TrainConfig, plain

    values = {}
    for field in fields(TrainConfig):
        if callable(field.default_factory):
            values[field.name] = plain(field.default_factory())
        elif field.default is not MISSING and field.name != "hyperparams":
            values[field.name] = plain(field.default)
    return values
