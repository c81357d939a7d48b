"""A sum tree in arrays: change many leaves, or find many prefix sums, in O(log n) vectorised steps."""

from __future__ import annotations

import numpy as np

from rl_training.types import Array


class SumTree:
    """Non-negative numbers at `capacity` leaves, with the sum of every subtree."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.depth = max(1, int(np.ceil(np.log2(max(capacity, 2)))))
        self._leaves = 1 << self.depth
        self._nodes = np.zeros(2 * self._leaves)  # the root is node 1, the leaves come last

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
        for _ in range(self.depth):
            nodes >>= 1  # siblings meet in their parent and compute it twice: cheaper than sorting them out
            left = 2 * nodes
            self._nodes[nodes] = self._nodes[left] + self._nodes[left + 1]

    def find(self, prefixes: Array) -> Array:
        """For each number in [0, total) the leaf at which the running sum passes it."""
        remaining = np.array(prefixes, np.float64)
        nodes = np.ones(len(remaining), np.int64)
        for _ in range(self.depth):
            nodes = nodes * 2
            left = self._nodes[nodes]
            # Rounding must not lead into an empty subtree.
            right = (remaining >= left) & (self._nodes[nodes + 1] > 0)
            remaining = np.where(right, remaining - left, remaining)
            nodes = nodes + right
        found: Array = nodes - self._leaves
        return found

    def load(self, leaves: Array) -> None:
        """Replace all leaves."""
        self._nodes[:] = 0.0
        self._nodes[self._leaves : self._leaves + len(leaves)] = leaves
        for level in range(self.depth - 1, -1, -1):
            nodes = np.arange(1 << level, 2 << level)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def leaves(self) -> Array:
        """All leaves."""
        return self._nodes[self._leaves : self._leaves + self.capacity].copy()
