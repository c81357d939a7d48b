"""The policy of on-policy algorithms: encoder → core → heads, for actor and critic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from torch import Generator, Tensor, nn

from rl_training.policies.base import SpacePolicy
from rl_training.policies.cores import MLP
from rl_training.policies.distributions import Distribution, StateDependentGaussian
from rl_training.policies.heads import PolicyHead, StateDependentHead, ValueHead
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.types import Decision, PolicyOutput

if TYPE_CHECKING:
    from rl_training.types import PolicyState, TensorObs


class ActorCritic(SpacePolicy):
    """Actions, their log-probabilities and state values. Built by `policies.build`, which reads the spaces.

    Without a `critic_encoder` or a `critic_core` the critic shares the actor's.
    """

    def __init__(
        self,
        *,
        encoder: nn.Module,
        core: MLP,
        policy_head: PolicyHead,
        value_head: ValueHead,
        action_map: nn.Module,
        action_shape: tuple[int, ...],
        critic_encoder: nn.Module | None = None,
        critic_core: MLP | None = None,
        normalizer: ObsNormalizer | None = None,
        masked: bool = False,
        leaf: str | None = None,
    ) -> None:
        super().__init__(action_map, normalizer, masked=masked, leaf=leaf)
        self.encoder = encoder
        self.core = core
        self.policy_head = policy_head
        self.critic_encoder = critic_encoder
        self.critic_core = critic_core
        self.value_head = value_head
        self.action_shape = action_shape
        self._multi_axis = len(action_shape) > 1  # distributions see one axis of components

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: Generator | None = None,
    ) -> PolicyOutput:
        """Choose an action for each observation; `deterministic` plays the mode and keeps `state`."""
        dist, values, state = self._step(obs, state)
        if deterministic:
            actions = dist.mode()
        elif isinstance(self.policy_head, StateDependentHead):
            assert isinstance(dist, StateDependentGaussian)
            actions, noise = self.policy_head.explore(dist, state, generator)
            state = {**(state or {}), **noise}
        else:
            actions = dist.sample(generator)
        logprobs = dist.log_prob(actions)
        if self._multi_axis:
            actions = actions.reshape(-1, *self.action_shape)
        return PolicyOutput(actions, logprobs, values, state)

    def evaluate_actions(
        self,
        obs: TensorObs,
        actions: Tensor,
        state: PolicyState | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of `actions`, entropies and values, with gradients."""
        dist, values = self._heads(*self._features(obs))
        return dist.log_prob(self.flat_actions(actions)), dist.entropy(), values

    def distribution(self, obs: TensorObs) -> Distribution:
        """The distribution over actions alone, with gradients; it speaks of `flat_actions`."""
        inputs, mask = self.inputs(obs)
        return self.policy_head.forward(self.core.forward(self.encoder(inputs)), mask)

    def decide(self, obs: TensorObs, state: PolicyState | None = None) -> Decision:
        """The likeliest actions, by the actor alone: what an export computes."""
        dist, after = self._choose(obs, state or {})
        actions = dist.mode()
        if self._multi_axis:
            actions = actions.reshape(-1, *self.action_shape)
        return Decision(actions, dist.parameters(), after)

    def flat_actions(self, actions: Tensor) -> Tensor:
        """Actions with their components on one axis, as distributions see them."""
        return actions.flatten(1) if self._multi_axis else actions

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the distribution over actions depends on; all other parameters are the critic's own."""
        return chain(self.encoder.parameters(), self.core.parameters(), self.policy_head.parameters())

    def values(self, obs: TensorObs, state: PolicyState | None = None) -> Tensor:
        """State values alone."""
        inputs, _ = self.inputs(obs)
        encoder = self.encoder if self.critic_encoder is None else self.critic_encoder
        core = self.core if self.critic_core is None else self.critic_core
        return self.value_head.forward(core.forward(encoder(inputs)))

    def initial_state(self, num_envs: int) -> PolicyState | None:
        """The state before the first step, or None for a policy that carries none."""
        head = self.policy_head
        return head.initial_state(num_envs) if isinstance(head, StateDependentHead) else None

    def reset_state(self, state: PolicyState | None, ended: Tensor) -> PolicyState | None:
        """The state with the rows of ended episodes (a bool row) begun anew."""
        if state is None or not isinstance(self.policy_head, StateDependentHead):
            return state
        return self.policy_head.reset_state(state, ended)

    def _step(
        self, obs: TensorObs, state: PolicyState | None
    ) -> tuple[Distribution, Tensor, PolicyState | None]:
        """What to choose from, values, and the state after this step, which only a memory changes."""
        return *self._heads(*self._features(obs)), state

    def _choose(self, obs: TensorObs, state: PolicyState) -> tuple[Distribution, PolicyState]:
        """What to choose from, without the critic, and what the actor remembers after it."""
        return self.distribution(obs), {}

    def _features(self, obs: TensorObs) -> tuple[Tensor, Tensor, Tensor | None]:
        """What actor and critic see, and the action mask."""
        inputs, mask = self.inputs(obs)
        features = self.encoder(inputs)
        return features, features if self.critic_encoder is None else self.critic_encoder(inputs), mask

    def _heads(
        self, features: Tensor, critic_features: Tensor, mask: Tensor | None
    ) -> tuple[Distribution, Tensor]:
        # Called by name: to call a module is to ask it for hooks first, which these parts do not have.
        latent = self.core.forward(features)
        critic_latent = latent if self.critic_core is None else self.critic_core.forward(critic_features)
        return self.policy_head.forward(latent, mask), self.value_head.forward(critic_latent)
