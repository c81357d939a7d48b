"""No test of the zoo touches the user's cache, or trains where a stand-in will do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_plans import FAKE, SOURCE

from rl_training.zoo import runner


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Replace training by the stand-in; answers which calls there were, as `train 1`."""
    path = tmp_path / "calls"
    monkeypatch.setenv("FAKE_CALLS", str(path))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setattr(runner, "CHILD", [sys.executable, str(FAKE)])
    return lambda: [" ".join(line.split()[:2]) for line in path.read_text().splitlines()]
