"""Twin Delayed DDPG (Fujimoto et al. 2018) and what it grew from, DDPG (Lillicrap et al. 2016)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic import (
    ActorCriticConfig,
    NextAction,
    OffPolicyActorCritic,
    beside,
)
from rl_training.algorithms.base import Context
from rl_training.policies.actors import Actor, DeterministicActor
from rl_training.policies.build_continuous import build_critics, build_deterministic_actor
from rl_training.policies.critics import CriticEnsemble
from rl_training.registry import register_algorithm
from rl_training.schema import NonNegativeFloat, PositiveInt, config
from rl_training.types import TransitionBatch

__all__ = ["DDPG", "TD3", "DDPGConfig", "TD3Config"]


@config
class TD3Config(ActorCriticConfig):
    """Hyperparameters of TD3."""

    policy_delay: PositiveInt = 2
    """Updates of the critics for each update of the actor and of the target networks."""
    target_noise: NonNegativeFloat = 0.2
    """Deviation of the noise that smooths the target policy, in units of an action range of [-1, 1]."""
    target_noise_clip: NonNegativeFloat = 0.5
    """Where that noise is cut off."""
    exploration_noise: Literal["none", "gaussian", "ou"] = "gaussian"
    """Noise added to actions while collecting: none, new at every step (gaussian), or drifting (ou)."""


@config
class DDPGConfig(TD3Config):
    """Hyperparameters of DDPG: what TD3 added is off."""

    num_critics: PositiveInt = 1
    """Critics in the ensemble: DDPG has one."""
    policy_delay: PositiveInt = 1
    """Updates of the critics for each update of the actor and of the target networks."""
    target_noise: NonNegativeFloat = 0.0
    """Deviation of the noise that smooths the target policy: DDPG has none."""


@register_algorithm("td3", tier="core", actions=("Box",), summary="Twin Delayed DDPG")
class TD3(OffPolicyActorCritic):
    """A deterministic policy; the lower of two critics, smoothed targets, a delayed actor."""

    Hyperparams = TD3Config
    hyperparams: TD3Config
    policy: DeterministicActor
    targets_follow_actor = True

    def build_networks(self, context: Context) -> tuple[Actor, CriticEnsemble]:
        """A deterministic actor and critics of state and action."""
        hp = self.hyperparams
        actor = build_deterministic_actor(context.spec, context.network, normalize_obs=context.normalize_obs)
        critics = build_critics(
            context.spec,
            context.network,
            actor.encoder,
            num_critics=hp.num_critics,
            norm="layer" if hp.layer_norm else "none",
        )
        return actor, critics

    def build(self, context: Context) -> None:
        """The shared parts and a target actor."""
        super().build(context)
        # Behind the encoder: the target actor reads the features that the actor reads.
        self.target_core = self.add_target("target_core", self.policy.core)
        self.target_head = self.add_target("target_head", self.policy.head)

    def next_action(self, batch: TransitionBatch, features: Tensor) -> NextAction:
        """The target policy's action with clipped noise."""
        hp = self.hyperparams
        actions = torch.tanh(self.target_head(self.target_core(features)).float())
        if hp.target_noise > 0:
            noise = torch.empty_like(actions).normal_(0.0, hp.target_noise, generator=self.generator)
            noise = noise.clamp_(-hp.target_noise_clip, hp.target_noise_clip)
            actions = (actions + noise).clamp_(-1.0, 1.0)
        return NextAction(actions)

    def actor_loss(self, batch: TransitionBatch, features: Tensor) -> dict[str, Tensor]:
        """Minus the first critic's value of the policy's own action."""
        values = self.critics.first(beside(features, self.policy.action(features)))
        loss = -values.mean()
        return {"loss": loss, "actor_loss": loss}


@register_algorithm(
    "ddpg",
    tier="core",
    actions=("Box",),
    summary="Deep Deterministic Policy Gradient",
    num_critics=1,
    policy_delay=1,
    target_noise=0.0,
)
class DDPG(TD3):
    """TD3 with one critic, no smoothing and no delay."""

    Hyperparams = DDPGConfig
    hyperparams: DDPGConfig
