"""Batches from two sources, in fixed proportions: fresh experience beside a stock of earlier data, say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.data.replay_buffer import Written
from rl_training.data.samplers import UniformSampler
from rl_training.types import TensorObs, TransitionBatch


class MixedSampler:
    """Draws `ratio` of each batch from one sampler and the rest from another; the first one's come first.

    What is collected goes into the first one's buffer. While one buffer is empty, the other fills the batch.
    """

    def __init__(self, first: UniformSampler, second: UniformSampler, *, ratio: float = 0.5) -> None:
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"ratio is {ratio}, not between 0 and 1")
        self.first, self.second, self.ratio = first, second, ratio

    def written(self, written: Written) -> None:
        """Take note of what an `add` to the first buffer changed."""
        self.first.written(written)

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """One batch from both; a third row of `index` says which sampler each sample came from."""
        counts = self._counts(batch_size)
        parts = [
            sampler.sample(count, generator)
            for sampler, count in zip((self.first, self.second), counts, strict=True)
            if count
        ]
        sources = [source for source, count in enumerate(counts) if count]
        index = [
            torch.cat([part.index, torch.full_like(part.index[:1], source)])
            for part, source in zip(parts, sources, strict=True)
        ]
        return TransitionBatch(
            obs=_cat([part.obs for part in parts]),
            actions=torch.cat([part.actions for part in parts]),
            rewards=torch.cat([part.rewards for part in parts]),
            next_obs=_cat([part.next_obs for part in parts]),
            discount=torch.cat([part.discount for part in parts]),
            weights=torch.cat([part.weights for part in parts]),
            index=torch.cat(index, 1),
        )

    def _counts(self, batch_size: int) -> tuple[int, int]:
        """How many samples come from each."""
        if not len(self.first.buffer):
            return 0, batch_size
        if not len(self.second.buffer):
            return batch_size, 0
        from_first = round(batch_size * self.ratio)
        return from_first, batch_size - from_first

    def update_priorities(self, index: Tensor, priorities: Tensor) -> None:
        """Hand new priorities to the sampler that drew each of them."""
        for source, sampler in enumerate((self.first, self.second)):
            own = index[2] == source
            sampler.update_priorities(index[:2, own], priorities[own])

    def set_progress(self, progress: float) -> None:
        """Move the schedules of both."""
        self.first.set_progress(progress)
        self.second.set_progress(progress)

    def state_dict(self) -> dict[str, Any]:
        """What both have to keep."""
        return {"first": self.first.state_dict(), "second": self.second.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.first.load_state_dict(state["first"])
        self.second.load_state_dict(state["second"])


def _cat(parts: list[TensorObs]) -> TensorObs:
    first = parts[0]
    if isinstance(first, dict):
        return {key: torch.cat([part[key] for part in parts if isinstance(part, dict)]) for key in first}
    return torch.cat([part for part in parts if isinstance(part, Tensor)])
