"""Two configurations trained in turns, so that what else happens on the machine meets both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from rl_training.errors import AxiomError
from rl_training.experiment.config import TrainConfig
from rl_training.profiling.bench import Bench
from rl_training.profiling.candidates import WORTHWHILE, Candidate

ROUNDS = 5
STEADY = 0.8
"""The share of turns in which something has to be faster before it is called so."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Steps a second of the one and of the other, turn by turn, and what that makes of a whole run."""

    present: tuple[float, ...]
    other: tuple[float, ...]
    total_timesteps: int
    start_up_s: float = 0.0
    """What the other took until it was at its speed: making envs, compiling, first updates."""
    present_start_up_s: float = 0.0
    """The same of the one."""

    @property
    def ratios(self) -> list[float]:
        """How many times as fast the steps of the other were, turn by turn."""
        return [new / old for old, new in zip(self.present, self.other, strict=True)]

    @property
    def speed(self) -> float:
        """Steps a second of the other."""
        return median(self.other)

    @property
    def present_speed(self) -> float:
        """Steps a second of the one."""
        return median(self.present)

    @property
    def ratio(self) -> float:
        """How many times as fast its steps were."""
        return median(self.ratios)

    @property
    def gains(self) -> list[float]:
        """How many times as fast a whole run would be, its start included, turn by turn."""
        steps = self.total_timesteps
        return [
            (self.present_start_up_s + steps / old) / (self.start_up_s + steps / new)
            for old, new in zip(self.present, self.other, strict=True)
        ]

    @property
    def gain(self) -> float:
        """How many times as fast a whole run would be."""
        return median(self.gains)

    @property
    def is_faster(self) -> bool:
        """A whole run, beyond noise: by enough, and in nearly every turn."""
        turns = sum(gain > 1.0 for gain in self.gains)
        return self.gain >= WORTHWHILE and turns >= STEADY * len(self.gains)

    @property
    def pays_from(self) -> int | None:
        """The steps of a run from which on faster ones repay a longer start; None where they never do."""
        saved = 1.0 / self.present_speed - 1.0 / self.speed
        later = max(self.start_up_s - self.present_start_up_s, 0.0)
        return ceil(later / saved) if saved > 0.0 else None


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and what came of it, or why nothing did."""

    candidate: Candidate
    comparison: Comparison | None = None
    error: str = ""
    """Why it cannot be had here."""
    skipped: str = ""
    """Why it was not tried."""

    @property
    def is_faster(self) -> bool:
        """Was it measured and found faster?"""
        return self.comparison is not None and self.comparison.is_faster

    @property
    def gain(self) -> float:
        """How many times as fast a whole run would be; 0 where that is not known."""
        return 0.0 if self.comparison is None else self.comparison.gain


def compare(
    present: TrainConfig, other: TrainConfig, weights: Mapping[str, Any], seconds: float
) -> Comparison:
    """Train both from the same weights for `seconds` each, in turns."""
    with Bench(other) as new, Bench(present) as old:
        for bench in (new, old):
            bench.trainer.algorithm.load_state_dict(weights, weights_only=True)
        start_up, present_start_up = new.warm_up(), old.warm_up()
        slices = [(old.run(seconds / ROUNDS), new.run(seconds / ROUNDS)) for _ in range(ROUNDS)]
    ours, theirs = zip(*slices, strict=True)
    return Comparison(
        tuple(speed.per_second for speed in ours),
        tuple(speed.per_second for speed in theirs),
        present.total_timesteps,
        start_up,
        present_start_up,
    )


def try_out(config: TrainConfig, candidate: Candidate, weights: Mapping[str, Any], seconds: float) -> Trial:
    """Measure one candidate; one that cannot be had is no error."""
    try:
        return Trial(candidate, compare(config, candidate.apply(config), weights, seconds))
    except AxiomError as error:
        return Trial(candidate, error=str(error))


def winners(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest trial of each key that was faster at all, the largest gain first."""
    best: dict[str, Trial] = {}
    for trial in sorted((t for t in trials if t.is_faster), key=lambda t: t.gain, reverse=True):
        best.setdefault(trial.candidate.key, trial)
    return list(best.values())
