"""Drift: what in a run is not as its preset says, so that a number never passes for another experiment's.

The preset's own values are compared, and the package's defaults where the preset is silent. Defaults of
hyperparameters live with the algorithms, whose import would need torch: those that a preset does not name are
flagged when they were set on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rl_training.errors import AxiomError
from rl_training.experiment.presets import load_preset
from rl_training.experiment.sections import merged
from rl_training.zoo.configs import Config, flat, shown, value_at
from rl_training.zoo.summaries import RunSummary

PROTOCOL = ("total_timesteps", "evaluation", "stopping")
"""How long is trained and how it is measured."""
FREE = (
    "seed", "output_dir", "tags", "device", "threads", "compile", "deterministic", "on_nan", "checkpoint",
    "logging",
)  # fmt: skip
"""What a run may choose without becoming another experiment."""
FREE_KEYS = ("env.backend", "env.worker_timeout", "env.max_worker_restarts", "evaluation.num_envs")


@dataclass(frozen=True, slots=True)
class Drift:
    """One key that is not what was laid down."""

    key: str
    expected: str
    found: str
    kind: Literal["config", "protocol", "resume"]

    def __str__(self) -> str:
        if self.kind == "resume":
            return f"{self.key} was changed in the middle of the run"
        return f"{self.key}: {self.found} instead of {self.expected}"


def drift_of(run: RunSummary) -> tuple[Drift, ...]:
    """Everything in a run that is not as its preset says; nothing for a run without one."""
    changed = tuple(Drift(key, "", "", "resume") for key in run.drifted)
    if run.preset is None or not run.config:
        return changed
    return (*_compared(run.preset, _Same(run.config)), *_overridden(run), *changed)


def _overridden(run: RunSummary) -> Iterator[Drift]:
    """Hyperparameters set on the command line that the preset leaves to the algorithm's defaults."""
    expected = expected_config(run.preset or "")
    if expected is None:
        return
    laid_down = {key for key, _ in flat(expected)}
    for key in run.overrides:
        if key not in laid_down:
            yield Drift(key, "the default", shown(value_at(run.config, key)), "config")


def differences(expected: Config, found: Config) -> Iterator[Drift]:
    """Values that a configuration lays down and a run does not have."""
    values = dict(flat(found))
    for key, wanted in flat(expected):
        if is_free(key) or key not in values:
            continue
        if not _equal(values[key], wanted):
            kind: Literal["config", "protocol"] = "protocol" if key.split(".")[0] in PROTOCOL else "config"
            yield Drift(key, shown(wanted), shown(values[key]), kind)


def is_free(key: str) -> bool:
    """May a run choose this without becoming another experiment?"""
    return key.split(".")[0] in FREE or key in FREE_KEYS


@cache
def expected_config(preset: str) -> Mapping[str, Any] | None:
    """What a preset lays down: defaults that need no algorithm, and its own values on top."""
    try:
        own = load_preset(preset).data
    except AxiomError:
        return None  # a preset of another version, or of the user's own
    return merged(_defaults(), own)


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
    return () if expected is None else tuple(differences(expected, found.config))


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


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return bool(found == wanted)
