"""Two configurations trained in turns, so that what else happens on the machine meets both."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf
from statistics import median
from typing import Any, TypeVar

import torch

from rl_training.errors import AxiomError
from rl_training.experiment.config import TrainConfig
from rl_training.profiling.bench import Bench
from rl_training.profiling.candidates import WORTHWHILE, Candidate

TURNS = 5
"""Of each side; of what leads, and has to be sure, `MORE_TURNS`."""
MORE_TURNS = 10
STEADY = 0.8
"""The share of turns in which something has to be faster before it is called so."""
SLACK = 1.1
"""How many times more than can be is called noise: the shares of the time are measured, too."""
SLOW_START = 3.0
"""Seconds of a start that are worth a word, and of compiling after which a start is made again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Steps a second of the one and of the other, turn by turn, and what that makes of a whole run."""

    present: tuple[float, ...]
    other: tuple[float, ...]
    total_timesteps: int
    start_up_s: float = 0.0
    """What the other takes until it is at its speed: making envs, compiling, first updates."""
    present_start_up_s: float = 0.0
    """The same of the one."""
    first_start_up_s: float | None = None
    """What the other took the first time, where later starts find on disk what that one had to compile."""

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
    at_most: float = inf
    """How many times as fast its steps can be, by the shares of the time that it could shorten."""
    first: Comparison | None = None
    """What was measured before, of one that was measured again since it led."""

    @property
    def is_noise(self) -> bool:
        """Was more measured than can be?"""
        return self.comparison is not None and self.comparison.ratio > self.at_most * SLACK

    @property
    def is_faster(self) -> bool:
        """Was it measured and found faster?"""
        return self.comparison is not None and self.comparison.is_faster and not self.is_noise

    @property
    def gain(self) -> float:
        """How many times as fast a whole run would be; 0 where that is not known."""
        return 0.0 if self.comparison is None else self.comparison.gain


def compare(
    present: TrainConfig, other: TrainConfig, weights: Mapping[str, Any], seconds: float, turns: int = TURNS
) -> Comparison:
    """Train both from the same weights in turns of `seconds` each; who begins a turn ends the next."""
    with _ready(other, weights) as (new, start_up, first), _ready(present, weights) as (old, before, _):
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(turns):
            for bench, speeds in ((old, ours), (new, theirs))[:: -1 if turn % 2 else 1]:
                speeds.append(bench.run(seconds).per_second)
    return Comparison(tuple(ours), tuple(theirs), present.total_timesteps, start_up, before, first)


@contextmanager
def _ready(config: TrainConfig, weights: Mapping[str, Any]) -> Iterator[tuple[Bench, float, float | None]]:
    """A bench at its speed, what a start takes, and what the first one took if it had to compile a lot."""
    bench, start_up = _started(config, weights)
    first = None
    if bench.compiling_s >= SLOW_START:
        bench.close()
        del bench  # and its memory
        first = start_up
        bench, start_up = _started(config, weights)
    with bench:
        yield bench, start_up, first


def _started(config: TrainConfig, weights: Mapping[str, Any]) -> tuple[Bench, float]:
    bench = Bench(config)
    try:
        bench.trainer.algorithm.load_state_dict(weights, weights_only=True)
        return bench, bench.warm_up()
    except BaseException:
        bench.close()
        raise


def attempt(measure: Callable[[], T]) -> tuple[T | None, str]:
    """What was measured, or why it cannot be: too little memory for one thing must not cost all others."""
    try:
        return measure(), ""
    except AxiomError as error:
        return None, str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
    gc.collect()  # what failed may be held by what it belongs to
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    return None, problem


def try_out(
    config: TrainConfig,
    candidate: Candidate,
    weights: Mapping[str, Any],
    seconds: float,
    at_most: float = inf,
    turns: int = TURNS,
) -> Trial:
    """Measure one candidate; one that cannot be had is no error."""
    found, error = attempt(lambda: compare(config, candidate.apply(config), weights, seconds, turns))
    return Trial(candidate, found, error=error, at_most=at_most)


def winners(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest trial of each key that was faster at all, the largest gain first."""
    best: dict[str, Trial] = {}
    for trial in sorted((t for t in trials if t.is_faster), key=lambda t: t.gain, reverse=True):
        best.setdefault(trial.candidate.key, trial)
    return list(best.values())
