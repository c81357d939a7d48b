"""How much a parameter matters: the share of the trials' ranks that it explains alone. NumPy only.

Trials are ranked by their score, pruned ones below completed ones by how far they came. A parameter's values
are put into bins (choices as they are, numbers by quantiles), and the share of the variance of the ranks that
lies between bins, corrected for what chance would put there, is its importance (epsilon squared of the
Kruskal-Wallis test). It is 0 for a parameter without an effect of its own and 1 for one that decides
everything; effects that only appear together with another parameter are not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.zoo.tuning.record import StudyRecord, TrialRecord

SHUFFLES = 2000
MIN_TRIALS = 6
MAX_BINS = 6


@dataclass(frozen=True, slots=True)
class Importance:
    """The share of one parameter, and how often chance gives as much."""

    key: str
    share: float
    p: float


def importances(record: StudyRecord) -> list[Importance]:
    """Every parameter, the most important first; none where there are too few trials to say."""
    found = []
    for key, dimension in record.space.items():
        trials = [trial for trial in record.of("pruned", "completed") if key in trial.params]
        if len(trials) < MIN_TRIALS:
            continue
        ranks, values = ranks_of(trials), [trial.params[key] for trial in trials]
        bins = choice_bins(values) if dimension.get("kind") == "choice" else number_bins(values)
        share = epsilon_squared(bins, ranks)
        rng = np.random.default_rng(0)
        by_chance = epsilon_squared(bins, rng.permuted(np.tile(ranks, (SHUFFLES, 1)), axis=1))
        p = (1 + int(np.sum(by_chance >= share - 1e-12))) / (1 + SHUFFLES)
        found.append(Importance(key, max(0.0, float(share)), p))
    return sorted(found, key=lambda item: -item.share)


def ranks_of(trials: Sequence[TrialRecord]) -> NDArray[np.float64]:
    """Ranks from the worst, 0, up, ties sharing theirs: pruned trials first, by how far they came."""
    keys = [_standing(trial) for trial in trials]
    order = sorted(keys)
    return np.array([order.index(key) + (order.count(key) - 1) / 2 for key in keys])


def _standing(trial: TrialRecord) -> tuple[bool, int, float]:
    is_done = trial.state == "completed"
    return is_done, 0 if is_done else len(trial.reported), trial.value or 0.0


def choice_bins(values: Sequence[Any]) -> NDArray[np.int64]:
    """One bin a choice."""
    names = [repr(value) for value in values]
    order = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return np.array([order[name] for name in names])


def number_bins(values: Sequence[Any]) -> NDArray[np.int64]:
    """Bins of about the same size, as many as the cube root of the number of trials, doubled; at most six."""
    numbers = np.array([float(value) for value in values])
    count = min(MAX_BINS, max(2, round(2 * len(numbers) ** (1 / 3))))
    edges = np.quantile(numbers, np.linspace(0, 1, count + 1)[1:-1])
    return np.searchsorted(np.unique(edges), numbers, side="right")


def epsilon_squared(bins: NDArray[np.int64], ranks: NDArray[np.float64]) -> Any:
    """The share of the variance between bins, less what chance would put there; along the last axis."""
    names, counts = np.unique(bins, return_counts=True)
    total, groups = ranks.shape[-1], len(names)
    if groups < 2 or groups >= total:
        return np.zeros(ranks.shape[:-1])
    middle = ranks.mean(-1, keepdims=True)
    means = np.stack([ranks[..., bins == name].mean(-1) for name in names], axis=-1)
    between = (counts * (means - middle) ** 2).sum(-1)
    whole = ((ranks - middle) ** 2).sum(-1)
    share = between / np.where(whole > 0, whole, math.inf)
    return 1.0 - (1.0 - share) * (total - 1) / (total - groups)
