"""Memories: recurrent layers between an encoder and what reads it, unrolled over whole episodes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rl_training.types import PolicyState

Kind = Literal["lstm", "gru"]


@dataclass(frozen=True, slots=True)
class MemorySize:
    """What a memory is built from."""

    kind: Kind
    hidden_size: int
    num_layers: int = 1


@dataclass(frozen=True, slots=True)
class Segments:
    """How sequences `[time, sequences]` fall into pieces at the starts of episodes.

    A piece is a column of a padded table `[longest piece, pieces]`. The padding comes after a piece's last
    step, where it can change nothing that is read.
    """

    table: Tensor
    """For each cell of the table the flat index of the step that goes there; padding repeats step 0."""
    cells: Tensor
    """For each step, flat, the cell it went to."""
    columns: Tensor
    """The sequence that each piece is cut from."""
    fresh: Tensor
    """Whether a piece begins an episode, and so without memories."""


def segment(episode_starts: Tensor, device: torch.device) -> Segments | None:
    """Cut sequences before every step that starts an episode; None: no episode starts inside any of them.

    `episode_starts` `[time, sequences]` is on the host. The first step needs no cut: a rollout's states are
    begun anew where an episode starts there.
    """
    starts = episode_starts.numpy().T.copy()  # sequence by sequence, each in order of time
    starts[:, 0] = False
    if not starts.any():
        return None
    count, length = starts.shape
    fresh = starts.copy()
    starts[:, 0] = True
    first = np.flatnonzero(starts)
    piece = np.cumsum(starts) - 1
    offset = np.arange(starts.size) - first[piece]
    table = np.zeros((offset.max() + 1, len(first)), np.int64)
    step = np.arange(starts.size).reshape(length, count).T.ravel()  # the flat index [time, sequences]
    table[offset, piece] = step
    cells = np.empty(starts.size, np.int64)
    cells[step] = offset * len(first) + piece
    parts = (table.ravel(), cells, first // length, fresh.ravel()[first])
    flat, where, columns, begins = (torch.from_numpy(x).to(device, non_blocking=True) for x in parts)
    return Segments(flat.view(table.shape), where, columns, begins)


class Memory(nn.Module):
    """An LSTM or GRU whose state is one row an env: `hidden` and, for an LSTM, `cell`, `[envs, layers, …]`.

    `prefix` keeps the states of two memories of one policy apart.
    """

    def __init__(self, size: MemorySize, in_dim: int, prefix: str = "") -> None:
        super().__init__()
        layers = nn.LSTM if size.kind == "lstm" else nn.GRU
        self.layers = layers(in_dim, size.hidden_size, size.num_layers)
        self.out_dim = size.hidden_size
        self.keys = tuple(f"{prefix}{key}" for key in ("hidden", "cell")[: 2 if size.kind == "lstm" else 1])

    def initial_state(self, num_envs: int) -> PolicyState:
        """Nothing remembered."""
        weight = next(self.layers.parameters())
        shape = (num_envs, self.layers.num_layers, self.out_dim)
        return {key: weight.new_zeros(shape, requires_grad=False) for key in self.keys}

    def forward(self, features: Tensor, state: PolicyState) -> tuple[Tensor, PolicyState]:
        """One step: `[envs, …]` features and the state before them to an output and the state after."""
        output, after = self.layers(features.unsqueeze(0), self._pack([state[key] for key in self.keys]))
        parts = after if isinstance(after, tuple) else (after,)
        return output.squeeze(0), {k: v.transpose(0, 1) for k, v in zip(self.keys, parts, strict=True)}

    def unroll(self, features: Tensor, state: PolicyState, segments: Segments | None) -> Tensor:
        """All steps of `[time, sequences, …]`, forgetting where `segments` says that episodes begin."""
        rows = [state[key] for key in self.keys]
        if segments is None:
            return self.layers(features, self._pack(rows))[0]  # type: ignore[no-any-return]
        table = segments.table
        padded = features.flatten(0, 1).index_select(0, table.flatten()).view(*table.shape, -1)
        rows = [row.index_select(0, segments.columns) for row in rows]
        rows = [row.masked_fill(segments.fresh[:, None, None], 0.0) for row in rows]
        output: Tensor = self.layers(padded, self._pack(rows))[0]
        return output.flatten(0, 1).index_select(0, segments.cells).view(*features.shape[:2], -1)

    @staticmethod
    def _pack(rows: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
        """States as torch wants them: layers first."""
        packed = tuple(row.transpose(0, 1).contiguous() for row in rows)
        return packed if len(packed) > 1 else packed[0]
