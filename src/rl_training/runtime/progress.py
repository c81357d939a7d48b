"""A live line on the terminal: how far, how fast, how good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.runtime.callbacks import Callback
from rl_training.types import Evaluation

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


class ProgressCallback(Callback):
    """Shows steps, speed, the training return and the last evaluation, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[returns]}"),
            console=self._console,
            refresh_per_second=4,
        )
        self._task: Any = None
        self._evaluated = ""

    def on_train_start(self, trainer: Trainer) -> None:
        """Show the bar, under what there is to say at the start."""
        for line in filter(None, (trainer.announcement, str(trainer.updates))):
            self._console.print(line, highlight=False, markup=False)
        total = trainer.settings.total_timesteps
        done = trainer.global_step
        self._task = self._progress.add_task("train", total=total, completed=done, speed="", returns="")
        self._progress.start()

    def on_update(self, trainer: Trainer) -> None:
        """Move the bar."""
        statistics = trainer.collector.statistics
        returns = f"return {np.mean(statistics.returns):.1f}" if statistics.returns else ""
        rate = trainer.latest.get("steps_per_second")
        self._progress.update(
            self._task,
            completed=min(trainer.global_step, trainer.settings.total_timesteps),
            speed=f"{rate:,.0f} steps/s" if rate else "",
            returns=f"{returns}{self._evaluated}",
        )

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """Show the newest evaluation."""
        mean, deviation = np.mean(evaluation.returns), np.std(evaluation.returns)
        self._evaluated = f" · eval {mean:.1f}"
        if not self._console.is_terminal:
            self._console.print(f"step {trainer.global_step:>9,}  evaluation {mean:8.2f} ± {deviation:.2f}")

    def on_train_end(self, trainer: Trainer) -> None:
        """Leave the terminal as it was."""
        self.close()

    def close(self) -> None:
        """Take the bar down, also when training failed; may be called twice."""
        self._progress.stop()
