"""Runs jobs side by side, each an ordinary `axiomrl` process. Never imports torch.

A job goes through train (or resume) and eval. A run that fails does not stop the others. The first SIGINT
or SIGTERM lets every run save and end, a second ends them at once, a third kills them. Should the runner
itself be killed, its runs notice, save and end (`cli/child.py`); the next start goes on from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rl_training.errors import AxiomError, CheckpointError, SaveError
from rl_training.experiment.files import saving
from rl_training.experiment.lock import RunLock
from rl_training.zoo.jobs import Job, Stage
from rl_training.zoo.manifest import Plan, write_manifest
from rl_training.zoo.origin import made_otherwise

CHILD = [sys.executable, "-P", "-m", "rl_training.cli.child"]
LOG, OUTPUT = "log.txt", "output.json"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PAUSE = 0.1
Start = tuple[Job, Stage, str | None]
"""A job whose command was started, where it stood, and what went wrong, if it could not be."""


class Display(Protocol):
    """Shows what is going on."""

    def begin(self, label: str, total: int) -> None: ...
    def event(self, text: str) -> None: ...
    def update(self, active: list[Process], done: int, failed: int) -> None: ...


@dataclass(slots=True, eq=False)
class Process:
    """A command at work on a job."""

    job: Job
    verb: str
    handle: subprocess.Popen[bytes]
    log_begin: int
    signals: int = 0
    """How often it was asked to end."""

    @classmethod
    def start(cls, job: Job) -> Process:
        """Start the command that brings the job on, in a session of its own: the runner passes signals on."""
        environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
        with saving(job.folder):
            job.prepare()
            command = job.next_command()
            with open(job.folder / LOG, "ab") as log, open(job.folder / OUTPUT, "wb") as output:
                handle = subprocess.Popen(
                    [*CHILD, *command], stdin=subprocess.PIPE, stdout=output, stderr=log, env=environment,
                    start_new_session=True,
                )  # fmt: skip
                return cls(job, command[0], handle, log.tell())

    def end(self, times: int) -> None:
        """Ask it to end: to save first, at once when asked a second time, not at all a third time."""
        while self.signals < times:
            self.signals += 1
            with suppress(OSError):
                self.handle.kill() if self.signals > 2 else self.handle.terminate()

    @property
    def was_killed(self) -> bool:
        """Was it ended by a signal, whoever sent it?"""
        code = self.handle.returncode or 0
        return code < 0 or code - 128 in (signal.SIGINT, signal.SIGTERM)

    def finish(self) -> str | None:
        """Take in what the command has left; what went wrong, if it did."""
        if self.handle.stdin is not None:
            self.handle.stdin.close()
        code = self.handle.returncode
        if code:
            return self._error(code)
        try:
            if self.verb == "eval":
                self.job.record_evaluation((self.job.folder / OUTPUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return f"its evaluation cannot be read: {error}"
        reached = "done" if self.verb == "eval" else "trained"
        stage = self.job.stage()
        if self.verb == "eval" and stage == "trained":
            return "its evaluation has no finite mean return, or is of another checkpoint"
        return (
            None if stage in (reached, "done") else f"{self.verb} ended without an error, but it is {stage}"
        )

    def _error(self, code: int) -> str:
        """The last words of the command."""
        how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        try:
            with open(self.job.folder / LOG, "rb") as log:
                log.seek(self.log_begin)
                text = log.read().decode("utf-8", "replace")
        except OSError:
            text = ""
        words = [line.strip() for line in text.splitlines() if line.strip()]
        return f"{self.verb}: {how}" + (f": {' / '.join(words[-3:])}" if words else "")


@dataclass(slots=True)
class Pool:
    """Commands side by side, and the signals that end them. Which jobs are next is its owner's business."""

    width: int
    display: Display
    active: list[Process] = field(default_factory=list)
    stopped_by: int | None = None
    """The signal that ended it."""
    _signals: int = 0
    _held: set[Job] = field(default_factory=set)
    """Jobs that were said to be waited for."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on to the runs (main thread only), and leave none of them behind."""
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        before = {number: signal.signal(number, self._stop) for number in numbers}
        try:
            yield
        finally:
            self._end_at_once()
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def has_room(self) -> bool:
        """May another command be started?"""
        return self.stopped_by is None and len(self.active) < self.width

    def fill(self, waiting: deque[Job]) -> list[Start]:
        """Start the commands that bring the first of `waiting` on, and answer which."""
        started: list[Start] = []
        for _ in range(len(waiting)):
            if not self.has_room:
                break
            job = waiting.popleft()
            if (holder := job.holder()) is not None:  # it outlived another runner, and is saving
                if job not in self._held:
                    self.display.event(f"waiting for {job}, which another process is at work on ({holder})")
                self._held.add(job)
                waiting.append(job)
                continue
            if (stage := job.stage()) != "done":
                started.append((job, stage, self._start(job)))
        return started

    def _start(self, job: Job) -> str | None:
        """Start a command; why that is not possible, if so."""
        try:
            self.active.append(Process.start(job))
        except SaveError as error:
            return str(error)
        return None

    def reap(self) -> list[tuple[Process, str | None]]:
        """The commands that have ended, and what went wrong with each."""
        ended = [process for process in self.active if process.handle.poll() is not None]
        for process in ended:
            self.active.remove(process)
        return [(process, process.finish()) for process in ended]

    def pause(self) -> None:
        """Pass signals on, and let the commands work."""
        for process in self.active:
            process.end(self._signals)
        time.sleep(_PAUSE)

    def _stop(self, number: int, _: Any) -> None:
        self.stopped_by, self._signals = number, self._signals + 1
        if self._signals == 1:
            with suppress(OSError):  # not through the display: it may have been interrupted itself
                os.write(2, b"\nevery run saves and ends; a second signal ends them at once\n")

    def _end_at_once(self) -> None:
        """After an error of the owner's own: leave no process behind."""
        for process in self.active:
            process.end(1)
        for process in self.active:
            process.handle.wait()


