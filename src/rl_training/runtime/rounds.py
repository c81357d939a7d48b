"""Rounds of off-policy updates as CUDA graphs: the drawing of batches, and one update or several of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from rl_training.runtime.compilation import MAX_RECORDINGS, Update, Updates
from rl_training.runtime.recorded import RecordedRound
from rl_training.types import UpdateResult

Draw: TypeAlias = Callable[[Update], UpdateResult]
"""Draws a batch and gives it to an update."""


class CapturedRounds:
    """Called with a number of updates, makes them: with one launch, once that has been recorded.

    Whether a graph does all that the plain computation does can only be told of a single update, whose
    rounding nothing has made more of yet. So those are recorded first, and longer rounds when all in them is
    trusted: of these the first update has to be the same, and what all of them draw.
    """

    LONGEST = 64
    """Updates of a graph; more are made of several. Recording takes long, and a launch is little."""

    def __init__(self, updates: Updates, inner: Updates, draw: Draw) -> None:
        """`inner` are updates that may be part of a larger graph; `updates` are made if nothing can be."""
        self.updates, self._inner, self._draw = updates, inner, draw
        self._graphs: dict[tuple[Hashable, ...], RecordedRound | None] = {}
        """By the kinds of their updates, in order; None: they cannot be recorded."""
        self._met: set[Hashable] = set()
        """Kinds of which there has been one, so that all is allocated and compiled."""

    def __call__(self, count: int) -> list[UpdateResult]:
        """The next `count` updates."""
        pieces = [self.LONGEST] * (count // self.LONGEST) + [count % self.LONGEST]
        return [result for piece in pieces for result in self._next(piece)]

    def _next(self, count: int) -> list[UpdateResult]:
        algorithm = self.updates.algorithm
        first = algorithm.num_updates + 1
        kinds = tuple(algorithm.kind(number) for number in range(first, first + count))
        if count > 1 and all(self._graphs.get((kind,)) for kind in kinds):
            whole = self._graph(kinds)
            if whole is not None:
                return whole()
        return [self._single(kind) for kind in kinds]

    def _single(self, kind: Hashable) -> UpdateResult:
        if kind not in self._met:
            self._met.add(kind)
            return self._draw(self._inner)
        graph = self._graph((kind,))
        return self._draw(self.updates) if graph is None else graph()[0]

    def _graph(self, kinds: tuple[Hashable, ...]) -> RecordedRound | None:
        """The graph of these updates, recorded at the first time; what failed is not tried again."""
        graph = self._graphs.get(kinds)
        if kinds not in self._graphs:
            orders = sum(len(others) > 1 for others in self._graphs)
            if len(kinds) > 1 and orders >= MAX_RECORDINGS:
                return None
        elif graph is None or not graph.stale:
            return graph
        graph = self._graphs[kinds] = self.updates.record_round(
            plain=lambda: [self._draw(self.updates.algorithm.update) for _ in kinds],
            quick=lambda: [self._draw(self._inner) for _ in kinds],
            alike_at_first=True,
        )
        return graph
