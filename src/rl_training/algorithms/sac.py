"""Soft Actor-Critic (Haarnoja et al. 2018, with the learned temperature of the second paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.algorithms.actor_critic import (
    ActorCriticConfig,
    NextAction,
    OffPolicyActorCritic,
    beside,
)
from rl_training.algorithms.base import Context
from rl_training.policies.actors import Actor, GaussianActor
from rl_training.policies.build_continuous import action_size, build_critics, build_gaussian_actor
from rl_training.policies.critics import CriticEnsemble
from rl_training.registry import register_algorithm
from rl_training.schema import Bool, Float, PositiveFloat, config
from rl_training.types import TransitionBatch

__all__ = ["SAC", "SACConfig", "Temperature"]


@config
class SACConfig(ActorCriticConfig):
    """Hyperparameters of SAC."""

    learn_temperature: Bool = True
    """Adjust the temperature so that the policy's entropy stays near `target_entropy`."""
    temperature: PositiveFloat = 1.0
    """Weight of the entropy: where learning starts, or for good."""
    target_entropy: Float | None = None
    """The entropy to hold; null: minus the number of action components."""


class Temperature(nn.Module):
    """The weight of the entropy, kept as its logarithm so that it stays positive."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """Its value, as a constant for the losses of policy and critics."""
        return self.log.detach().exp()

    def loss(self, entropy_gap: Tensor) -> Tensor:
        """Raises it where the entropy lies below its target (a negative gap) and lowers it where above."""
        return self.log * entropy_gap.detach()


@register_algorithm("sac", tier="core", actions=("Box",), summary="Soft Actor-Critic")
class SAC(OffPolicyActorCritic):
    """A stochastic policy that is paid for its entropy."""

    Hyperparams = SACConfig
    hyperparams: SACConfig
    policy: GaussianActor

    def build_networks(self, context: Context) -> tuple[Actor, CriticEnsemble]:
        """A squashed Gaussian and critics of state and action."""
        hp = self.hyperparams
        actor = build_gaussian_actor(context.spec, context.network, normalize_obs=context.normalize_obs)
        critics = build_critics(
            context.spec,
            context.network,
            actor.encoder,
            num_critics=hp.num_critics,
            out_dim=self.critic_outputs(),
            norm="layer" if hp.layer_norm else "none",
        )
        return actor, critics

    def critic_outputs(self) -> int:
        """Numbers that each critic says about a state and an action."""
        return 1

    def extra_parameters(self) -> Sequence[Tensor]:
        """The temperature, if it is learned."""
        hp = self.hyperparams
        self.temperature = Temperature(hp.temperature).to(self.context.device)
        self.networks["temperature"] = self.temperature
        self.target_entropy = self.default_entropy() if hp.target_entropy is None else hp.target_entropy
        return list(self.temperature.parameters()) if hp.learn_temperature else ()

    def default_entropy(self) -> float:
        """Minus the number of action components."""
        return -float(action_size(self.context.spec))

    def next_action(self, batch: TransitionBatch, features: Tensor) -> NextAction:
        """A fresh sample of the current policy."""
        return NextAction(*self.policy.distribution(features).sample_with_log_prob(self.generator))

    def reduce(self, values: Tensor, following: NextAction) -> Tensor:
        """The lowest critic's value, with the entropy of what follows."""
        return self.soft(values.amin(0), following)

    def soft(self, values: Tensor, following: NextAction) -> Tensor:
        """Values `[B, K]` of a state-action pair plus -α log π of the action."""
        assert following.logprobs is not None
        bonus: Tensor = self.temperature() * following.logprobs
        return values - bonus.unsqueeze(-1)

    def actor_loss(self, batch: TransitionBatch, features: Tensor) -> dict[str, Tensor]:
        """E[α log π(a|s) - Q(s, a)] over fresh actions, and the temperature's own loss."""
        actions, logprobs = self.sample(features)
        values = self.appraise(self.critics(beside(features, actions)))
        temperature = self.temperature()
        actor_loss = (temperature * logprobs - values).mean()
        entropy = -logprobs.detach().mean()
        loss = actor_loss
        if self.hyperparams.learn_temperature:
            loss = actor_loss + self.temperature.loss(entropy - self.target_entropy)
        return {"loss": loss, "actor_loss": actor_loss, "entropy": entropy, "temperature": temperature}

    def sample(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Actions that carry gradients, and their log-densities."""
        return self.policy.distribution(features).sample_with_log_prob(self.generator)

    def appraise(self, values: Tensor) -> Tensor:
        """What the actor climbs, `[B]`, of the values of all critics `[N, B, K]`."""
        return values.squeeze(-1).amin(0)
