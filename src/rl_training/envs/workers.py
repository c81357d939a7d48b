"""A process an env: arrays in shared memory, commands over pipes, and a watchdog over every answer."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.envs.backends import Env, EnvFn
from rl_training.envs.kinds import BACKENDS, BackendKind
from rl_training.envs.processes import (
    CLOSE_SECONDS,
    describe_death,
    forks,
    kill,
    limit_waiting,
    process_context,
    start_process,
)
from rl_training.envs.spaces import arrays
from rl_training.envs.worker_process import SharedArrays, work
from rl_training.errors import EnvError, MissingExtraError
from rl_training.types import Spec

if TYPE_CHECKING:
    from rl_training.types import Array


class AsyncBackend:
    """Every env in a process of its own. One that raises, dies or hangs ends them all with an `EnvError`.

    Unless it may be replaced: then its transition is truncated at the last observation there was, and a new
    process plays on.
    """

    kind: ClassVar[BackendKind] = BACKENDS["async"]

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        spec: Spec,
        env_id: str,
        timeout: float,
        max_restarts: int = 0,
        episodic_life: bool = False,
    ) -> None:
        self.env_id, self.timeout = env_id, timeout
        self.max_restarts, self.restarts = max_restarts, 0
        self._env_fns = list(env_fns)
        self._everyone = range(len(env_fns))
        self._seeds: list[int | None] = [None] * len(env_fns)
        self._context = process_context()
        self._shared = SharedArrays(self._context, spec, len(env_fns))
        self.obs = self._shared.obs()
        self._last_obs = [rows.copy() for rows in arrays(self.obs)]
        self.rewards, self._actions = self._shared.array("rewards"), self._shared.array("actions")
        self.terminated, self.truncated = self._shared.array("terminated"), self._shared.array("truncated")
        self._success = self._shared.array("success")
        self._judge: Env | None = None
        self.life_lost = self._shared.array("life_lost") if episodic_life else None
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._waiting = False
        weakref.finalize(self, kill, self._processes, os.getpid())
        try:
            for i in self._everyone:
                pipe, process = self._start(i)
                self._pipes.append(pipe)
                self._processes.append(process)
            answers, broken = self._answers(self._everyone)
            for i, what in broken.items():
                self._fail(i, "make", what)
            self.direct = all(answers)
        except BaseException:
            kill(self._processes)
            raise

    def _start(self, i: int) -> tuple[Connection, BaseProcess]:
        make = self._env_fns[i]
        pipe, process = start_process(
            self._context,
            work,
            (i, make if forks(self._context) else CloudpickleWrapper(make), self._shared, self.env_id),
            name=f"env-worker-{i}",
            siblings=self._pipes,
        )
        limit_waiting(pipe, self.timeout)
        return pipe, process

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin a new episode in some envs, all at the same time."""
        for i, seed in zip(indices, seeds, strict=True):
            self._seeds[i] = seed
        _, broken = self._ask(indices, "reset", seeds)
        for i, what in broken.items():
            self._replace(i, "reset", what)
            self.reset([i], [seeds[list(indices).index(i)]])

    def step(self, actions: Array, indices: Sequence[int] | None = None) -> None:
        """Step all envs at the same time, or only some."""
        self._actions[...] = actions
        if self.max_restarts:
            for rows, last in zip(arrays(self.obs), self._last_obs, strict=True):
                np.copyto(last, rows)
        _, broken = self._ask(self._everyone if indices is None else indices, "step")
        for i, what in broken.items():
            self._replace(i, "step", what)
            self.rewards[i], self.terminated[i], self.truncated[i] = 0.0, False, True
            self._success[i] = np.nan
            if self.life_lost is not None:
                self.life_lost[i] = False
            for rows, last in zip(arrays(self.obs), self._last_obs, strict=True):
                rows[i] = last[i]

    def success(self, i: int) -> bool | None:
        """What a worker left in the shared array; NaN stands for nothing."""
        return None if np.isnan(self._success[i]) else bool(self._success[i])

    def judge(self) -> Env:
        """An env in this process, made when it is first needed."""
        if self._judge is None:
            self._judge = self._env_fns[0]()
        return self._judge

    def render(self) -> list[Any]:
        """One frame an env."""
        frames, broken = self._ask(self._everyone, "render")
        for i, what in broken.items():
            self._fail(i, "render", what)
        return frames

    def capture(self, indices: Sequence[int]) -> list[Any]:
        """The state of some envs; None for a broken one, which is replaced at the next step."""
        states, broken = self._ask(indices, "capture")
        for i, what in broken.items():
            warnings.warn(f"{self._who(i)}: capture() {what}", RuntimeWarning, stacklevel=2)
        return states

    def restore(self, indices: Sequence[int], states: Sequence[Any]) -> list[str | None]:
        """Write states into envs that were just reset; for each, why that failed, or None."""
        answers, broken = self._ask(indices, "restore", states)
        return [broken.get(i, answer) for i, answer in zip(indices, answers, strict=True)]

    def _ask(
        self, indices: Sequence[int], command: str, payloads: Sequence[Any] | None = None
    ) -> tuple[list[Any], dict[int, str]]:
        """Give a command to some workers; returns their answers, and what happened to broken ones."""
        self._waiting = True
        for k, i in enumerate(indices):
            try:
                self._pipes[i].send((command, None if payloads is None else payloads[k]))
            except OSError:
                continue  # it is dead or does not listen, which shows again when it should answer
        answers, broken = self._answers(indices)
        self._waiting = False
        for i, what in broken.items():
            if self.restarts >= self.max_restarts:
                self._fail(i, command, what)
            kill([self._processes[i]])
        return answers, broken

    def _answers(self, indices: Sequence[int]) -> tuple[list[Any], dict[int, str]]:
        deadline = time.monotonic() + self.timeout
        answers: list[Any] = []
        broken: dict[int, str] = {}
        for i in indices:
            kind, payload = self._answer(i, deadline)
            if kind == "missing":
                kill(self._processes)
                raise MissingExtraError(*payload)
            if kind == "broken":
                broken[i] = payload
                if self.restarts >= self.max_restarts:
                    break  # that is an error now: no need to wait for the others
            answers.append(payload if kind == "done" else None)
        return answers, broken

    def _answer(self, i: int, deadline: float) -> tuple[str, Any]:
        """What one worker says, in time."""
        try:
            if not self._pipes[i].poll(max(0.0, deadline - time.monotonic())):
                raise BlockingIOError
            kind, payload = self._pipes[i].recv()
        except BlockingIOError:
            return "broken", f"did not answer within {self.timeout:g} s (env.worker_timeout)"
        except (EOFError, OSError):
            return "broken", describe_death(self._processes[i])
        return ("broken", f"raised\n{payload[1]}") if kind == "error" else (kind, payload)

    def _replace(self, i: int, command: str, what: str) -> None:
        """A new process in place of a broken one, or the error if there were enough of them."""
        if self.restarts >= self.max_restarts:
            self._fail(i, command, what)
        self.restarts += 1
        warnings.warn(
            f"{self._who(i)}: {command}() {what}\nThe worker was restarted, its episode is cut short "
            f"(restart {self.restarts} of {self.max_restarts}, env.max_worker_restarts)",
            RuntimeWarning,
            stacklevel=3,
        )
        kill([self._processes[i]])
        self._pipes[i].close()
        self._pipes[i], self._processes[i] = self._start(i)
        _, broken = self._answers([i])
        if broken:
            self._replace(i, "make", broken[i])

    def _who(self, i: int) -> str:
        episode = "before its first episode" if self._seeds[i] is None else f"episode seed {self._seeds[i]}"
        return f"env worker {i} ({self.env_id}, {episode})"

    def _fail(self, i: int, command: str, what: str) -> NoReturn:
        kill(self._processes)
        raise EnvError(f"{self._who(i)}: {command}() {what}")

    def close(self) -> None:
        """Ask the workers to close their envs, and end those that do not."""
        for pipe in self._pipes if not self._waiting else []:
            try:
                pipe.send(("close", None))
            except OSError:
                continue
        deadline = time.monotonic() + (0.0 if self._waiting else CLOSE_SECONDS)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        kill(self._processes)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        if self._judge is not None:
            self._judge.close()
            self._judge = None
