"""Is B worse than A beyond noise? Permutation tests: exact whatever the distribution of the scores.

If A and B came from one distribution, any division of their runs into two groups of these sizes would be
equally likely. The p-value is the share of divisions in which the second group falls as far behind as B does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.zoo.statistics import Array, as_strata

EXACT_LIMIT, SAMPLES = 50_000, 10_000
FLOOR = 0.001
"""The share of a task's largest score that is added to its spread, which may be nothing."""


def p_worse(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> float:
    """One-sided p-value of the second having the lower mean."""
    (one,), (two,) = as_strata([first]), as_strata([second])
    if _is_countable(one, two):
        drawn = _exact(one, two)
        return float(np.mean(drawn <= _slack(drawn[0])))  # the first division is the one that was seen
    return p_worse_overall([one], [two], seed=seed)


def p_worse_overall(first: Sequence[ArrayLike], second: Sequence[ArrayLike], *, seed: int = 0) -> float:
    """The same over several tasks at once: differences in units of each task's spread, permuted within it."""
    rng = np.random.default_rng(seed)
    total = np.zeros(SAMPLES + 1)
    for one, two in zip(as_strata(first), as_strata(second), strict=True):
        spread = float(np.concatenate([one, two]).std())
        if spread > 0:
            total += _sampled(one, two, rng) / spread
    return float(np.mean(total <= _slack(total[0])))


def smallest_p(first: int, second: int) -> float:
    """The lowest p-value that so many runs can give at all."""
    return 1.0 / comb(first + second, second)


def p_worse_each(first: Sequence[ArrayLike], second: Sequence[ArrayLike], *, seed: int = 0) -> list[float]:
    """One-sided p-values of several tasks, corrected for their number: the chance of any false alarm.

    Westfall and Young's step-down max-T test (1993): how often would the task that falls behind most, in
    units of its spread, be as far behind as this one? Tasks are divided independently of each other, so the
    chance that none of them is follows from the divisions of each.
    """
    rng = np.random.default_rng(seed)
    pairs = enumerate(zip(as_strata(first), as_strata(second), strict=True))
    # Weights of almost 1 put tasks that are equally far behind in order: none stands in another's way.
    drawn = [(1.0 + 1e-6 * task) * _studentized(one, two, rng) for task, (one, two) in pairs]
    seen = np.array([values[0] for values in drawn])
    order = np.argsort(seen, kind="stable")  # what is further behind has been dealt with
    at = seen[order]
    calm = [
        1.0 - np.searchsorted(np.sort(drawn[task]), at, side="right") / len(drawn[task]) for task in order
    ]
    none_as_far = np.cumprod(calm[::-1], axis=0)[::-1].diagonal()
    corrected = np.empty(len(seen))
    corrected[order] = np.maximum.accumulate(1.0 - none_as_far)
    return [float(p) for p in corrected.round(12)]


def _studentized(one: Array, two: Array, rng: np.random.Generator) -> Array:
    """Differences of means in units of their standard error, for the data and for other divisions."""
    pooled = np.concatenate([one, two])
    spread, runs = float(pooled.std()), len(pooled)
    if not spread > 1e-12 * float(np.abs(pooled).max()):
        return np.zeros(1)
    drawn = _exact(one, two) if _is_countable(one, two) else _sampled(one, two, rng)
    drawn = np.round(drawn / spread, 9)  # equal divisions are equal whatever the rounding of their sums
    share = len(one) * len(two) / runs**2
    within = np.sqrt(np.maximum(0.0, 1.0 - share * drawn**2) * runs / max(1, runs - 2))
    floor = FLOOR * float(np.abs(pooled).max()) / spread
    return np.asarray(drawn / ((within + floor) / np.sqrt(share * runs)))


def _is_countable(one: Array, two: Array) -> bool:
    return comb(len(one) + len(two), len(two)) <= EXACT_LIMIT


def _exact(one: Array, two: Array) -> Array:
    """Differences of means of every division; that of the data is the first."""
    pooled = np.concatenate([two, one])
    chosen = _divisions(len(pooled), len(two))
    return _differences(pooled[chosen].sum(-1), pooled.sum(), len(one), len(two))


@lru_cache(maxsize=4)
def _divisions(runs: int, chosen: int) -> NDArray[np.int64]:
    """The members of every group of that size."""
    return np.array(list(combinations(range(runs), chosen)))


def _sampled(one: Array, two: Array, rng: np.random.Generator) -> Array:
    """Differences of means of random divisions, that of the data first."""
    pooled = np.concatenate([two, one])
    order = rng.permuted(np.broadcast_to(np.arange(len(pooled)), (SAMPLES, len(pooled))), axis=1)
    sums = np.concatenate([[two.sum()], pooled[order[:, : len(two)]].sum(-1)])
    return _differences(sums, pooled.sum(), len(one), len(two))


def _differences(sums: Array, total: float, ones: int, twos: int) -> Array:
    return np.asarray(sums / twos - (total - sums) / ones)


def _slack(observed: float) -> float:
    """Divisions as far behind as the data, give or take the rounding of sums."""
    return observed + 1e-9 * max(1.0, abs(observed))