class Runner:
    """Brings every job of a plan to its end."""

    def __init__(self, plan: Plan, width: int, display: Display) -> None:
        self.plan, self.display = plan, display
        self.errors: dict[Job, str] = {}
        self._pool = Pool(width, display)

    @property
    def stopped_by(self) -> int | None:
        """The signal that stopped it."""
        return self._pool.stopped_by

    def run(self) -> dict[str, Any]:
        """Run what is missing or unfinished, and answer the manifest."""
        with saving(self.plan.folder):
            self.plan.folder.mkdir(parents=True, exist_ok=True)
            with alone(self.plan.folder), self._pool.at_work():
                return self._run()

    def _run(self) -> dict[str, Any]:
        write_manifest(self.plan)
        waiting = deque(job for job in self.plan.jobs if job.stage() != "done")
        self._say_what_is_there(len(self.plan.jobs) - len(waiting))
        active = self._pool.active
        while active or (waiting and self.stopped_by is None):
            for job, stage, error in self._pool.fill(waiting):
                if error is not None:
                    self._fail(job, error)
                elif stage != "trained":
                    self.display.event(f"{job}: {'started' if stage == 'new' else 'goes on'}")
            for process, error in self._pool.reap():
                self._take_in(process, error, waiting)
            left = len(waiting) + len(active) + len(self.errors)
            self.display.update(active, len(self.plan.jobs) - left, len(self.errors))
            self._pool.pause()
        return write_manifest(self.plan, self.errors)

    def _say_what_is_there(self, done: int) -> None:
        """How many runs need nothing more, and how many were not made by the code that runs now."""
        if done:
            self.display.event(f"{done} of {len(self.plan.jobs)} runs are already there")
        if old := made_otherwise(self.plan.jobs, self.plan.commit):
            job, reason = next(iter(old.items()))
            self.display.event(
                f"{len(old)} of the runs that are there were made at another commit or by other versions "
                f"({job}: {reason})"
            )

    def _fail(self, job: Job, error: str) -> None:
        self.errors[job] = error
        self.display.event(f"{job}: failed: {error}")

    def _take_in(self, process: Process, error: str | None, waiting: deque[Job]) -> None:
        if error is None and process.verb != "eval":
            waiting.appendleft(process.job)  # to be evaluated at once
            return
        if error is None:
            self.display.event(f"{process.job}: {_outcome(process.job)}")
        elif self.stopped_by is None:
            self._fail(process.job, error)
        else:
            self.display.event(f"{process.job}: stopped")
        write_manifest(self.plan, self.errors)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One runner a folder."""
    try:
        lock = RunLock(folder)
    except CheckpointError as error:
        if "another process" not in str(error):
            raise
        raise AxiomError(f"{folder}: another runner is at work here") from None
    try:
        yield
    finally:
        lock.release()


def _outcome(job: Job) -> str:
    result = job.result()
    success = f", success rate {result['success_rate']:.2f}" if "success_rate" in result else ""
    return f"{result['return_mean']:.1f} ± {result['return_std']:.1f}{success} ({result['seconds']:.0f} s)"
