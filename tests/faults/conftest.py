"""What the fault tests share: small counts by default, full ones with `--full`, and where figures go."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
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


@pytest.fixture(scope="session")
def code_version() -> dict[str, str]:
    """Which code is tested, and when: what a figure is worth nothing without."""
    return {"commit": _commit(), "date": datetime.now(UTC).date().isoformat()}


@pytest.fixture
def report(full: bool, code_version: Mapping[str, str]) -> Report:
    """Appends a line to the file that AXIOMRL_FAULT_REPORT names, if it does and all trials are made.

    Lines of one test and case are added up, so that every trial may report for itself.
    """

    def write(test: str, case: str, *, trials: int = 1, failures: int = 0, **more: int) -> None:
        path = os.environ.get("AXIOMRL_FAULT_REPORT")
        if path and full:
            line = {"test": test, "case": case, "trials": trials, **more, "failures": failures}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({**line, **code_version}) + "\n")

    return write


def _commit() -> str:
    """The commit that is checked out; a `+` says that the code has been changed since."""
    here = Path(__file__).parent

    def git(*command: str) -> str:
        done = subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    root = git("rev-parse", "--show-toplevel")
    changed = git("status", "--porcelain", "--", f"{root}/src", f"{root}/tests") if root else ""
    return (git("rev-parse", "--short=7", "HEAD") or "unknown") + ("+" if changed else "")
