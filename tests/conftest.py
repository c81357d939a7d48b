"""Shared set-up: one torch thread, no display, no GPU unless one is named, and the `--full` switch."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # a GPU is used when one is named: see CONTRIBUTING.md

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# The same examples in every run, however slow the machine; `--full` looks for new ones.
slow_is_fine = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=slow_is_fine
)
hypothesis.settings.register_profile("full", deadline=None, suppress_health_check=slow_is_fine)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the long learning runs")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("full" if config.getoption("--full") else "suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for rather than skipping it: a skip would hide what cannot run."""
    full, gpu, there = config.getoption("--full"), torch.cuda.is_available(), Path(__file__).parent / "gpu"
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        wanted = (full or not item.get_closest_marker("full")) and (gpu or there not in item.path.parents)
        (kept if wanted else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
