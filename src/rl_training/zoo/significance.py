"""Is B worse than A beyond noise? Permutation tests: exact whatever the distribution of the scores.

If A and B came from one distribution, any division of their runs into two groups of these sizes would be
equally likely. The p-value is the share of divisions in which the second group falls as far behind as B does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from rl_training.zoo.statistics import Array, as_strata

EXACT_LIMIT, SAMPLES = 50_000, 10_000


def p_worse(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> float:
    """One-sided p-value of the second having the lower mean."""
    (one,), (two,) = as_strata([first]), as_strata([second])
    if comb(len(one) + len(two), len(two)) <= EXACT_LIMIT:
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


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979): all together are wrong no more often than one."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def _exact(one: Array, two: Array) -> Array:
    """Differences of means of every division; that of the data is the first."""
    pooled = np.concatenate([two, one])
    chosen = np.array(list(combinations(range(len(pooled)), len(two))))
    return _differences(pooled[chosen].sum(-1), pooled.sum(), len(one), len(two))


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
