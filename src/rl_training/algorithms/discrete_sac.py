"""SAC for discrete actions (Christodoulou 2019): expectations over all actions instead of samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic import Features, NextAction
from rl_training.algorithms.base import Context
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.policies.actors import Actor, CategoricalActor
from rl_training.policies.build_continuous import build_categorical_actor, build_critics, num_choices
from rl_training.policies.critics import CriticEnsemble
from rl_training.registry import register_algorithm
from rl_training.schema import Fraction, config
from rl_training.types import TransitionBatch

__all__ = ["DiscreteSAC", "DiscreteSACConfig"]


@config
class DiscreteSACConfig(SACConfig):
    """Hyperparameters of discrete SAC."""

    target_entropy_ratio: Fraction = 0.5
    """The entropy to hold if `target_entropy` is null, as a share of the largest with the allowed actions."""


@register_algorithm(
    "discrete_sac",
    tier="experimental",
    actions=("Discrete",),
    summary="SAC for discrete actions",
    exploration_noise="none",
)
class DiscreteSAC(SAC):
    """A categorical policy; critics value all actions at once."""

    Hyperparams = DiscreteSACConfig
    hyperparams: DiscreteSACConfig
    policy: CategoricalActor  # type: ignore[assignment]

    def build_networks(self, context: Context) -> tuple[Actor, CriticEnsemble]:
        """A categorical actor and critics with one output an action."""
        hp = self.hyperparams
        actor = build_categorical_actor(context.spec, context.network, normalize_obs=context.normalize_obs)
        critics = build_critics(
            context.spec,
            context.network,
            actor.encoder,
            num_critics=hp.num_critics,
            out_dim=num_choices(context.spec),
            norm="layer" if hp.layer_norm else "none",
        )
        return actor, critics

    def default_entropy(self) -> float:
        """A share of the entropy of a uniform choice."""
        return self.hyperparams.target_entropy_ratio * math.log(num_choices(self.context.spec))

    def next_action(self, batch: TransitionBatch, features: Tensor) -> NextAction:
        """No action in particular: the probabilities of all."""
        dist = self.policy.distribution(features, self.policy.mask(batch.next_obs))
        return NextAction(None, dist.logprobs)

    def evaluate_critics(
        self, batch: TransitionBatch, features: Features, following: NextAction
    ) -> tuple[Tensor, Tensor]:
        """Values of the actions taken, and target values of all actions that may follow."""
        with torch.no_grad():
            next_values = self.target_critics(features.next_target)
        values = self.critics(features.now)
        taken = batch.actions.long().reshape(1, -1, 1).expand(len(values), -1, 1)
        return values.gather(2, taken), next_values

    def reduce(self, values: Tensor, following: NextAction) -> Tensor:
        """The soft value of the next state: the expectation of min Q - α log π."""
        logprobs = following.logprobs
        assert logprobs is not None
        soft_values: Tensor = values.amin(0) - self.temperature() * logprobs
        return (logprobs.exp() * soft_values).sum(1, keepdim=True)

    def actor_loss(self, batch: TransitionBatch, features: Tensor) -> dict[str, Tensor]:
        """The expectation of α log π - min Q, and the temperature's own loss."""
        mask = self.policy.mask(batch.obs)
        dist = self.policy.distribution(features, mask)
        with torch.no_grad():
            values = self.critics(features).amin(0)
        temperature = self.temperature()
        actor_loss = (dist.logprobs.exp() * (temperature * dist.logprobs - values)).sum(1).mean()
        entropy = dist.entropy().detach()
        loss = actor_loss
        if self.hyperparams.learn_temperature:
            loss = actor_loss + self.temperature.loss((entropy - self.wanted_entropy(mask)).mean())
        return {"loss": loss, "actor_loss": actor_loss, "entropy": entropy.mean(), "temperature": temperature}

    def wanted_entropy(self, mask: Tensor | None) -> Tensor | float:
        """The entropy to hold, for all samples or each: where few actions are allowed, less is possible."""
        hp = self.hyperparams
        if hp.target_entropy is not None or mask is None:
            return self.target_entropy
        return hp.target_entropy_ratio * (mask != 0).sum(1).clamp_min(1).float().log()
