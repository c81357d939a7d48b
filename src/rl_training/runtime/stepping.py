"""How a rollout steps its envs, and what it keeps of the episodes that end meanwhile.

Envs on the host end a few episodes at a time, known by their indices. Envs that are tensors tell nobody which
of them ended: everything is done for all rows, at shapes that depend on no value. The loop is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.batched.vector import BatchedVectorEnv
from rl_training.envs.spaces import take
from rl_training.envs.vector import VectorEnv
from rl_training.policies.obs import to_tensor
from rl_training.runtime.statistics import EpisodeStatistics
from rl_training.types import Array, Obs, PolicyState, StepResult, TensorObs, TensorStep


class Critic(Protocol):
    """What is needed of a policy: to value last observations and to begin its state anew."""

    def values(self, obs: TensorObs, state: PolicyState | None = None) -> Tensor: ...
    def reset_state(self, state: PolicyState | None, ended: Tensor) -> PolicyState | None: ...


class Ending(NamedTuple):
    """Episodes that ended at one step, however they did, and what their last observations were."""

    step: int
    envs: Array
    final_obs: Obs | TensorObs


class Stepping(Protocol):
    """The side of a rollout that faces the envs."""

    tensors: bool
    """Whether steps are tensors on the policy's device, or arrays on the host."""
    endings: list[Ending] | None
    """The last rollout's ends of episodes, if somebody has asked for them by putting a list here."""

    def reset(self) -> Obs | TensorObs:
        """Begin an episode in every env."""

    def observations(self) -> Obs | TensorObs:
        """What every env shows now."""

    def begin(self, num_steps: int) -> None:
        """Forget the last rollout."""

    def step(self, actions: Tensor) -> Any:
        """Take one action in every env, given where steps are: a `StepResult`, or a `TensorStep`."""

    def ended(self, step: int, result: Any, state: PolicyState | None) -> PolicyState | None:
        """Take note of the episodes that a step ended; the policy's state, begun anew for them."""

    def value_cuts(self, buffer: RolloutBuffer) -> None:
        """Put the values of the true last observations of truncated episodes into a full buffer."""

    def report(self, buffer: RolloutBuffer) -> None:
        """Bring the statistics up to date with a full buffer."""


def make_stepping(
    envs: VectorEnv, policy: Critic, device: torch.device, statistics: EpisodeStatistics, *, tensors: bool
) -> Stepping:
    """Tensors where they are wanted and the envs have them on `device`; otherwise arrays."""
    if tensors and isinstance(envs, BatchedVectorEnv) and envs.device.type == device.type:
        return TensorStepping(envs, policy, statistics)
    return HostStepping(envs, policy, device, statistics)


class _Cut(NamedTuple):
    """Episodes that a time limit cut off at one step, and the policy's state then."""

    step: int
    envs: Array
    final_obs: Obs
    state: PolicyState | None


class HostStepping:
    """Envs that speak NumPy; the rows of ended episodes are kept as they come."""

    tensors = False

    def __init__(
        self, envs: VectorEnv, policy: Critic, device: torch.device, statistics: EpisodeStatistics
    ) -> None:
        self.envs, self.policy, self.device, self.statistics = envs, policy, device, statistics
        self.endings: list[Ending] | None = None
        self._cuts: list[_Cut] = []

    def reset(self) -> Obs | TensorObs:
        return self.envs.reset()

    def observations(self) -> Obs | TensorObs:
        return self.envs.observations()

    def begin(self, num_steps: int) -> None:
        self._cuts.clear()
        if self.endings is not None:
            self.endings.clear()

    def step(self, actions: Tensor) -> StepResult:
        return self.envs.step(actions.numpy())

    def ended(self, step: int, result: StepResult, state: PolicyState | None) -> PolicyState | None:
        ended, final_obs = result.ended, result.final_obs
        if not len(ended):
            return state
        if final_obs is not None:
            if self.endings is not None:
                self.endings.append(Ending(step, ended, final_obs))
            cut = result.truncated[ended]
            if cut.any():
                self._cuts.append(_Cut(step, ended[cut], take(final_obs, cut), state))
        self.statistics.add(result.episodes)
        if state is None:
            return None
        return self.policy.reset_state(state, ended_mask(ended, self.envs.num_envs, self.device))

    def value_cuts(self, buffer: RolloutBuffer) -> None:
        if not self._cuts:
            return
        steps = np.concatenate([np.full(len(cut.envs), cut.step) for cut in self._cuts])
        envs = np.concatenate([cut.envs for cut in self._cuts])
        final = to_tensor(_concatenate([cut.final_obs for cut in self._cuts]), self.device)
        buffer.set_final_values(steps, envs, self.policy.values(final, _state_rows(self._cuts)))

    def report(self, buffer: RolloutBuffer) -> None:
        """Nothing is left to do: the host saw every end."""


