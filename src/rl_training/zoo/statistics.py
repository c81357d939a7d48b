"""Statistics of scores over seeds and tasks: point estimates, and stratified-bootstrap intervals around them.

Scores come as strata: one array a task (env), its runs (seeds) on the last axis; tasks may have different
numbers of runs. A statistic maps strata to one number and works over leading axes at once, which is what
makes thousands of bootstrap replicates cheap. The unit of resampling is the run, drawn within its task
(Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Strata = Sequence[Array]
Statistic = Callable[[Strata], Array]

CONFIDENCE, REPLICATES = 0.95, 2000
_CHUNK = 2_000_000  # numbers held at once while resampling


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic and its interval; none where a task has one run, since nothing says how seeds vary."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the value twice where there is none."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    def overlaps(self, other: Estimate) -> bool:
        """Do the two intervals share a number? One that is not known may lie anywhere."""
        if self.low is None or other.low is None:
            return True
        return self.bounds[0] <= other.bounds[1] and other.bounds[0] <= self.bounds[1]


def mean(strata: Strata) -> Array:
    """The mean over tasks of the mean over runs: every task counts the same."""
    return np.asarray(_over_tasks(strata).mean(-1))


def median(strata: Strata) -> Array:
    """The median over tasks of the mean over runs; of a single task, the median over its runs."""
    values = _over_tasks(strata) if len(strata) > 1 else strata[0]
    return np.asarray(np.median(values, axis=-1))


def iqm(strata: Strata) -> Array:
    """The interquartile mean of all runs of all tasks: a quarter is cut off at each end, rounded down."""
    return interquartile_mean(np.concatenate(strata, axis=-1))


def optimality_gap(strata: Strata, target: float = 1.0) -> Array:
    """How far runs stay below a target, what is above it counting for nothing; smaller is better."""
    return target - mean([np.minimum(scores, target) for scores in strata])


STATISTICS: dict[str, Statistic] = {"iqm": iqm, "mean": mean, "median": median, "gap": optimality_gap}
"""What a command can rank by."""


def interquartile_mean(values: ArrayLike) -> Array:
    """The mean of the middle half along the last axis."""
    scores = np.asarray(values, np.float64)
    cut, runs = scores.shape[-1] // 4, scores.shape[-1]
    if cut:
        scores = np.sort(scores, axis=-1)  # faster than to partition them at two places
    return np.asarray(scores[..., cut : runs - cut].mean(-1))


def estimate(
    strata: Sequence[ArrayLike],
    statistic: Statistic = iqm,
    *,
    confidence: float = CONFIDENCE,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """A statistic with its percentile-bootstrap interval."""
    scores = as_strata(strata)
    value = float(statistic(scores))
    if _has_single(scores):
        return Estimate(value)
    drawn = bootstrap(scores, statistic, replicates=replicates, seed=seed)
    return Estimate(value, *interval(drawn, confidence))


def bootstrap(
    strata: Sequence[ArrayLike], statistic: Statistic = iqm, *, replicates: int = REPLICATES, seed: int = 0
) -> Array:
    """The statistic of resampled runs: each task's runs are drawn with replacement, `replicates` times."""
    scores, rng = as_strata(strata), np.random.default_rng(seed)
    parts = _chunks(replicates, sum(task.shape[-1] for task in scores))
    if statistic is iqm:
        return np.concatenate([_resampled_iqm(scores, size, rng) for size in parts])
    return np.concatenate([statistic([_resampled(task, size, rng) for task in scores]) for size in parts])


