"""An actor-critic that remembers: encoder → memory → core → heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.distributions import Distribution
from rl_training.policies.memory import Memory, segment

if TYPE_CHECKING:
    from rl_training.types import PolicyState, TensorObs


class RecurrentActorCritic(ActorCritic):
    """Without a `critic_memory` the critic reads the actor's.

    A state is a dict of rows, one an env. None stands for an episode's beginning: `act(obs)`, then
    `act(obs, state)` with what the last call returned, and `reset_state` where episodes of a batch ended.
    """

    def __init__(self, *, memory: Memory, critic_memory: Memory | None = None, **parts: Any) -> None:
        super().__init__(**parts)
        self.memory = memory
        self.critic_memory = critic_memory

    def evaluate_actions(
        self,
        obs: TensorObs,
        actions: Tensor,
        state: PolicyState | None = None,
        episode_starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of whole sequences `[time, sequences, …]` that begin in `state`; results are shaped the same.

        `episode_starts`, on the host, says before which steps memories are dropped.
        """
        shape = actions.shape[:2]
        features, critic_features, mask = self._features(_flat(obs))
        state = self.initial_state(shape[1]) if state is None else state
        segments = None if episode_starts is None else segment(episode_starts, features.device)

        def remember(memory: Memory, x: Tensor) -> Tensor:
            return memory.unroll(x.view(*shape, -1), state, segments).flatten(0, 1)

        latent = remember(self.memory, features)
        own = self.critic_memory
        critic_latent = latent if own is None else remember(own, critic_features)
        dist, values = self._heads(latent, critic_latent, mask)
        flat = actions.flatten(0, 1)
        results = (dist.log_prob(flat.flatten(1) if self._multi_axis else flat), dist.entropy(), values)
        logprobs, entropy, values = (x.view(shape) for x in results)
        return logprobs, entropy, values

    def values(self, obs: TensorObs, state: PolicyState | None = None) -> Tensor:
        """State values alone, of observations that follow `state`."""
        inputs, _ = self.inputs(obs)
        encoder = self.encoder if self.critic_encoder is None else self.critic_encoder
        features = encoder(inputs)
        memory = self.memory if self.critic_memory is None else self.critic_memory
        latent, _ = memory(features, self.initial_state(len(features)) if state is None else state)
        core = self.core if self.critic_core is None else self.critic_core
        values: Tensor = self.value_head(core(latent))
        return values

    def initial_state(self, num_envs: int) -> PolicyState:
        """Nothing remembered (and noise still to be drawn, where the policy has it)."""
        own = {} if self.critic_memory is None else self.critic_memory.initial_state(num_envs)
        return {**(super().initial_state(num_envs) or {}), **self.memory.initial_state(num_envs), **own}

    def reset_state(self, state: PolicyState | None, ended: Tensor) -> PolicyState | None:
        """The state with the rows of ended episodes (a bool row) begun anew."""
        if state is None:
            return None
        keys = (*self.memory.keys, *(() if self.critic_memory is None else self.critic_memory.keys))
        anew = {key: state[key].masked_fill(ended[:, None, None], 0.0) for key in keys}
        return {**(super().reset_state(state, ended) or {}), **anew}

    def _step(
        self, obs: TensorObs, state: PolicyState | None
    ) -> tuple[Distribution, Tensor, PolicyState | None]:
        features, critic_features, mask = self._features(obs)
        state = self.initial_state(len(features)) if state is None else state
        latent, after = self.memory(features, state)
        critic_latent = latent
        if self.critic_memory is not None:
            critic_latent, own = self.critic_memory(critic_features, state)
            after = {**after, **own}
        dist, values = self._heads(latent, critic_latent, mask)
        return dist, values, {**state, **after}

    def _choose(self, obs: TensorObs, state: PolicyState) -> tuple[Distribution, PolicyState]:
        inputs, mask = self.inputs(obs)
        latent, after = self.memory(self.encoder(inputs), state)
        dist: Distribution = self.policy_head(self.core(latent), mask)
        return dist, after


def _flat(obs: TensorObs) -> TensorObs:
    """Sequences `[time, sequences, …]` as one batch."""
    return {k: v.flatten(0, 1) for k, v in obs.items()} if isinstance(obs, dict) else torch.flatten(obs, 0, 1)
