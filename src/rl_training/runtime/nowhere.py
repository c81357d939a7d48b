"""For a trainer without a run: nothing is written, evaluated or saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rl_training.types import Evaluation


class Nowhere:
    """Where metrics and checkpoints go that nobody wants."""

    def log(self, row: Mapping[str, float | int]) -> None:
        """Not kept."""

    def log_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """Not kept."""

    def save(self, state: Mapping[str, Any], step: int, *, best: bool) -> Path | None:
        """Not written."""
        return None


def never() -> NoReturn:
    """The evaluator of those who do not evaluate."""
    raise AssertionError("nobody evaluates without a run")