def difference(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    statistic: Statistic = mean,
    *,
    confidence: float = CONFIDENCE,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """By how much the second is above the first; the two are resampled independently."""
    one, two = as_strata(first), as_strata(second)
    value = float(statistic(two)) - float(statistic(one))
    if _has_single([*one, *two]):
        return Estimate(value)
    before = bootstrap(one, statistic, replicates=replicates, seed=seed)
    after = bootstrap(two, statistic, replicates=replicates, seed=seed + 1)
    return Estimate(value, *interval(after - before, confidence))


def probability_of_improvement(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    *,
    confidence: float = CONFIDENCE,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """How likely a run of the second beats one of the first on the same task, ties counting half."""
    one, two = as_strata(first), as_strata(second)
    if len(one) != len(two):
        raise ValueError(f"{len(one)} tasks against {len(two)}: the same tasks are needed on both sides")
    value = float(np.mean([_wins(a, b) for a, b in zip(one, two, strict=True)]))
    if _has_single([*one, *two]):
        return Estimate(value)
    rng = np.random.default_rng(seed)
    pairs = max(a.shape[-1] * b.shape[-1] for a, b in zip(one, two, strict=True))
    drawn = []
    for n in _chunks(replicates, pairs):
        wins = [_wins(_resampled(a, n, rng), _resampled(b, n, rng)) for a, b in zip(one, two, strict=True)]
        drawn.append(np.mean(wins, axis=0))
    return Estimate(value, *interval(np.concatenate(drawn), confidence))


@dataclass(frozen=True, slots=True)
class Profile:
    """Which share of runs scores above each threshold, with a pointwise interval."""

    thresholds: Array
    share: Array
    low: Array
    high: Array


def performance_profile(
    strata: Sequence[ArrayLike],
    thresholds: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Profile:
    """The share of runs above each threshold, every task counting the same."""
    at = np.asarray(thresholds, np.float64)
    above = [(task[:, None] > at).astype(np.float64) for task in as_strata(strata)]  # [runs, thresholds]
    share = np.mean([task.mean(0) for task in above], axis=0)
    rng, replicas = np.random.default_rng(seed), []
    for size in _chunks(replicates, max(task.size for task in above)):
        drawn = [task[rng.integers(len(task), size=(size, len(task)))].mean(1) for task in above]
        replicas.append(np.mean(drawn, axis=0))
    low, high = _quantiles(np.concatenate(replicas), confidence)
    return Profile(at, share, low, high)


def normalized(scores: ArrayLike, low: float, high: float) -> Array:
    """Scores on the scale where `low` (random play, say) is 0 and `high` (a human, a reference) is 1."""
    if not np.isfinite([low, high]).all() or low == high:
        raise ValueError(f"reference points must be two different numbers, got {low} and {high}")
    return (np.asarray(scores, np.float64) - low) / (high - low)


def interval(replicates: Array, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The percentiles of bootstrap replicates that hold the middle `confidence` of them."""
    low, high = _quantiles(replicates, confidence)
    return float(low), float(high)


def as_strata(strata: Sequence[ArrayLike]) -> list[Array]:
    """One array a task; none at all or one without runs is an error."""
    scores = [np.atleast_1d(np.asarray(task, np.float64)) for task in strata]
    if not scores or any(task.shape[-1] == 0 for task in scores):
        raise ValueError("no scores: every task needs at least one run")
    return scores


def _has_single(strata: Strata) -> bool:
    """Is there a task with one run? Resampled, it would seem not to vary, and the interval too narrow."""
    return any(task.shape[-1] == 1 for task in strata)


def _over_tasks(strata: Strata) -> Array:
    return np.stack([scores.mean(-1) for scores in strata], axis=-1)


def _resampled(task: Array, replicates: int, rng: np.random.Generator) -> Array:
    return task[_drawn(task, replicates, rng)]


def _drawn(task: NDArray[Any], replicates: int, rng: np.random.Generator) -> NDArray[np.int64]:
    runs = task.shape[-1]
    return rng.integers(runs, size=(replicates, runs))


def _resampled_iqm(strata: Strata, replicates: int, rng: np.random.Generator) -> Array:
    """`iqm` of resampled runs, by their ranks: small whole numbers are sorted much faster than scores."""
    pooled = np.concatenate(strata)
    order, cut = np.argsort(pooled), len(pooled) // 4
    ranks = np.argsort(order).astype(np.int32)
    by_task = np.split(ranks, np.cumsum([len(task) for task in strata])[:-1])
    drawn = [own[_drawn(own, replicates, rng)] for own in by_task]
    middle = np.sort(np.concatenate(drawn, axis=-1), axis=-1)[:, cut : len(pooled) - cut]
    return np.asarray(pooled[order][middle].mean(-1))


def _wins(first: Array, second: Array) -> Array:
    """The share of pairs in which the second is higher, ties counting half, along the last axes."""
    sign = np.sign(second[..., None] - first[..., None, :])
    return np.asarray(0.5 * (sign.mean((-2, -1)) + 1.0))


def _quantiles(replicates: Array, confidence: float) -> Array:
    tail = (1.0 - confidence) / 2
    return np.quantile(replicates, [tail, 1.0 - tail], axis=0)


def _chunks(replicates: int, width: int) -> Iterator[int]:
    """Replicates in portions that fit into memory."""
    size = max(1, min(replicates, _CHUNK // max(1, width)))
    for start in range(0, replicates, size):
        yield min(size, replicates - start)
