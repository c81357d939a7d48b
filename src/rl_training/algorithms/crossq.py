"""CrossQ (Bhatt et al. 2024): SAC without target networks, on batch-renormalised networks."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic import Features, NextAction, beside
from rl_training.algorithms.base import Context
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.policies.actors import Actor
from rl_training.policies.build_continuous import build_critics, build_gaussian_actor
from rl_training.policies.critics import CriticEnsemble
from rl_training.registry import register_algorithm
from rl_training.schema import Fraction, PositiveFloat, PositiveInt, config
from rl_training.types import TransitionBatch

__all__ = ["CrossQ", "CrossQConfig"]


@config
class CrossQConfig(SACConfig):
    """Hyperparameters of CrossQ."""

    learning_rate: PositiveFloat = 1e-3
    """Adam's step size."""
    adam_beta1: Fraction = 0.5
    """Adam's β₁: how long the mean of gradients remembers."""
    policy_delay: PositiveInt = 3
    """Updates of the critics for each update of the actor."""
    tau: Fraction = 1.0
    """Always 1: the critics are their own targets."""


@register_algorithm(
    "crossq",
    tier="experimental",
    actions=("Box",),
    summary="SAC with batch renormalisation instead of target networks",
    tau=1.0,
    layer_norm=False,
)
class CrossQ(SAC):
    """Both ends of a transition pass the critics in one batch, which therefore normalises both alike."""

    Hyperparams = CrossQConfig
    hyperparams: CrossQConfig
    has_targets = False

    def build_networks(self, context: Context) -> tuple[Actor, CriticEnsemble]:
        """A squashed Gaussian and critics, batch-renormalised throughout."""
        actor = build_gaussian_actor(
            context.spec, context.network, normalize_obs=context.normalize_obs, batch_renorm=True
        )
        critics = build_critics(
            context.spec,
            context.network,
            actor.encoder,
            num_critics=self.hyperparams.num_critics,
            norm="batch_renorm",
        )
        return actor, critics

    def evaluate_critics(
        self, batch: TransitionBatch, features: Features, following: NextAction
    ) -> tuple[Tensor, Tensor]:
        """One joint pass; no gradient goes through the values of the next states."""
        now = beside(features.now, batch.actions)
        joint = torch.cat([now, beside(features.next, following.actions)])
        values, next_values = self.critics(joint, training=True).chunk(2, dim=1)
        return values, next_values.detach()

    def sample(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Actions by the batch's own statistics, as everything that is trained."""
        return self.policy.distribution(features, training=True).sample_with_log_prob(self.generator)
