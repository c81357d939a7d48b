"""One display for many runs: a line an event, and on a terminal a bar for each run that is at work."""

from __future__ import annotations

import time
from typing import Any

from rl_training.runtime.progress import patient_console
from rl_training.zoo.runner import Process

_EVERY = 0.5


class RichDisplay:
    """Events and bars on stderr."""

    def __init__(self, total: int, label: str = "runs") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = patient_console(stderr=True, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._total = total
        self._all = self._progress.add_task(label, total=total, state="")
        self._tasks: dict[Process, Any] = {}
        self._looked = 0.0

    def __enter__(self) -> RichDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, label: str, total: int) -> None:
        """Count something else from now on."""
        self._total = total
        self._progress.update(self._all, description=label, total=total, completed=0, state="")

    def event(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False)

    def update(self, active: list[Process], done: int, failed: int) -> None:
        """Move the bars; the files of the runs are looked at twice a second."""
        if self._progress.disable or time.monotonic() - self._looked < _EVERY:
            return
        self._looked = time.monotonic()
        failures = f", {failed} failed" if failed else ""
        state = f"{done} of {self._total} done{failures}"
        self._progress.update(self._all, completed=done, state=state)
        for process in [process for process in self._tasks if process not in active]:
            self._progress.remove_task(self._tasks.pop(process))
        for process in active:
            if process not in self._tasks:
                name = str(process.job)
                self._tasks[process] = self._progress.add_task(name, total=process.job.total, state="")
            step, score = process.job.progress()
            evaluated = "" if score is None else f" · eval {score:.1f}"
            shown = "evaluates" if process.verb == "eval" else f"{step:,} of {process.job.total:,} steps"
            self._progress.update(self._tasks[process], completed=step, state=f"{shown}{evaluated}")


class NoDisplay:
    """Shows nothing."""

    def __enter__(self) -> NoDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to take down."""

    def begin(self, label: str, total: int) -> None:
        """Count nothing."""

    def event(self, text: str) -> None:
        """Say nothing."""

    def update(self, active: list[Process], done: int, failed: int) -> None:
        """Show nothing."""
