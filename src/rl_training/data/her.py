"""Hindsight experience replay (Andrychowicz et al. 2017): what would it have been worth for another goal?

Of every batch, a fraction k / (k + 1) gets a new goal: one that its own episode did achieve, at a state that
is still stored. Rewards are the env's judgement of the new goal. The episode under way counts as far as the
write head: what it has achieved so far is as true as what a finished one has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer, Written
from rl_training.data.samplers import UniformSampler
from rl_training.types import ACHIEVED_GOAL, DESIRED_GOAL, Array, GoalTask, TransitionBatch

Strategy = Literal["future", "final", "episode"]
"""Whose goal: a state after the transition, the last one of its episode, or any but its first."""
STRATEGIES: tuple[str, ...] = get_args(Strategy)


class HindsightSampler(UniformSampler):
    """Draws uniformly and sets new goals; n-step returns are those of the new goal.

    Positions below are slots counted without wrapping around, as `ReplayBuffer.heads` counts them.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        task: GoalTask,
        *,
        gamma: float,
        n_step: int = 1,
        strategy: Strategy = "future",
        goals: int = 4,
    ) -> None:
        super().__init__(buffer, gamma=gamma, n_step=n_step)
        self.task, self.strategy = task, strategy
        self.fraction = goals / (goals + 1)
        self._ends = np.zeros(buffer.size, np.int64)
        """For each flat index the position of its episode's last observation, unless that is under way."""

    def written(self, written: Written) -> None:
        """Where an episode has ended, all its transitions learn where."""
        buffer = self.buffer
        ages = buffer.ages
        self._ends[written.completed] = np.where(ages == 0, buffer.heads - 1, buffer.heads)
        for env in np.flatnonzero(ages == 0).tolist():
            last = buffer.heads[env] - 1
            length = int(buffer.take("age", torch.tensor(self._flat(last, env), device=buffer.device)))
            first = max(last - length, buffer.heads[env] - buffer.slots + 1)
            self._ends[self._flat(np.arange(first, last), env)] = last

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch with replacement; its first part has new goals."""
        index = self._draw(batch_size, generator)
        batch = self.gather(index)
        count = round(self.fraction * batch_size)
        return self.relabel(batch, index[:count], self._choose(index[:count], generator))

    def relabel(self, batch: TransitionBatch, index: Tensor, goals_at: Tensor) -> TransitionBatch:
        """Give the first transitions of a batch the goals achieved at other flat indices, in place."""
        buffer, count = self.buffer, len(index)
        assert isinstance(batch.obs, dict)
        assert isinstance(batch.next_obs, dict)
        goals = buffer.take("obs", goals_at)[ACHIEVED_GOAL]
        rewards, steps, terminated = self._hindsight(index, goals)
        if self.n_step > 1:  # the new goal may end the return elsewhere
            for key, rows in buffer.take("obs", buffer.next_index(index, steps)).items():
                batch.next_obs[key][:count] = rows
        batch.obs[DESIRED_GOAL][:count] = goals
        batch.next_obs[DESIRED_GOAL][:count] = goals
        batch.rewards[:count] = rewards
        batch.discount[:count] = self._powers[steps] * ~terminated
        return batch

    def _choose(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Flat indices of the states whose achieved goals become the new ones."""
        buffer = self.buffer
        flat = index.cpu().numpy()
        here, env, last = self._place(flat)
        if self.strategy == "final":
            chosen = last
        else:
            first = here + 1
            if self.strategy == "episode":
                age = buffer.take("age", index).cpu().numpy()
                first = np.maximum(here - age + 1, buffer.heads[env] - buffer.slots + 1)
            drawn = torch.rand(len(flat), generator=generator, device=generator.device, dtype=torch.float64)
            chosen = first + (drawn.cpu().numpy() * (last - first + 1)).astype(np.int64)
        return torch.from_numpy(self._flat(chosen, env)).to(buffer.device)

    def _hindsight(self, index: Tensor, goals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Discounted rewards for other goals, over how many steps, and whether a terminal ended them."""
        buffer, n = self.buffer, self.n_step
        here, _, last = self._place(index.cpu().numpy())
        left = torch.from_numpy(last - here).to(buffer.device)
        ahead = torch.arange(n, device=buffer.device)
        path = buffer.next_index(index[:, None], ahead)
        achieved = buffer.take("obs", buffer.next_index(path).flatten())[ACHIEVED_GOAL]
        judged = (achieved.numpy(force=True), goals.repeat_interleave(n, 0).numpy(force=True))
        rewards = self._tensor(self.task.reward(*judged), torch.float32).view(-1, n)
        if self.task.terminated is None:
            terminated = buffer.take("terminated", path)
        else:
            terminated = self._tensor(self.task.terminated(*judged), torch.bool).view(-1, n)
        goes_on = (ahead[1:] < left[:, None]) & ~terminated[:, :-1]
        taken = torch.cat([torch.ones_like(terminated[:, :1]), goes_on], 1).cumprod(1)
        steps = taken.sum(1)
        ends = terminated.gather(1, steps[:, None] - 1)[:, 0]
        return (rewards * taken * self._powers[:-1]).sum(1), steps, ends

    def _place(self, flat: Array) -> tuple[Array, Array, Array]:
        """Positions of transitions, their envs, and the positions of the last observations after them."""
        buffer = self.buffer
        slots, env = np.divmod(flat, buffer.num_envs)
        heads = buffer.heads[env]
        here = heads - (heads - slots) % buffer.slots
        under_way = here >= heads - buffer.ages[env]
        return here, env, np.where(under_way, heads, self._ends[flat])

    def _flat(self, position: Any, env: Any) -> Any:
        return position % self.buffer.slots * self.buffer.num_envs + env

    def _tensor(self, values: Array, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values).to(self.buffer.device, dtype)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Find the ends of all episodes in the buffer, which must have been restored before."""
        super().load_state_dict(state)
        buffer = self.buffer
        age = buffer.age.numpy(force=True)
        for env, head in enumerate(buffer.heads.tolist()):
            positions = np.arange(max(0, head - buffer.slots + 1), head + 1)
            begins = age[positions % buffer.slots, env] == 0
            # An episode ends before the next one begins; the last one so far at the head.
            ends = np.where(np.append(begins[1:], True), positions, head)
            self._ends[self._flat(positions, env)] = np.minimum.accumulate(ends[::-1])[::-1]
