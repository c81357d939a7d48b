"""Means over learners that train together, each in a process of its own: one flat tensor in shared memory.

Everyone adds up the same numbers in the same order, so that all of them go on with the same bits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from rl_training.runtime.exchange import SharedTensors

ROOM = 2**20
"""Bytes that a learner can bring at a time; more is averaged in parts."""
EAGER_LOOKS = 200
"""Looks at who has come, without a break: the others are at most a few microseconds behind."""
NAP_S = 5e-5
LOOK_AROUND_S = 0.05
"""How often somebody who waits makes sure that there is something to wait for."""


class Abandoned(RuntimeError):  # noqa: N818 - it says what has happened
    """Somebody who would have had to come will not."""


class Meeting:
    """Where so many learners bring numbers, and from where each takes the mean.

    There are two rooms, used in turn: whoever enters one again has seen everybody in the other, and so knows
    that all have left this one.
    """

    def __init__(self, context: Any, members: int) -> None:
        self.members = members
        self.lock = context.Lock()
        self._shared = SharedTensors(context)
        self._shared.allocate((2, members, ROOM), torch.uint8)
        self._shared.allocate((members,), torch.int64)

    def places(self) -> tuple[Tensor, Tensor]:
        """The two rooms, and how often each member has come; in whichever process this is asked."""
        find = self._shared.found()
        return find((2, self.members, ROOM), torch.uint8), find((self.members,), torch.int64)


class Seat:
    """One learner's place in a meeting. Called with a tensor, it gives the mean of what all have called with.

    It is an operation of torch, so that compiled updates contain it.
    """

    def __init__(
        self, meeting: Meeting, member: int, missing: Callable[[bool], bool] = lambda _: False
    ) -> None:
        """`missing` says whether somebody will not come any more, or only whether somebody is `dead`."""
        self.members, self._member, self._missing = meeting.members, member, missing
        self._rooms, arrived = meeting.places()
        self._arrived, self._lock = arrived.numpy(), meeting.lock
        self.abandoned = False
        """Whether somebody was waited for who will not come."""
        self.open, self.refused = True, False
        """Whether the others take part, and whether a mean was asked for while they did not."""
        self._meetings = 0
        self._alone = False
        self._number = next(number for number in range(len(_seats) + 1) if number not in _seats)
        _seats[self._number] = self

    def __call__(self, values: Tensor) -> Tensor:
        """The mean over all learners, of the same shape."""
        mean: Tensor = torch.ops.axiomrl.mean_over_learners(values, self._number)
        return mean

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Give back what was brought: for updates that are tried and taken back, and concern nobody else."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def mean(self, values: Tensor) -> Tensor:
        """The mean, found by meeting the others."""
        if self._alone:
            return values.clone()
        if not self.open:
            self.refused = True
            raise Abandoned
        flat = values.reshape(-1)
        parts = [self._meet(part) for part in torch.split(flat, ROOM // values.element_size())]
        return torch.cat(parts).view_as(values)

    def _meet(self, values: Tensor) -> Tensor:
        self._meetings += 1
        room = self._rooms[self._meetings % 2, :, : values.nbytes].view(values.dtype)
        room[self._member].copy_(values)
        # The lock orders memory: who has seen somebody come, and then had the lock, sees what they brought.
        with self._locked():
            self._arrived[self._member] = self._meetings
        self._wait()
        with self._locked():
            pass
        total = room[0].clone()
        for others in room[1:]:
            total += others
        return total.div_(self.members)

    def _wait(self) -> None:
        """Until all have come: at first without letting go of the core, then looking around now and then."""
        arrived, meeting = self._arrived, self._meetings
        for _ in range(EAGER_LOOKS):
            if arrived.min() >= meeting:
                return
        looked = time.perf_counter()
        while arrived.min() < meeting:
            time.sleep(NAP_S)
            if time.perf_counter() - looked > LOOK_AROUND_S:
                # Whoever seems to be missing may have come just now, and be done already.
                if self._missing(False) and arrived.min() < meeting:
                    self._give_up()
                looked = time.perf_counter()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the lock, unless somebody died with it."""
        while not self._lock.acquire(timeout=LOOK_AROUND_S):
            if self._missing(True):
                self._give_up()
        try:
            yield
        finally:
            self._lock.release()

    def _give_up(self) -> NoReturn:
        self.abandoned = True  # compiled code may turn what is raised into something else
        raise Abandoned

    def leave(self) -> None:
        """There are no more meetings."""
        _seats.pop(self._number, None)


_seats: dict[int, Seat] = {}
"""Those of this process; nearly always one."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seats.clear)

torch.library.define("axiomrl::mean_over_learners", "(Tensor values, int seat) -> Tensor")


@torch.library.impl("axiomrl::mean_over_learners", "CPU")
def _mean(values: Tensor, seat: int) -> Tensor:
    return _seats[seat].mean(values)


@torch.library.register_fake("axiomrl::mean_over_learners")  # type: ignore[untyped-decorator]
def _outline(values: Tensor, seat: int) -> Tensor:  # noqa: ARG001 - the operator has it
    """The result's shape, for whoever compiles."""
    return torch.empty_like(values)
