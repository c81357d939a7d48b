"""What is measured, and the clock inside the process that is: training pauses between two turns."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


FOREVER = 10**12
"""Steps: a run ends when nobody asks for another turn."""


@dataclass(frozen=True)
class Job:
    """One training run, described so that every library can make it."""

    algo: str
    env_id: str
    num_envs: int = 1
    hidden: tuple[int, ...] = (64, 64)
    """Of a network of dense layers; none: what the library takes for such observations."""
    threads: int = 1
    """Of torch."""
    cores: int = 1
    """That the process may use, whatever runs in it."""
    num_steps: int = 128
    """On-policy: steps of each env an iteration."""
    epochs: int = 4
    minibatches: int = 4
    batch_size: int = 256
    """Off-policy: transitions an update; there is one update a step."""
    buffer_size: int = 100_000
    learning_starts: int = 500
    settings: dict[str, Any] = field(default_factory=dict)
    """More of our own configuration, by section."""

    @property
    def is_on_policy(self) -> bool:
        """Whether it learns from fresh rollouts."""
        return self.algo == "ppo"

    @property
    def warm_up(self) -> int:
        """Steps before the first turn: by then updates are being made."""
        return 0 if self.is_on_policy else self.learning_starts + 20


class Mark(NamedTuple):
    """How far it is, by the clock."""

    steps: int
    seconds: float

    @staticmethod
    def now(steps: int) -> Mark:
        return Mark(steps, time.perf_counter())


class Meter:
    """Runs turns: at the end of an iteration it reports if the turn is over, and waits for the next.

    The loop calls `boundary` between iterations and `collected` when experience has been gathered; the first
    part of an iteration counts as collection, the rest as updates. Asked by lines `seconds` on stdin, it
    answers lines of JSON on what stdout was; the process ends with its stdin.
    """

    def __init__(self, warm_up: int = 0) -> None:
        self.answers: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is no answer
        self.warm_up = warm_up
        self.extra: dict[str, float] = {}
        """Further figures of the process."""
        self.deadline = 0.0
        self.begin: Mark | None = None
        self.collecting = 0.0
        self.iteration_began = 0.0

    def boundary(self, steps: int) -> None:
        """An iteration is over, `steps` in all."""
        if steps < self.warm_up:
            return
        now = Mark.now(steps)
        if self.begin is not None and (now.seconds < self.deadline or steps == self.begin.steps):
            self.iteration_began = now.seconds
            return
        answer = {"ready": True} if self.begin is None else self._figures(self.begin, now)
        print(json.dumps(answer), file=self.answers)
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # in the midst of somebody's training loop there is no tidier way out
        self.begin = Mark.now(steps)
        self.deadline = self.begin.seconds + float(line)
        self.iteration_began, self.collecting = self.begin.seconds, 0.0

    def collected(self) -> None:
        """The experience of this iteration is there."""
        self.collecting += time.perf_counter() - self.iteration_began

    def _figures(self, begin: Mark, end: Mark) -> dict[str, float]:
        steps, seconds = end.steps - begin.steps, end.seconds - begin.seconds
        figures = {
            "steps_per_second": steps / seconds,
            "resident_bytes": float(resident()),
            **self.extra,
        }
        if self.collecting:
            figures["collection_steps_per_second"] = steps / self.collecting
            figures["update_steps_per_second"] = steps / max(seconds - self.collecting, 1e-9)
        return figures


def experience(job: Job) -> list[tuple[Array, ...]]:
    """Some steps of noise for a buffer: actions, observations before and after, rewards, ends, and whose."""
    import numpy as np

    random = np.random.default_rng(0)
    steps: list[tuple[Array, ...]] = []
    for _ in range(257):
        obs, following = random.standard_normal((2, job.num_envs, 4)).astype(np.float32)
        over = random.random(job.num_envs) < 0.01
        actions, rewards = random.integers(2, size=job.num_envs), np.ones(job.num_envs, np.float32)
        steps.append((actions, obs, following, rewards, over, np.flatnonzero(over)))
    return steps


def resident() -> int:
    """Bytes of memory that the process has now."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell how much memory a process has")
