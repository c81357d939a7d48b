"""Rings of slots are saved in segments: when one has changed, and how they are put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from rl_training.errors import ConfigError
from rl_training.types import Array

SEGMENT_TRANSITIONS = 16_384
"""Transitions that are saved together: about what saving one transition more costs."""


def segment_version(heads: Sequence[Array], begin: int, end: int, slots: int) -> str:
    """A name for the contents of the slots `begin … end`, another one after every write to them.

    Each entry of `heads` holds positions, counted without wrapping around, up to which columns have been
    written one way or another; the last positions inside the segment only ever grow.
    """
    writes = sum(int(_last_in(positions, begin, end, slots).sum()) for positions in heads)
    return f"{end - begin}.{writes}"


def restore(tensors: Mapping[str, Tensor], segments: Sequence[Mapping[str, Tensor]], length: int) -> None:
    """Put segments of `length` slots each back where they were; slots that have not been saved are zero."""
    for name, tensor in tensors.items():
        tensor.zero_()
        for block, segment in enumerate(segments):
            saved, target = segment[name], tensor[block * length : (block + 1) * length]
            if saved.shape[1:] != tensor.shape[1:] or len(saved) > len(target):
                raise ConfigError(
                    f"the saved replay buffer's {name!r} has rows of shape {tuple(saved.shape[1:])}, "
                    f"this one of {tuple(tensor.shape[1:])}, or it is larger than this one"
                )
            target[: len(saved)] = saved.to(target.device)


def _last_in(heads: Array, begin: int, end: int, slots: int) -> Array:
    """The last position at or before each head, counted without wrapping, that lies in `begin … end`."""
    first = heads // slots * slots + begin
    first = np.where(first > heads, first - slots, first)
    last: Array = np.where(first < 0, -1, np.minimum(first + (end - begin) - 1, heads))
    return last
