"""`axiomrl compare A B`: is B better or worse than A, in return and in speed, beyond what chance explains?

The unit is the run: seeds vary more than episodes. Where there are too few runs for any of their divisions to
be unlikely (one on each side, say), episodes are compared instead, and a difference must then also be larger
than `EPISODE_MARGIN`, since episodes of one run say nothing of how seeds vary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rl_training.errors import AxiomError
from rl_training.zoo.significance import holm, p_worse, p_worse_overall, smallest_p
from rl_training.zoo.statistics import Estimate, difference, mean, probability_of_improvement
from rl_training.zoo.summaries import RunSummary

ALPHA, EPISODE_MARGIN = 0.05, 0.1
Verdict = Literal["worse", "better", "no difference", "cannot tell"]
Unit = Literal["runs", "episodes"]


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
class TaskResult:
    """One task: means, their difference, how likely B beats A, and the p-value of each direction."""

    samples: Samples
    mean_a: float
    mean_b: float
    delta: Estimate
    probability: Estimate
    p_worse: float
    p_better: float
    verdict: Verdict

    @property
    def relative(self) -> float | None:
        """The difference as a share of A's size."""
        return self.delta.value / abs(self.mean_a) if self.mean_a else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A and B in one respect, over all tasks they share."""

    name: str
    results: Sequence[TaskResult]
    p_worse: float
    p_better: float
    verdict: Verdict

    @property
    def by_episodes(self) -> bool:
        """Were episodes compared somewhere, for want of runs?"""
        return any(result.samples.unit == "episodes" for result in self.results)


@dataclass(frozen=True, slots=True)
class Matched:
    """What both sides have, and what only one has."""

    tasks: Sequence[tuple[str, list[RunSummary], list[RunSummary]]]
    only_a: Sequence[str]
    only_b: Sequence[str]


def match(a: Sequence[RunSummary], b: Sequence[RunSummary]) -> Matched:
    """Pair runs by algorithm, env and preset; if that pairs nothing, by env, and then all with all."""
    for key in (_exactly, _env):
        left, right = _by(a, key), _by(b, key)
        if shared := sorted(left.keys() & right.keys()):
            tasks = [(name, left[name], right[name]) for name in shared]
            return Matched(tasks, sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys()))
    envs = ", ".join(sorted({run.env_id for run in a})), ", ".join(sorted({run.env_id for run in b}))
    raise AxiomError(f"nothing to compare: A has runs on {envs[0]}, B on {envs[1]}")


def compare_returns(
    matched: Matched, *, which: str = "final", tolerance: float = 0.0, confidence: float = 0.95
) -> Comparison:
    """Mean return of the evaluation that stands for each run."""
    samples = []
    for task, left, right in matched.tasks:
        a, b = ([s for run in side if (s := run.score(which)) is not None] for side in (left, right))
        if not a or not b:
            continue
        ones, twos = ([r for run in side for r in run.returns] for side in (left, right))
        if smallest_p(len(a), len(b)) > ALPHA and which == "final" and min(len(ones), len(twos)) > 1:
            samples.append(Samples(task, ones, twos, "episodes"))
        else:
            samples.append(Samples(task, a, b, "runs"))
    if not samples:
        raise AxiomError("nothing to compare: no evaluation has been recorded on one of the sides")
    return judge("return", samples, tolerance=tolerance, confidence=confidence)


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
    worse = [p_worse(s.a, s.b) for s in samples]
    better = [p_worse(s.b, s.a) for s in samples]
    several = len(samples) > 1
    level = ALPHA / 2 if several else ALPHA
    adjusted = holm(worse), holm(better)
    results = []
    for index, sample in enumerate(samples):
        known = smallest_p(len(sample.a), len(sample.b)) <= level
        verdict = _verdict(sample, adjusted[0][index], adjusted[1][index], level, tolerance, known)
        results.append(_result(sample, worse[index], better[index], verdict, confidence))
    if not several:
        return Comparison(name, results, worse[0], better[0], results[0].verdict)
    down, up = (_overall(samples, turned) for turned in (False, True))
    small = all(_small(sample, tolerance) for sample in samples)
    verdicts = [result.verdict for result in results]
    overall: Verdict = "no difference"
    if "worse" in verdicts or (down <= level and not small):
        overall = "worse"
    elif "better" in verdicts or (up <= level and not small):
        overall = "better"
    elif all(verdict == "cannot tell" for verdict in verdicts) and min(down, up) > level:
        overall = "cannot tell"
    return Comparison(name, results, down, up, overall)


def is_worse(a: Sequence[float], b: Sequence[float], unit: Unit = "runs", tolerance: float = 0.0) -> bool:
    """The decision alone, on one task."""
    sample = Samples("", a, b, unit)
    p = p_worse(a, b)
    return _verdict(sample, p, 1.0, ALPHA, tolerance, known=True) == "worse"


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """A comparison for programs."""
    return {
        "verdict": comparison.verdict,
        "p_worse": comparison.p_worse,
        "p_better": comparison.p_better,
        "tasks": [
            {
                "task": r.samples.task, "unit": r.samples.unit, "a": len(r.samples.a), "b": len(r.samples.b),
                "mean_a": r.mean_a, "mean_b": r.mean_b, "difference": r.delta.value, "low": r.delta.low,
                "high": r.delta.high, "relative": r.relative,
                "probability_of_improvement": r.probability.value,
                "probability_low": r.probability.low, "probability_high": r.probability.high,
                "p_worse": r.p_worse, "p_better": r.p_better, "verdict": r.verdict,
            }
            for r in comparison.results
        ],
    }  # fmt: skip


def _verdict(
    sample: Samples, p_down: float, p_up: float, level: float, tolerance: float, known: bool
) -> Verdict:
    if not known:
        return "cannot tell"
    if _small(sample, tolerance):
        return "no difference"
    return "worse" if p_down <= level else "better" if p_up <= level else "no difference"


def _small(sample: Samples, tolerance: float) -> bool:
    """Is the difference too small to matter, whatever its p-value?"""
    before, after = float(np.mean(sample.a)), float(np.mean(sample.b))
    return abs(after - before) <= max(tolerance, sample.margin) * abs(before)


def _result(s: Samples, down: float, up: float, verdict: Verdict, confidence: float) -> TaskResult:
    return TaskResult(
        s,
        float(np.mean(s.a)),
        float(np.mean(s.b)),
        difference([s.a], [s.b], mean, confidence=confidence),
        probability_of_improvement([s.a], [s.b], confidence=confidence),
        down,
        up,
        verdict,
    )


def _overall(samples: Sequence[Samples], turned: bool) -> float:
    first, second = [s.a for s in samples], [s.b for s in samples]
    return p_worse_overall(second, first) if turned else p_worse_overall(first, second)


def _by(runs: Sequence[RunSummary], key: Callable[[RunSummary], str]) -> dict[str, list[RunSummary]]:
    found: dict[str, list[RunSummary]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _exactly(run: RunSummary) -> str:
    return " · ".join([run.algo, run.env_id, *([run.preset] if run.preset else [])])


def _env(run: RunSummary) -> str:
    return run.env_id
