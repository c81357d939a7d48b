"""One holder a run: an OS lock that is freed when its holder dies, whatever processes it has started."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment.files import saving


class RunLock:
    """Holds the lock of a run directory from its construction until `release`."""

    def __init__(self, run_dir: Path) -> None:
        self._descriptor: int | None = None
        with saving(run_dir):
            descriptor = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(descriptor)
            os.close(descriptor)
            raise CheckpointError(
                f"{run_dir}: another process is training this run{f' (process {holder})' if holder else ''}"
            ) from None
        self._descriptor = descriptor
        _held.add(self)
        with suppress(OSError):  # a full disk: who holds it is only for people to know
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give up the lock; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held.discard(self)
            os.close(descriptor)


def holder_of(run_dir: Path) -> str | None:
    """Who holds the lock of a run directory: `process 123`, as far as that is known. None: nobody."""
    try:
        descriptor = os.open(run_dir / ".lock", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        number = _read(descriptor)
        return f"process {number}" if number else "another process"
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> str:
    """The holder's number, as far as the file tells."""
    with suppress(OSError, ValueError):
        return str(int(os.pread(descriptor, 20, 0)))
    return ""


_held: set[RunLock] = set()


def _let_go() -> None:
    """In a forked child: a lock belongs to everyone who has it open, and only the parent may keep it."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go)
