"""A computation on a GPU recorded as a CUDA graph: repeated with one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from rl_training.runtime.tracing import Run

WARM_UPS = 3
"""Runs before the recording: libraries choose their kernels and reserve their memory in the first ones."""


class Captured:
    """`run(*inputs)` as a graph. Inputs are copied into memory of its own, results out of it.

    `run` must do without the host: no value is read, no shape depends on one. Its random numbers come from
    `generators`, whose state moves on with every replay as it would without the graph. `undo` takes back
    what a run did to anything beside its results, so that recording leaves no trace.
    """

    def __init__(
        self,
        run: Run,
        inputs: Sequence[Tensor],
        *,
        generators: Sequence[Generator] = (),
        undo: Callable[[], None] = lambda: None,
        pool: Any = None,
    ) -> None:
        self.inputs = [tensor.detach().clone() for tensor in inputs]
        self._warm_up(run, undo)
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, pool=pool):
            self.results = list(run(*self.inputs))
        undo()

    def _warm_up(self, run: Run, undo: Callable[[], None]) -> None:
        """On a stream of its own, as recordings are made on one."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        undo()

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The results for these inputs; nothing is waited for."""
        if inputs:
            torch._foreach_copy_(self.inputs, list(inputs), non_blocking=True)
        self.graph.replay()
        return [result.clone() for result in self.results]
