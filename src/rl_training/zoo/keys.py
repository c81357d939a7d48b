"""Keys by which runs are chosen and grouped: which there are, and the order of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rl_training.errors import ConfigError, nearest
from rl_training.zoo.configs import flat
from rl_training.zoo.summaries import RunSummary

OWN = ("algo", "env", "preset", "seed", "status", "tags", "run", "steps", "final", "best", "time", "speed")
"""What every run has, beside the keys of its config."""
ALSO = ("score", "created", "path")


def require_keys(runs: Sequence[RunSummary], keys: Sequence[str], option: str) -> None:
    """A key that no run knows is a mistake."""
    for key in keys:
        if not runs or key in OWN or key in ALSO or any(run.value(key) is not None for run in runs):
            continue
        configs = {id(run.config): run.config for run in runs}.values()
        known = dict.fromkeys((*OWN, *(name for config in configs for name, _ in flat(config))))
        if key in known:  # null everywhere
            continue
        ending = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
        near = " or ".join(ending) if 1 <= len(ending) <= 3 else nearest(key, known)
        advice = f"did you mean {near}?" if near else f"expected {', '.join(OWN)} or a key of the config"
        raise ConfigError(f"command line: {option} {key}: no run has it; {advice}")


def as_number(value: Any) -> float | None:
    """A number, or a text that reads as one, such as a seed; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def in_order(text: str) -> tuple[bool, float, str]:
    """Sorts numbers by their size, and before words."""
    number = as_number(text)
    return number is None, number or 0.0, text
