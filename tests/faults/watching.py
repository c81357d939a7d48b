"""What the kernel knows of processes and of the memory they share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def soon(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def children_of(pid: int) -> list[int]:
    """Processes, zombies included, whose parent this is, in the order of their starts."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append((int(fields[19]), int(entry.name)))
    return [child for _, child in sorted(found)]


def alive(pid: int) -> bool:
    """Whether it still runs: a zombie, which nobody has asked for its end, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def shared_memory(pids: Iterable[int]) -> list[str]:
    """Names of the memory that these processes have made to share: none once it is mapped."""
    mine = tuple(f"pym-{pid}-" for pid in pids)
    return [name for name in os.listdir("/dev/shm") if name.startswith(mine)]
