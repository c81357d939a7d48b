"""How a value changes over a run."""

from __future__ import annotations

import math

from rl_training.schema import ScheduleKind


def scheduled(initial: float, kind: ScheduleKind, progress: float) -> float:
    """The value at `progress` in [0, 1]: constant, or decaying to zero on a line or half a cosine."""
    if kind == "constant":
        return initial
    progress = min(max(progress, 0.0), 1.0)
    if kind == "linear":
        return initial * (1.0 - progress)
    return initial * 0.5 * (1.0 + math.cos(math.pi * progress))
