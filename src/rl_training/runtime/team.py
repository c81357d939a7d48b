"""Learners that train together, as the first of them sees the others: processes that do what it does.

The first learner runs the loop: it alone logs, evaluates, saves and decides when to stop. All of them collect
in envs of their own and compute gradients of their own, and take every step along their mean. What they
have learned is therefore the same, to the bit; that is checked whenever it is saved.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any, Self

from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.algorithms.base import Algorithm
from rl_training.envs.processes import (
    CLOSE_SECONDS,
    describe_death,
    forks,
    kill,
    process_context,
    raise_as_told,
    start_process,
)
from rl_training.envs.snapshot import Grade, worst
from rl_training.errors import AxiomError, EnvError
from rl_training.runtime.averaging import Meeting, Seat
from rl_training.runtime.exchange import packed, unpacked
from rl_training.runtime.statistics import EpisodeStatistics
from rl_training.runtime.team_process import MakeTrainer, fingerprint, learn


class Team:
    """The other learners of a run. Each is given one command at a time, all of them the same."""

    def __init__(
        self,
        others: int,
        algorithm: Algorithm,
        make: Callable[[int], MakeTrainer],
        *,
        deterministic: bool | str,
    ) -> None:
        """`make(number)` says how the trainer of a learner is made, in its own process."""
        self.algorithm = algorithm
        self.begun = self._closed = self._idle = False
        self._grade: Grade = ("exact", "nothing has been saved")
        context = process_context()
        meeting = Meeting(context, others + 1)
        self.seat = Seat(meeting, 0, self._missing)
        self.seat.open = False
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        weakref.finalize(self, kill, self._processes, os.getpid())
        try:
            for number in range(1, others + 1):
                how: Any = make(number)
                how = how if forks(context) else CloudpickleWrapper(how)
                pipe, process = start_process(
                    context,
                    learn,
                    (how, meeting, number, deterministic),
                    name=f"learner {number}",
                    siblings=list(self._pipes),
                    daemon=False,  # its envs may be processes too
                )
                self._pipes.append(pipe)
                self._processes.append(process)
            self._finish()
        except BaseException:
            self.close()
            raise

    def advance(
        self, iterate: Callable[[], None], statistics: EpisodeStatistics, problems: Sequence[str]
    ) -> None:
        """One iteration of everybody; `iterate` is the first learner's part of it.

        `problems` with its way to compute updates all others must have, too: rounding has to be the same.
        """
        self._order("advance")
        self.seat.open = True
        try:
            iterate()
        except Exception:
            if not self.seat.abandoned:
                raise  # else the answers say why
        finally:
            self.seat.open = False
        answers = self._finish()
        self._require_all()
        for number, (episodes, theirs) in enumerate(answers, 1):
            statistics.extend(**episodes)
            if list(problems) != theirs:
                raise AxiomError(
                    f"learner {number} computes updates in another way than the first one "
                    f"({'; '.join([*problems, *theirs])}); use compile: off"
                )

    def begin(self, mode: str, counters: Mapping[str, int], moments: list[float]) -> None:
        """Have everybody go on from what the first learner knows.

        `moments` are those of its rewards: all learners divide by the same, also those that are new.
        """
        self._ask("begin", self.algorithm.state_dict(), mode, counters, moments)
        self.begun = True

    @contextmanager
    def resting(self) -> Iterator[None]:
        """While callbacks act, which only the first learner has: there is nothing that all do together."""
        before, self.seat.open = self.seat.open, False
        try:
            yield
        finally:
            self.seat.open = before
            self._require_all()

    def _require_all(self) -> None:
        """Refuse what the others took no part in, whatever became of the error that said so at once."""
        if self.seat.refused or self.seat.abandoned:
            raise AxiomError(
                "learners: a mean was asked for in which none of the others takes part. Does a callback make "
                "updates? Only the first learner has callbacks: use learners: 1"
            )

    @property
    def resume_grade(self) -> Grade:
        """What `load_state_dict` can promise for the state that was last given, and why."""
        return self._grade

    def state_dict(self) -> dict[str, Any]:
        """The others' streams of experience, by their numbers."""
        state, grades = {}, []
        expected = fingerprint(self.algorithm) if self.begun else None
        for number, (stream, grade, found) in enumerate(self._ask("save"), 1):
            if expected is not None and found != expected:
                raise AxiomError(
                    f"learner {number} has not learned the same as the first one. Does a callback change "
                    "what is learned? Only the first learner has callbacks: use learners: 1"
                )
            state[str(number)] = stream
            grades.append(grade)
        self._grade = worst(grades)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Grade:
        """Put every stream back; those that are not there begin."""
        streams = [[state.get(str(number))] for number in range(1, self.seat.members)]
        return worst(self._ask("load", each=streams))

    def close(self) -> None:
        """End the processes: politely if they are listening, at once if not; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self.seat.leave()
        self.algorithm.join(None)
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        for process in self._processes:
            process.join(CLOSE_SECONDS if self._idle else 0.0)
        kill(self._processes)
        for pipe in self._pipes:
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, command: str, *payload: Any, each: Sequence[Sequence[Any]] | None = None) -> None:
        """Give a command, without waiting for what comes of it."""
        if not self._idle:
            raise AxiomError(
                "the other learners are in the middle of an iteration: they cannot be asked for more now; "
                "a callback can ask in on_update"
            )
        self._idle = False
        for pipe, own in zip(self._pipes, each or [payload] * len(self._pipes), strict=True):
            with suppress(OSError):  # it is dead, which shows when it should answer
                pipe.send((command, tuple(packed(part) for part in own)))

    def _finish(self) -> list[Any]:
        """Everybody's answer to the last command."""
        answers: dict[int, Any] = {}
        waiting = {pipe: number for number, pipe in enumerate(self._pipes, 1)}
        while waiting:  # for whoever is first: one who fails is waited for by the others
            for pipe in wait(list(waiting)):
                number = waiting.pop(pipe)
                answers[number] = self._received(number)
        self._idle = True
        return [answers[number] for number in sorted(answers)]

    def _ask(self, command: str, *payload: Any, each: Sequence[Sequence[Any]] | None = None) -> list[Any]:
        self._order(command, *payload, each=each)
        return self._finish()

    def _received(self, number: int) -> Any:
        """One answer; what went wrong there is raised here, as the same error."""
        try:
            answer = self._pipes[number - 1].recv()
        except (EOFError, OSError):
            raise EnvError(f"learner {number} {describe_death(self._processes[number - 1])}") from None
        return unpacked(raise_as_told(answer, f"learner {number}", prefix=f"learner {number}: "))

    def _missing(self, dead: bool) -> bool:
        """While somebody is waited for: whoever has an answer already, or none to give, will not come."""
        if dead:
            return not all(process.is_alive() for process in self._processes)
        return any(pipe.poll() for pipe in self._pipes)
