"""What several of these tests stand on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.runtime import compilation, recorded


@pytest.fixture
def recorded_as_it_is(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A compiler that compiles nothing; how often the graph of each thing it was given has run."""
    runs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        number = len(runs)
        runs.append(0)

        def run(*tensors: torch.Tensor) -> Any:
            runs[number] += 1
            return graph(*tensors)

        return run

    monkeypatch.setattr(recorded, "inductor", backend)
    monkeypatch.setattr(compilation, "find_compiler", lambda: "none")
    return runs
