"""What a replay buffer holds, in the order in which it happened: for those who want all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.frame_stacks import Stack
from rl_training.data.layout import RolloutLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.types import Segment


def saved_buffer(
    state: Mapping[str, Any], layout: RolloutLayout, stacks: Mapping[str, Stack] | None = None
) -> ReplayBuffer:
    """The buffer that a saved state describes, in memory, no larger than what it holds."""
    segments = [part.tensors() if isinstance(part, Segment) else part for part in state["segments"]]
    num_envs = len(state["heads"])
    lookback = next(iter(stacks.values())).frames - 1 if stacks else 0
    # A ring that is full has as many slots as are filled; in one that is not, nothing has wrapped around.
    filled = sum(len(segment["rewards"]) for segment in segments)
    capacity = max(filled - 1 - 2 * lookback, 2) * num_envs
    buffer = ReplayBuffer(capacity, num_envs, layout, stacks=stacks)
    buffer.load_state_dict({**state, "segments": segments})
    return buffer


def in_order(buffer: ReplayBuffer) -> Tensor:
    """Flat indices of all transitions that can be drawn, env by env, from the oldest to the newest."""
    columns = [
        np.arange(max(0, head - buffer.slots + 1), head + 1) % buffer.slots * buffer.num_envs + env
        for env, head in enumerate(buffer.heads.tolist())
    ]
    index = torch.from_numpy(np.concatenate(columns))
    kept: Tensor = index[buffer.take("starts", index)]
    return kept


def episodes_of(buffer: ReplayBuffer, index: Tensor) -> tuple[Tensor, Tensor]:
    """For transitions `in_order`: the number of each one's episode, and whether it is its first.

    An episode is over where a transition terminated or was truncated, also by a lost life. One whose
    beginning has been overwritten, or that was abandoned, has a number too, but no first or no last.
    """
    over = buffer.take("terminated", index) | buffer.take("truncated", index)
    # An env that goes on shows next what the transition before ended with; a new episode has slots between.
    same_life = torch.zeros_like(over)
    same_life[1:] = buffer.next_index(index[:-1]) == index[1:]
    goes_on = same_life.clone()
    goes_on[1:] &= ~over[:-1]
    return (~goes_on).cumsum(0) - 1, ~goes_on & (same_life | (buffer.take("age", index) == 0))
