"""`axiomrl compare A B`: is B better or worse than A, in return and in speed, beyond what chance explains?

The unit is the run: seeds vary more than episodes. Where there are too few runs for any of their divisions to
be unlikely (one on each side, say), episodes are compared instead, and a difference must then also be larger
than `EPISODE_MARGIN`, since episodes of one run say nothing of how seeds vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rl_training.zoo.pairing import Matched
from rl_training.zoo.significance import p_worse, p_worse_each, p_worse_overall, smallest_p
from rl_training.zoo.statistics import Estimate, difference, mean, probability_of_improvement

ALPHA, EPISODE_MARGIN = 0.05, 0.1
Direction = Literal["worse", "better"]
Verdict = Literal["worse", "better", "no difference", "cannot tell"]
Unit = Literal["runs", "episodes"]
_FIRST: dict[Verdict, int] = {"worse": 0, "better": 1}


@dataclass(frozen=True, slots=True)
class Samples:
    """The numbers of both sides on one task, and what each of them stands for."""

    task: str
    a: Sequence[float]
    b: Sequence[float]
    unit: Unit

    @property
    def margin(self) -> float:
        """The share of A's mean by which B must differ at least."""
        return EPISODE_MARGIN if self.unit == "episodes" else 0.0


@dataclass(frozen=True, slots=True)
class PValues:
    """How likely chance alone puts B so far behind, and so far ahead; corrected for the number of tests."""

    worse: float
    better: float

    @property
    def lower(self) -> float:
        """That of the direction in which B differs."""
        return min(self.worse, self.better)

    def shows(self, direction: Direction) -> bool:
        """Is it too unlikely to be chance?"""
        return (self.worse if direction == "worse" else self.better) <= ALPHA


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task: means, their difference, how likely B beats A, and what follows."""

    samples: Samples
    mean_a: float
    mean_b: float
    delta: Estimate
    probability: Estimate
    p: PValues
    limit: float
    verdict: Verdict

    @property
    def relative(self) -> float | None:
        """The difference as a share of A's size."""
        return self.delta.value / abs(self.mean_a) if self.mean_a else None

    @property
    def is_small(self) -> bool:
        """Is the difference within the `limit`, a share of A, so that it does not count?"""
        return _is_small(self.mean_a, self.mean_b, self.limit)

    def leans(self, direction: Direction) -> bool:
        """Is B on this side of A, by more than what does not count?"""
        return (self.mean_b < self.mean_a) == (direction == "worse") and not self.is_small


@dataclass(frozen=True, slots=True)
class Comparison:
    """A and B in one respect; tasks that are worse come first, then those that are better, then by p."""

    name: str
    results: Sequence[TaskResult]
    together: PValues | None
    """The test over all tasks at once: small drops everywhere may show on none alone. None for one task."""

    @property
    def p(self) -> PValues:
        """The lowest p-values of all tests."""
        tests = [result.p for result in self.results] + ([self.together] if self.together else [])
        return PValues(min(test.worse for test in tests), min(test.better for test in tests))

    @property
    def verdict(self) -> Verdict:
        """Worse if B is so on any task or over all of them; better likewise, if nothing is worse."""
        directions: tuple[Direction, ...] = ("worse", "better")
        for direction in directions:
            if self.on(direction) or self.shows_together(direction):
                return direction
        is_blind = len(self.on("cannot tell")) == len(self.results) and self.p.lower > ALPHA
        return "cannot tell" if is_blind else "no difference"

    @property
    def by_episodes(self) -> bool:
        """Were episodes compared somewhere, for want of runs?"""
        return any(result.samples.unit == "episodes" for result in self.results)

    def on(self, verdict: Verdict) -> list[TaskResult]:
        """The tasks with this verdict."""
        return [result for result in self.results if result.verdict == verdict]

    def shows_together(self, direction: Direction) -> bool:
        """Does the test over all tasks show it, and is there a task where it is more than counts?"""
        if self.together is None or not self.together.shows(direction):
            return False
        return any(result.leans(direction) for result in self.results)


def compare_returns(
    matched: Matched, *, which: str = "final", tolerance: float = 0.0, confidence: float = 0.95
) -> Comparison | None:
    """Mean return of the evaluation that stands for each run; None without any on one side."""
    samples = []
    for task, left, right in matched.tasks:
        a, b = ([s for run in side if (s := run.score(which)) is not None] for side in (left, right))
        if not a or not b:
            continue
        scored = ([run for run in side if run.score(which) is not None] for side in (left, right))
        ones, twos = ([r for run in side for r in run.returns] for side in scored)
        if smallest_p(len(a), len(b)) > ALPHA and which == "final" and min(len(ones), len(twos)) > 1:
            samples.append(Samples(task, ones, twos, "episodes"))
        else:
            samples.append(Samples(task, a, b, "runs"))
    return judge("return", samples, tolerance=tolerance, confidence=confidence) if samples else None


