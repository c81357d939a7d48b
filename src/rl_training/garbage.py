"""When Python's garbage collector need not look: at objects that are made in great numbers and all stay."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_own_process = False


@contextmanager
def collector_off() -> Iterator[None]:
    """Nothing is collected meanwhile: it would look again and again at what all stays."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def importing_torch() -> Iterator[None]:
    """Import what imports torch: some hundred thousand objects, and much of the time of a short command.

    In a command of this package's the collector does not look at them later either, nor at the end. What
    others have made in their process has to stay collectable.
    """
    if "torch" in sys.modules:
        yield
        return
    with collector_off():
        yield
        if _own_process:
            gc.freeze()


def own_process() -> None:
    """Say that this process is a command of this package's."""
    global _own_process
    _own_process = True
