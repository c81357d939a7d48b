"""A polite end: the first signal finishes the iteration and saves, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rl_training.runtime.trainer import Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[None]:
    """Turn `SIGNALS` into a request to stop, while in this block (main thread only).

    SIGHUP comes when the terminal is closed. Where it is ignored, as under `nohup`, it stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        if trainer.interrupted is not None:
            if number == signal.SIGHUP:
                return  # a terminal that closes may send several, and nobody is there to be impatient
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        trainer.interrupt(name)
        with suppress(OSError):  # not print: it may have been interrupted itself
            os.write(2, f"\n{name}: saving after this iteration; a second signal ends at once\n".encode())

    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    taken = [number for number in SIGNALS if number != signal.SIGHUP or not is_nohup]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
