"""A sum tree in arrays: change many leaves, or find many prefix sums, in O(log n) vectorised steps."""

from __future__ import annotations

import numpy as np

from rl_training.types import Array

_TOP = 10
"""Levels at the top that are gone through at once: for a thousand nodes that is cheaper than one by one."""


class SumTree:
    """Non-negative numbers at `capacity` leaves, with the sum of every subtree."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.depth = max(1, int(np.ceil(np.log2(max(capacity, 2)))))
        self._leaves = 1 << self.depth
        self._nodes = np.zeros(2 * self._leaves)  # the root is node 1, the leaves come last
        self._top = min(self.depth, _TOP)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    def get(self, index: Array) -> Array:
        """Values of leaves."""
        values: Array = self._nodes[index + self._leaves]
        return values

    def set(self, index: Array, values: Array) -> None:
        """Change leaves; of several values for one leaf the last counts."""
        if not len(index):
            return
        nodes = index + self._leaves
        self._nodes[nodes] = values
        for _ in range(self.depth - self._top):
            nodes >>= 1  # siblings meet in their parent and compute it twice: cheaper than sorting them out
            left = 2 * nodes
            self._nodes[nodes] = self._nodes[left] + self._nodes[left + 1]
        self._sum_up(self._top)

    def find(self, prefixes: Array) -> Array:
        """For each number in [0, total) the leaf at which the running sum passes it."""
        width = 1 << self._top
        values = self._nodes[width : 2 * width]
        sums = np.cumsum(values)
        # Rounding must not lead beyond the last node that holds something, nor below into an empty subtree.
        place = np.minimum(np.searchsorted(sums, prefixes, side="right"), np.searchsorted(sums, sums[-1]))
        remaining = np.maximum(prefixes - (sums[place] - values[place]), 0.0)
        nodes = width + place
        for _ in range(self.depth - self._top):
            nodes = nodes * 2
            left = self._nodes[nodes]
            right = (remaining >= left) & (self._nodes[nodes + 1] > 0)
            remaining = np.where(right, remaining - left, remaining)
            nodes = nodes + right
        found: Array = nodes - self._leaves
        return found

    def load(self, leaves: Array) -> None:
        """Replace all leaves."""
        self._nodes[:] = 0.0
        self._nodes[self._leaves : self._leaves + len(leaves)] = leaves
        self._sum_up(self.depth)

    def _sum_up(self, levels: int) -> None:
        """Compute all nodes above a level anew."""
        for level in range(levels - 1, -1, -1):
            first = 1 << level
            below = self._nodes[2 * first : 4 * first]
            np.add(below[::2], below[1::2], out=self._nodes[first : 2 * first])

    def leaves(self) -> Array:
        """All leaves."""
        return self._nodes[self._leaves : self._leaves + self.capacity].copy()
