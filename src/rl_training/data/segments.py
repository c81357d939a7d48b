"""When a part of a ring of slots has changed, told from where the write heads are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.types import Array


def segment_version(heads: Sequence[Array], begin: int, end: int, slots: int) -> str:
    """A name for the contents of the slots `begin … end`, another one after every write to them.

    Each entry of `heads` holds positions, counted without wrapping around, up to which columns have been
    written one way or another; the last positions inside the segment only ever grow.
    """
    writes = sum(int(_last_in(positions, begin, end, slots).sum()) for positions in heads)
    return f"{end - begin}.{writes}"


def _last_in(heads: Array, begin: int, end: int, slots: int) -> Array:
    """The last position at or before each head, counted without wrapping, that lies in `begin … end`."""
    first = heads // slots * slots + begin
    first = np.where(first > heads, first - slots, first)
    last: Array = np.where(first < 0, -1, np.minimum(first + (end - begin) - 1, heads))
    return last
