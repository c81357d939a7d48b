"""A computation on a GPU recorded as a CUDA graph: repeated with one launch instead of hundreds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
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

    failures = 0
    """Recordings that failed. Generators then get new states, which graphs made before do not know."""

    def __init__(
        self,
        run: Run,
        inputs: Sequence[Tensor],
        *,
        generators: Sequence[Generator] = (),
        undo: Callable[[], None] = lambda: None,
        pool: Any = None,
        warm_ups: int = WARM_UPS,
    ) -> None:
        self.inputs = [tensor.detach().clone() for tensor in inputs]
        self._draws, self._after = bool(generators), Captured.failures
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._warm_up(run, undo, stream, warm_ups)
        self.graph = torch.cuda.CUDAGraph()
        before = [generator.get_state() for generator in generators]
        for generator in generators:
            self.graph.register_generator_state(generator)
        gc.collect()  # parts of old backward passes that are still alive would belong to another stream
        try:
            # The outer one for when a capture is refused: `graph` then stays on the stream it recorded.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(self.graph, pool=pool, stream=stream),
            ):
                self.results = list(run(*self.inputs))
        except BaseException:
            Captured.failures += 1
            for generator, state in zip(generators, before, strict=True):
                _release(generator, state)
            with suppress(RuntimeError):
                stream.synchronize()
            raise
        # Before it records, torch sets the generators' places on that stream and waits for nothing: were that
        # late, it would happen in the middle of the first replay, which then would draw other numbers.
        torch.cuda.current_stream().wait_stream(stream)
        undo()

    def _warm_up(self, run: Run, undo: Callable[[], None], stream: torch.cuda.Stream, times: int) -> None:
        """On the stream that is recorded on afterwards."""
        gc.collect()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(times):
                    run(*self.inputs)
                    undo()  # each time: counters decide what the next run would do
        finally:  # what a run that failed had launched must be over, too, before it is taken back
            torch.cuda.current_stream().wait_stream(stream)

    @property
    def stale(self) -> bool:
        """Whether its generators may have states now that it does not know: it has to be recorded anew."""
        return self._draws and self._after != Captured.failures

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The results for these inputs; nothing is waited for."""
        if inputs:
            torch._foreach_copy_(self.inputs, list(inputs), non_blocking=True)
        self.graph.replay()
        return [result.clone() for result in self.results]


def _release(generator: Generator, state: Tensor) -> None:
    """Free a generator from a recording that has failed; otherwise it would wait for its end for ever."""
    fresh = Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
