"""Shared set-up: one torch thread, no display, and the `--full` switch for long runs."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MUJOCO_GL", "egl")

import pytest
import torch

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the long learning runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long runs out rather than skipping them: a skip would hide what cannot run."""
    if not config.getoption("--full"):
        long = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
