"""DrQ-v2 (Yarats et al. 2021): DDPG with two critics from randomly shifted pixels."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic import (
    ActorCriticConfig,
    Features,
    NextAction,
    OffPolicyActorCritic,
    beside,
)
from rl_training.algorithms.base import Context
from rl_training.policies.actors import Actor, DeterministicActor
from rl_training.policies.build_pixels import build_pixel_actor, build_pixel_critics, build_random_shift
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.exploration import GaussianNoise
from rl_training.registry import register_algorithm
from rl_training.schema import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    config,
)
from rl_training.types import TransitionBatch

__all__ = ["DrQv2", "DrQv2Config"]


@config
class DrQv2Config(ActorCriticConfig):
    """Hyperparameters of DrQ-v2."""

    learning_rate: PositiveFloat = 1e-4
    """Adam's step size."""
    tau: Fraction = 0.01
    """How far target critics move towards the learned ones at each update."""
    n_step: PositiveInt = 3
    """Steps a return looks ahead before it is bootstrapped."""
    learning_starts: NonNegativeInt = 2_000
    """Steps taken at random before the first update."""
    train_every: PositiveInt = 2
    """Steps (over all envs) between two rounds of updates."""
    shift_pad: NonNegativeInt = 4
    """Pictures are moved by up to so many pixels, in both directions, each time they are learned from."""
    trunk_dim: PositiveInt = 50
    """Numbers to which the trunks of actor and critics reduce what the encoder sees."""
    noise_clip: NonNegativeFloat = 0.3
    """Where the noise of actions that are learned from is cut off; that of actions taken is not."""
    exploration_noise: Literal["gaussian"] = "gaussian"
    """Always gaussian: its deviation is also that of the actions that are learned from."""
    exploration_sigma: NonNegativeFloat = 1.0
    """Its deviation at first, in units of an action range of [-1, 1]."""
    exploration_sigma_final: NonNegativeFloat | None = 0.1
    """What the deviation changes to on a line; null: it stays."""
    exploration_fraction: Fraction = 0.5
    """The part of the run in which it does."""


@register_algorithm(
    "drqv2",
    tier="experimental",
    actions=("Box",),
    summary="DDPG with two critics from randomly shifted pixels",
    layer_norm=False,
    exploration_noise="gaussian",
)
class DrQv2(OffPolicyActorCritic):
    """The critics train the encoder; noise of one falling deviation explores and smooths what is learned."""

    Hyperparams = DrQv2Config
    hyperparams: DrQv2Config
    policy: DeterministicActor
    exploration: GaussianNoise
    has_target_encoder = False

    def build_networks(self, context: Context) -> tuple[Actor, CriticEnsemble]:
        """Actor and critics, each with a trunk of its own behind the encoder."""
        hp, spec, network = self.hyperparams, context.spec, context.network
        actor = build_pixel_actor(spec, network, trunk=hp.trunk_dim, normalize_obs=context.normalize_obs)
        critics = build_pixel_critics(
            spec, network, actor.encoder, num_critics=hp.num_critics, trunk=hp.trunk_dim
        )
        return actor, critics

    def build(self, context: Context) -> None:
        """The shared parts, shifts, and the deviation where updates can read it."""
        super().build(context)
        self.shift = build_random_shift(context.spec, self.hyperparams.shift_pad)
        self.sigma = torch.tensor(self.hyperparams.exploration_sigma, device=context.device)

    def set_progress(self, progress: float) -> None:
        """One schedule for the actions that are taken and for those that are learned from."""
        super().set_progress(progress)
        self.exploration.set_progress(progress)
        self.sigma.fill_(self.exploration.sigma)

    def encode(self, batch: TransitionBatch) -> Features:
        """Features of shifted pictures; both ends of a transition are moved on their own."""
        moved = dataclasses.replace(
            batch,
            obs=self.shift(batch.obs, self.generator),
            next_obs=self.shift(batch.next_obs, self.generator),
        )
        return super().encode(moved)

    def noisy_action(self, features: Tensor) -> Tensor:
        """The policy's action with clipped noise; kept in range without cutting off its gradient."""
        action = self.policy.action(features)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device) * self.sigma
        noisy = action + noise.clamp_(-self.hyperparams.noise_clip, self.hyperparams.noise_clip)
        return noisy + (noisy.clamp(-1.0, 1.0) - noisy).detach()

    def next_action(self, batch: TransitionBatch, features: Tensor) -> NextAction:
        """What the policy itself would do: it has no slow copy."""
        return NextAction(self.noisy_action(features))

    def actor_loss(self, batch: TransitionBatch, features: Tensor) -> dict[str, Tensor]:
        """Minus the lower critic's value of the policy's own noisy action."""
        loss = -self.critics(beside(features, self.noisy_action(features))).amin(0).mean()
        return {"loss": loss, "actor_loss": loss}
