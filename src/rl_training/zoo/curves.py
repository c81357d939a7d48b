"""Learning over time: curves of several runs with intervals, and when a run first reaches a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from rl_training.zoo.statistics import CONFIDENCE, Array, interquartile_mean

GRID_POINTS, REPLICATES = 100, 1000


@dataclass(frozen=True, slots=True)
class Curve:
    """The interquartile mean of runs over steps, its interval, and how many runs are in it."""

    steps: Array
    value: Array
    low: Array
    high: Array
    runs: Array

    @property
    def band(self) -> list[tuple[float, float, float]]:
        """Step, low and high, where there is an interval."""
        return [
            (float(x), float(a), float(b))
            for x, a, b, n in zip(self.steps, self.low, self.high, self.runs, strict=True)
            if n > 1
        ]


def sample_efficiency(
    runs: Sequence[tuple[ArrayLike, ArrayLike]],
    *,
    points: int = GRID_POINTS,
    confidence: float = CONFIDENCE,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Curve:
    """The curve of several runs, each given as (steps, scores), interpolated on a common grid of steps.

    No run is extrapolated: a step counts the runs that had begun and not ended there. The grid ends where
    half of the runs have ended, so that one long run does not stand for all.
    """
    pairs = [_sorted(*run) for run in runs]
    pairs = [(steps, scores) for steps, scores in pairs if len(steps)]
    if not pairs:
        empty = np.empty(0)
        return Curve(empty, empty, empty, empty, empty)
    first = min(steps[0] for steps, _ in pairs)
    ends = sorted((steps[-1] for steps, _ in pairs), reverse=True)
    last = max(first, ends[(len(ends) - 1) // 2])
    grid = _grid(pairs, first, last, points)
    values = np.stack([np.interp(grid, *pair, left=np.nan, right=np.nan) for pair in pairs])
    present = np.isfinite(values)
    columns = np.empty((3, len(grid)))
    rng = np.random.default_rng(seed)
    for begin, end in _stretches(present):
        columns[:, begin:end] = _band(values[present[:, begin], begin:end], confidence, replicates, rng)
    known = present.any(axis=0)
    value, low, high = columns[:, known]
    return Curve(grid[known], value, low, high, present.sum(axis=0)[known])


def first_reached(at: ArrayLike, scores: ArrayLike, threshold: float) -> float:
    """Where (in steps, or seconds) a score first is at or above the threshold; infinity if it never is."""
    places, values = np.asarray(at, np.float64), np.asarray(scores, np.float64)
    reached = values >= threshold
    return float(places[reached].min()) if reached.any() else float("inf")


def typical_time(times: Sequence[float]) -> float | None:
    """The median over runs, those that never get there counting as infinite; None if it is infinite."""
    if not times:
        return None
    middle = float(np.median(np.asarray(times, np.float64))) if any(np.isfinite(times)) else float("inf")
    return middle if np.isfinite(middle) else None


def _band(values: Array, confidence: float, replicates: int, rng: np.random.Generator) -> Array:
    """Value, low and high at each step of a stretch in which the same runs are present."""
    runs = len(values)
    if not runs:
        return np.full((3, values.shape[1]), np.nan)
    middle = interquartile_mean(values.T)
    if runs == 1:
        return np.stack([middle, middle, middle])
    drawn = values[rng.integers(runs, size=(replicates, runs))]  # [replicates, runs, steps]
    resampled = interquartile_mean(np.moveaxis(drawn, 1, -1))
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
    return np.stack([middle, low, high])


def _grid(pairs: Sequence[tuple[Array, Array]], first: float, last: float, points: int) -> Array:
    """The runs' own steps when they share them, otherwise evenly spaced ones."""
    own = pairs[0][0]
    shared = own[(own >= first) & (own <= last)]
    if 1 <= len(shared) <= points and all(np.isin(shared, steps).all() for steps, _ in pairs):
        return shared
    return np.linspace(first, last, points)


def _sorted(steps: ArrayLike, scores: ArrayLike) -> tuple[Array, Array]:
    """By step; of several at one step the last."""
    at, values = np.asarray(steps, np.float64), np.asarray(scores, np.float64)
    at, values = at[::-1], values[::-1]
    unique, index = np.unique(at, return_index=True)
    return unique, values[index]


def _stretches(present: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Ranges of columns in which the same runs are present."""
    changes = np.flatnonzero((present[:, 1:] != present[:, :-1]).any(axis=0)) + 1
    edges = [0, *changes.tolist(), present.shape[1]]
    return list(pairwise(edges))
