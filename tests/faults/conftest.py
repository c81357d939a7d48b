"""What the fault tests share: small counts by default, full ones with `--full`, and where figures go."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Report = Callable[..., None]


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Was the full number of trials asked for?"""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def quick_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: thousands of syncs would keep a disk busy for long."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def report(full: bool) -> Report:
    """Appends a line to the file that AXIOMRL_FAULT_REPORT names, if it does and all trials were made."""

    def write(test: str, case: str, *, trials: int, failures: int = 0, **more: int) -> None:
        path = os.environ.get("AXIOMRL_FAULT_REPORT")
        if path and full:
            line = {"test": test, "case": case, "trials": trials, **more, "failures": failures}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    return write