def compare_speeds(
    matched: Matched, *, tolerance: float = 0.0, confidence: float = 0.95
) -> Comparison | None:
    """Steps a second over the whole run; None where they were not logged."""
    samples = []
    for task, left, right in matched.tasks:
        a, b = ([run.steps_per_second for run in side if run.steps_per_second] for side in (left, right))
        if a and b:
            samples.append(Samples(task, a, b, "runs"))
    return judge("speed", samples, tolerance=tolerance, confidence=confidence) if samples else None


def judge(
    name: str, samples: Sequence[Samples], *, tolerance: float = 0.0, confidence: float = 0.95
) -> Comparison:
    """Numbers and verdicts; with several tasks the chance of any false alarm stays below `ALPHA` together."""
    first, second = [s.a for s in samples], [s.b for s in samples]
    tests = 1 if len(samples) == 1 else 2  # of single tasks and of all together, which share the level
    known = [tests * smallest_p(len(s.a), len(s.b)) <= ALPHA for s in samples]
    worse, better = _each(first, second, known), _each(second, first, known)
    results = [
        _result(sample, _corrected(down, up, tests), is_known, tolerance, confidence)
        for sample, down, up, is_known in zip(samples, worse, better, known, strict=True)
    ]
    results.sort(key=lambda result: (_FIRST.get(result.verdict, 2), result.p.lower))
    if tests == 1:
        return Comparison(name, results, None)
    down, up = p_worse_overall(first, second), p_worse_overall(second, first)
    return Comparison(name, results, _corrected(down, up, tests))


def is_worse(a: Sequence[float], b: Sequence[float], unit: Unit = "runs", tolerance: float = 0.0) -> bool:
    """The decision alone, on one task."""
    sample, p = Samples("", a, b, unit), PValues(p_worse(a, b), 1.0)
    limit = max(tolerance, sample.margin)
    return _verdict(float(np.mean(a)), float(np.mean(b)), p, limit, is_known=True) == "worse"


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """A comparison for programs."""
    together = comparison.together
    return {
        "verdict": comparison.verdict,
        "p_worse": comparison.p.worse,
        "p_better": comparison.p.better,
        "together": None if together is None else {"p_worse": together.worse, "p_better": together.better},
        "tasks": [
            {
                "task": r.samples.task, "unit": r.samples.unit, "a": len(r.samples.a), "b": len(r.samples.b),
                "mean_a": r.mean_a, "mean_b": r.mean_b, "difference": r.delta.value, "low": r.delta.low,
                "high": r.delta.high, "relative": r.relative,
                "probability_of_improvement": r.probability.value,
                "probability_low": r.probability.low, "probability_high": r.probability.high,
                "p_worse": r.p.worse, "p_better": r.p.better, "verdict": r.verdict,
            }
            for r in comparison.results
        ],
    }  # fmt: skip


def _each(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], known: Sequence[bool]
) -> list[float]:
    """P-values of all tasks, corrected for the number of those that can tell anything at all."""
    found = [p_worse(a, b) for a, b in zip(first, second, strict=True)]
    able = [index for index, is_known in enumerate(known) if is_known]
    if len(able) > 1:
        corrected = p_worse_each([first[index] for index in able], [second[index] for index in able])
        for index, p in zip(able, corrected, strict=True):
            found[index] = p
    return found


def _corrected(worse: float, better: float, tests: int) -> PValues:
    return PValues(min(1.0, tests * worse), min(1.0, tests * better))


def _result(s: Samples, p: PValues, is_known: bool, tolerance: float, confidence: float) -> TaskResult:
    before, after, limit = float(np.mean(s.a)), float(np.mean(s.b)), max(tolerance, s.margin)
    return TaskResult(
        s,
        before,
        after,
        difference([s.a], [s.b], mean, confidence=confidence),
        probability_of_improvement([s.a], [s.b], confidence=confidence),
        p,
        limit,
        _verdict(before, after, p, limit, is_known),
    )


def _verdict(before: float, after: float, p: PValues, limit: float, is_known: bool) -> Verdict:
    if not is_known:
        return "cannot tell"
    if _is_small(before, after, limit):
        return "no difference"
    return "worse" if p.shows("worse") else "better" if p.shows("better") else "no difference"


def _is_small(before: float, after: float, limit: float) -> bool:
    return abs(after - before) <= limit * abs(before)
