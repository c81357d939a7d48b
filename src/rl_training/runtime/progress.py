"""A live line on the terminal: how far, how fast, how good."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from rl_training.runtime.callbacks import Callback
from rl_training.types import Evaluation

if TYPE_CHECKING:
    from rich.console import Console

    from rl_training.runtime.trainer import Trainer


GONE = (errno.EPIPE, errno.EIO)
"""What writing to a pipe without a reader, or to a terminal that was closed, answers."""


class ProgressCallback(Callback):
    """Shows steps, speed, the training return and the last evaluation, on stderr."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = patient_console(stderr=True)
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


def patient_console(*, stderr: bool, **options: Any) -> Console:
    """A console whose reader may leave, as `head` does: rich's own would then end the process."""
    from rich.console import Console

    console = Console(stderr=stderr, **options)
    console.file = cast("IO[str]", _Patient(console.file))
    return console


class _Patient:
    """A stream that goes quiet when it cannot be written to any more."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with reader_may_leave(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with reader_may_leave(self._stream):
            self._stream.flush()


@contextmanager
def patient_streams() -> Iterator[None]:
    """Let whatever prints meanwhile, an env or a callback too, go on when nobody reads any more.

    Processes that are forked in this block have it so, too.
    """
    before = sys.stdout, sys.stderr
    # A process without a console has none of them.
    sys.stdout, sys.stderr = (cast("IO[str]", stream and _Patient(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def reader_may_leave(stream: IO[str]) -> Iterator[None]:
    """For what is only shown: a pipe or terminal that is gone makes the stream go quiet.

    What cannot be written for another reason, such as a full disk, is lost; the next may be written again.
    """
    try:
        yield
    except OSError as error:
        if error.errno in GONE:
            silence(stream)


def silence(stream: IO[str]) -> None:
    """Let all that is written from now on go nowhere, what is still in the buffer at the exit included."""
    with suppress(OSError, ValueError):  # a stream without a file has nothing to be flushed into
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
