"""How batches are drawn from a replay buffer: which transitions, and over how many steps each looks ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer, Written
from rl_training.data.sum_tree import SumTree
from rl_training.types import Array, TransitionBatch


class UniformSampler:
    """Every stored transition is equally likely; returns may span `n_step` transitions.

    An n-step return ends early where its episode ends or where the buffer does; `discount` says how far it
    got and whether the state it ended in may be bootstrapped from. Nothing beyond this module knows of n.
    """

    def __init__(self, buffer: ReplayBuffer, *, gamma: float, n_step: int = 1) -> None:
        self.buffer, self.gamma, self.n_step = buffer, gamma, n_step
        self._powers = torch.tensor([gamma**k for k in range(n_step + 1)], device=buffer.device)
        self._zero, self._gamma = torch.tensor([0.0, gamma], device=buffer.device)
        self._ones = torch.ones(0, device=buffer.device)

    def written(self, written: Written) -> None:
        """Take note of what an `add` to the buffer changed."""

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch with replacement."""
        return self.gather(self._draw(batch_size, generator))

    def update_priorities(self, index: Tensor, priorities: Tensor) -> None:
        """Uniform sampling has none."""

    def set_progress(self, progress: float) -> None:
        """Move schedules, if there are any, to `progress` in [0, 1]."""

    def gather(self, index: Tensor, weights: Tensor | None = None) -> TransitionBatch:
        """The transitions that start at flat indices."""
        buffer = self.buffer
        rewards, discount, following = self._returns(index)
        return TransitionBatch(
            obs=buffer.take("obs", index),
            actions=buffer.take("actions", index),
            rewards=rewards,
            next_obs=buffer.take("obs", following),
            discount=discount,
            weights=self._equal_weights(index.shape[0]) if weights is None else weights,
            index=self._origin(index),
        )

    def _origin(self, index: Tensor) -> Tensor:
        """What tells where samples came from, in two rows: the second means nothing to this sampler."""
        return index.expand(2, -1)

    def _equal_weights(self, count: int) -> Tensor:
        if self._ones.shape[0] != count:
            self._ones = torch.ones(count, device=self.buffer.device)
        return self._ones

    def _returns(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Discounted rewards over up to n steps, the discount of what follows, and where that is."""
        buffer = self.buffer
        if self.n_step == 1:
            discount = torch.where(buffer.take("terminated", index), self._zero, self._gamma)
            return buffer.take("rewards", index), discount, buffer.next_index(index)
        ahead = torch.arange(self.n_step, device=index.device)
        path = buffer.next_index(index[:, None], ahead)
        ends = buffer.take("terminated", path) | buffer.take("truncated", path)
        goes_on = buffer.take("starts", path)[:, 1:] & ~ends[:, :-1]
        taken = torch.cat([torch.ones_like(ends[:, :1]), goes_on], 1).cumprod(1)
        rewards = (buffer.take("rewards", path) * taken * self._powers[:-1]).sum(1)
        steps = taken.sum(1)
        terminated = buffer.take("terminated", buffer.next_index(index, steps - 1))
        return rewards, self._powers[steps] * ~terminated, buffer.next_index(index, steps)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniform over the transitions there are: the first of many draws that start one."""
        drawn = self._draw_some(count + count // 8 + 8, generator, most=count)
        while (missing := count - drawn.shape[0]) > 0:
            drawn = torch.cat([drawn, self._draw_some(count, generator, most=missing)])
        return drawn

    def _draw_some(self, count: int, generator: torch.Generator, *, most: int) -> Tensor:
        """Slots at random, less those that start nothing; no more than `most`."""
        buffer = self.buffer
        limit = buffer.filled * buffer.num_envs
        index = torch.randint(limit, (count,), generator=generator, device=generator.device).to(buffer.device)
        return buffer.starting(index, most)

    def state_dict(self) -> dict[str, Any]:
        """What the buffer does not already hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class CapturableSampler(UniformSampler):
    """A `UniformSampler` whose shapes depend on no value, so that drawing can be part of a CUDA graph.

    Every sample gets some tries and is the first of them that starts a transition. One whose tries all fail
    weighs nothing.
    """

    TRIES = 8

    def __init__(self, buffer: ReplayBuffer, *, gamma: float, n_step: int = 1) -> None:
        super().__init__(buffer, gamma=gamma, n_step=n_step)
        self._slots = torch.zeros((), dtype=torch.float64, device=buffer.device)
        self._known = 0

    def written(self, written: Written) -> None:
        """Draw from what has been added, too."""
        self._follow()

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch with replacement."""
        shape = (self.TRIES, batch_size)
        draws = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
        tries = (draws.to(self.buffer.device) * self._slots).long()
        starts = self.buffer.take("starts", tries)
        index = tries.gather(0, starts.int().argmax(0, keepdim=True)).squeeze(0)
        return self.gather(index, starts.any(0).float())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Follow the buffer that has been loaded."""
        self._follow()

    def _follow(self) -> None:
        slots = self.buffer.filled * self.buffer.num_envs
        if slots != self._known:
            self._known = slots
            self._slots.fill_(slots)


class PrioritizedSampler(UniformSampler):
    """Proportional prioritised replay (Schaul et al. 2016): P(i) ∝ pᵢ^α, weights (N·P(i))^-β / max."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        gamma: float,
        n_step: int = 1,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(buffer, gamma=gamma, n_step=n_step)
        self.alpha, self.initial_beta, self.eps = alpha, beta, eps
        self.beta = beta
        self.tree = SumTree(buffer.size)
        self.highest = 1.0

    def set_progress(self, progress: float) -> None:
        """β grows on a line to 1 at the end of the run."""
        self.beta = self.initial_beta + (1.0 - self.initial_beta) * min(max(progress, 0.0), 1.0)

    def written(self, written: Written) -> None:
        """New transitions are as urgent as the most urgent so far; what was overwritten is never drawn."""
        self.tree.set(written.overwritten, np.zeros(len(written.overwritten)))
        self.tree.set(written.completed, np.full(len(written.completed), self.highest**self.alpha))

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch drawn by priority, one sample from each of `batch_size` equal parts of the total."""
        drawn = torch.rand(batch_size, generator=generator, device=generator.device).cpu().numpy()
        prefixes = (np.arange(batch_size) + drawn.astype(np.float64)) * (self.tree.total / batch_size)
        index = self.tree.find(prefixes)
        chances = self.tree.get(index) / self.tree.total
        weights = (len(self.buffer) * chances) ** -self.beta
        weights = (weights / weights.max()).astype(np.float32)
        device = self.buffer.device
        return self.gather(torch.from_numpy(index).to(device), torch.from_numpy(weights).to(device))

    def _origin(self, index: Tensor) -> Tensor:
        """The slot and its generation, by which a transition that has been overwritten is known."""
        return torch.stack([index, self.buffer.take("generation", index).long()])

    def update_priorities(self, index: Tensor, priorities: Tensor) -> None:
        """Set new priorities, except where a transition has been overwritten since, or its update failed."""
        flat, generation = index
        current = (self.buffer.take("generation", flat).long() == generation) & priorities.isfinite()
        chosen: Array = flat[current].cpu().numpy()
        values: Array = priorities.detach()[current].abs().double().cpu().numpy() + self.eps
        if len(values):
            self.highest = max(self.highest, float(values.max()))
            self.tree.set(chosen, values**self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """Priorities of all transitions."""
        return {"leaves": self.tree.leaves(), "highest": self.highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.tree.load(np.asarray(state["leaves"]))
        self.highest = float(state["highest"])
