"""Pieces of episodes for recurrent learners, with steps before them to bring the state up to date."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import UniformSampler
from rl_training.types import SequenceBatch


class SequenceSampler(UniformSampler):
    """Draws transitions and gives each with up to `burn_in` steps before it and `length - 1` after it.

    A sequence stays inside its episode and inside the buffer: steps that would not are masked, at its start
    (fewer steps to burn in) as at its end. Shapes are the same for every batch: `[burn_in + length, batch]`.
    """

    def __init__(self, buffer: ReplayBuffer, *, gamma: float, length: int, burn_in: int = 0) -> None:
        super().__init__(buffer, gamma=gamma)
        self.length, self.burn_in = length, burn_in

    def gather(self, index: Tensor, weights: Tensor | None = None) -> SequenceBatch:
        """The sequences around the transitions that start at flat indices."""
        buffer = self.buffer
        offsets = torch.arange(-self.burn_in, self.length, device=index.device)
        path = buffer.next_index(index, offsets[:, None])
        mask = self._mask(path)
        # Masked steps repeat the drawn one, so that nothing of other episodes is in a batch.
        path = torch.where(mask, path, index)
        terminated = buffer.take("terminated", path)
        burn_in = mask & (offsets < 0)[:, None]
        before = torch.cat([torch.zeros_like(mask[:1]), mask[:-1]])
        return SequenceBatch(
            obs=buffer.take("obs", path),
            actions=buffer.take("actions", path),
            rewards=buffer.take("rewards", path) * mask,
            next_obs=buffer.take("obs", buffer.next_index(path)),
            discount=self.gamma * (mask & ~terminated),
            weights=torch.ones(len(index), device=index.device) if weights is None else weights,
            index=torch.stack([index, buffer.take("generation", index).long()]),
            mask=mask,
            burn_in=burn_in,
            episode_starts=mask & ~before,
        )

    def _mask(self, path: Tensor) -> Tensor:
        """Which steps of `path [time, batch]` belong with the drawn one, which is step number `burn_in`."""
        buffer, drawn = self.buffer, self.burn_in
        ends = buffer.take("terminated", path) | buffer.take("truncated", path)
        starts = buffer.take("starts", path)
        # Forwards a step counts if it starts a transition and the one before did not end the episode;
        # backwards if it starts one that did not.
        after = (starts[drawn + 1 :] & ~ends[drawn:-1]).long().cumprod(0)
        before = (starts[:drawn] & ~ends[:drawn]).long().flip(0).cumprod(0).flip(0)
        return torch.cat([before, torch.ones_like(path[:1]), after]).bool()
