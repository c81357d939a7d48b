"""Hooks on the trainer. Evaluation, checkpoints, early stopping, budgets and progress are callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.types import Evaluation

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


class Callback:
    """Base of all callbacks: override the hooks you need. `trainer.stop(reason)` ends training."""

    @property
    def name(self) -> str:
        """The key under which this callback's state is saved; override it to use one class twice."""
        return type(self).__name__

    def on_train_start(self, trainer: Trainer) -> None:
        """Before the first step, or after a resume."""

    def on_collect(self, trainer: Trainer) -> None:
        """New experience is in the buffer; nothing has been learned from it yet."""

    def on_update(self, trainer: Trainer) -> None:
        """The iteration's updates are done: a consistent moment to look, evaluate or save."""

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """An evaluation has finished."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """A checkpoint has been published."""

    def on_train_end(self, trainer: Trainer) -> None:
        """Training is over, for whatever reason."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class Cadence:
    """Says yes whenever the step counter has crossed another multiple of `every`; 0 is never."""

    def __init__(self, every: int) -> None:
        self.every = every

    def due(self, before: int, now: int) -> bool:
        """Did `before → now` cross a multiple?"""
        return self.every > 0 and now // self.every > before // self.every


class EvaluationCallback(Callback):
    """Evaluates every so many steps and at the end, and keeps the checkpoint of the best mean return."""

    def __init__(self, every_steps: int, *, save_best: bool = True) -> None:
        self.cadence = Cadence(every_steps)
        self.save_best = save_best
        self.best: float | None = None
        self.best_step: int | None = None
        self.last_step = -1

    def on_update(self, trainer: Trainer) -> None:
        """Evaluate when it is time."""
        if self.cadence.due(trainer.previous_step, trainer.global_step):
            self._evaluate(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Evaluate the final policy, unless that has just been done."""
        is_over = trainer.finished or trainer.interrupted is None
        if self.cadence.every and self.last_step != trainer.global_step and is_over:
            self._evaluate(trainer)

    def _evaluate(self, trainer: Trainer) -> None:
        evaluation = trainer.evaluate()
        self.last_step = trainer.global_step
        mean = float(np.mean(evaluation.returns))
        improved = isfinite(mean) and (self.best is None or mean > self.best)
        if improved:
            self.best, self.best_step = mean, trainer.global_step
        trainer.notify_evaluation(evaluation)
        if improved and self.save_best:
            trainer.save_checkpoint(best=True)

    def state_dict(self) -> dict[str, Any]:
        """The best so far and the last step evaluated."""
        return {"best": self.best, "best_step": self.best_step, "last_step": self.last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.best, self.best_step = state["best"], state["best_step"]
        self.last_step = state["last_step"]


class VideoCallback(Callback):
    """Records an episode after every evaluation, as `videos/step_<n>.mp4` of the run."""

    def __init__(self, record: Callable[[Path], None], folder: Path) -> None:
        self.record, self.folder = record, folder

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """Film the policy that was just evaluated."""
        self.record(self.folder / f"step_{trainer.global_step}.mp4")


class CheckpointCallback(Callback):
    """Saves every so many steps. The trainer itself saves at the end."""

    def __init__(self, every_steps: int) -> None:
        self.cadence = Cadence(every_steps)

    def on_update(self, trainer: Trainer) -> None:
        """Save when it is time."""
        if self.cadence.due(trainer.previous_step, trainer.global_step):
            trainer.save_checkpoint()


class EarlyStopping(Callback):
    """Stops when evaluations reach a target, or have not improved for a while."""

    def __init__(
        self, *, target_return: float | None = None, patience: int | None = None, min_delta: float = 0.0
    ) -> None:
        self.target_return, self.patience, self.min_delta = target_return, patience, min_delta
        self.best: float | None = None
        self.without_improvement = 0

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """Judge the newest evaluation."""
        mean = float(np.mean(evaluation.returns))
        if isfinite(mean) and (self.best is None or mean > self.best + self.min_delta):
            self.best, self.without_improvement = mean, 0
        else:
            self.without_improvement += 1
        if self.target_return is not None and mean >= self.target_return:
            trainer.stop(f"evaluation return {mean:.6g} reached the target {self.target_return:.6g}")
        elif self.patience is not None and self.without_improvement >= self.patience:
            best = "none" if self.best is None else f"{self.best:.6g}"
            trainer.stop(f"no improvement in {self.without_improvement} evaluations (best {best})")

    def state_dict(self) -> dict[str, Any]:
        """The best so far and how long ago it was."""
        return {"best": self.best, "without_improvement": self.without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.best, self.without_improvement = state["best"], state["without_improvement"]


class TimeBudget(Callback):
    """Stops after so many seconds of wall-clock time, counted over resumes."""

    def __init__(self, max_seconds: float) -> None:
        self.max_seconds = max_seconds
        self.used = 0.0
        self._since = monotonic()

    def on_train_start(self, trainer: Trainer) -> None:
        """Start the clock."""
        self._since = monotonic()

    def on_update(self, trainer: Trainer) -> None:
        """Look at the clock."""
        if self.used + monotonic() - self._since >= self.max_seconds:
            trainer.stop(f"time budget of {self.max_seconds:g} s used up")

    def state_dict(self) -> dict[str, Any]:
        """Seconds used so far."""
        return {"used": self.used + monotonic() - self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.used = state["used"]


class StepBudget(Callback):
    """Stops after so many steps of this call, wherever the run began."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self._first = 0

    def on_train_start(self, trainer: Trainer) -> None:
        """Remember where this call began."""
        self._first = trainer.global_step

    def on_update(self, trainer: Trainer) -> None:
        """Count."""
        if trainer.global_step - self._first >= self.max_steps:
            trainer.stop(f"step budget of {self.max_steps} used up")