class TensorStepping:
    """Envs that are tensors on the policy's device. Nothing is read before `report`, once a rollout.

    A time limit cannot cut an env twice within as many steps. So a rollout is divided into windows of that
    length, and in each the last observation of one cut-off episode an env is kept and valued.
    """

    tensors = True

    def __init__(self, envs: BatchedVectorEnv, policy: Critic, statistics: EpisodeStatistics) -> None:
        self.envs, self.policy, self.statistics = envs, policy, statistics
        self.endings: list[Ending] | None = None
        self._cuts: list[tuple[TensorObs, PolicyState | None]] = []
        self._window = 1
        self._returns = self._lengths = torch.zeros(0)

    def reset(self) -> Obs | TensorObs:
        return self.envs.reset_tensors()

    def observations(self) -> Obs | TensorObs:
        return self.envs.observe()

    def begin(self, num_steps: int) -> None:
        self._cuts.clear()
        if self.endings is not None:
            self.endings.clear()
        if len(self._returns) != num_steps:
            shape, device = (num_steps, self.envs.num_envs), self.envs.device
            self._returns = torch.zeros(shape, device=device)
            self._lengths = torch.zeros(shape, dtype=torch.int32, device=device)
        self._window = min(self.envs.time_limit or num_steps, num_steps)

    def step(self, actions: Tensor) -> TensorStep:
        return self.envs.step_tensors(actions)

    def ended(self, step: int, result: TensorStep, state: PolicyState | None) -> PolicyState | None:
        self._returns[step] = result.returns
        self._lengths[step] = result.lengths
        if self.envs.time_limit is not None:
            self._keep_cut(step, result, state)
        if self.endings is not None:  # whoever wants to see every end has them read, one step at a time
            rows = result.ended.nonzero().squeeze(1)
            if len(rows):
                self.endings.append(Ending(step, rows.numpy(force=True), take(result.final_obs, rows)))
        return None if state is None else self.policy.reset_state(state, result.ended)

    def _keep_cut(self, step: int, result: TensorStep, state: PolicyState | None) -> None:
        """A window begins with whatever its first step shows: what was not cut off is never looked at."""
        if step % self._window == 0:
            self._cuts.append((result.final_obs, state))
            return
        obs, before = self._cuts[-1]
        obs = _where(result.truncated, result.final_obs, obs)
        if state is not None and before is not None:
            before = _where(result.truncated, state, before)
        self._cuts[-1] = (obs, before)

    def value_cuts(self, buffer: RolloutBuffer) -> None:
        if not self._cuts:
            return
        values = torch.stack([self.policy.values(obs, state) for obs, state in self._cuts])
        spread = values.repeat_interleave(self._window, dim=0)[: buffer.num_steps]
        buffer.final_values.copy_(torch.where(buffer.truncated != 0, spread, torch.nan))

    def report(self, buffer: RolloutBuffer) -> None:
        ended = buffer.dones.flatten().nonzero().squeeze(1)
        last = ended[-self.statistics.window :]
        returns, lengths = (x.flatten()[last].tolist() for x in (self._returns, self._lengths))
        self.statistics.extend(returns, lengths, count=len(ended))


def ended_mask(ended: Array, num_envs: int, device: torch.device) -> Tensor:
    """A flag an env, from the indices of those that ended."""
    mask = torch.zeros(num_envs, dtype=torch.bool, device=device)
    mask[torch.from_numpy(ended).to(device)] = True
    return mask


def _concatenate(parts: list[Obs]) -> Obs:
    first = parts[0]
    if isinstance(first, dict):
        return {key: np.concatenate([p[key] for p in parts if isinstance(p, dict)]) for key in first}
    return np.concatenate([p for p in parts if not isinstance(p, dict)])


def _state_rows(cuts: list[_Cut]) -> PolicyState | None:
    """The policy state each cut-off env was in, in the order of the batch of final observations."""
    rows = [
        {key: value[torch.from_numpy(cut.envs).to(value.device)] for key, value in cut.state.items()}
        for cut in cuts
        if cut.state is not None
    ]
    return {key: torch.cat([row[key] for row in rows]) for key in rows[0]} if rows else None


def _where(mask: Tensor, new: Any, old: Any) -> Any:
    """Rows of `new` where a flag is set, else of `old`; in tensors or dicts of them."""
    if isinstance(new, dict):
        return {key: _where(mask, new[key], old[key]) for key in new}
    return torch.where(mask.reshape(-1, *[1] * (new.dim() - 1)), new, old)
