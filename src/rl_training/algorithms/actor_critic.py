"""The template of off-policy actor-critics: one update, and hooks for what distinguishes its members.

    y  =  bootstrap( reduce( Q_target(s', next_action(s')) ) )            a target for every critic
    critics: the error of Q(s, a) against y, plus critic_penalty          one backward for all of them
    actor:   actor_loss, every `policy_delay` updates                     no gradient work for the critics

Values are `[critics, batch, K]`, K numbers for each critic (1, or quantiles). `batch.discount` is all that is
ever known about how a transition ended.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Context, OffPolicyAlgorithm, OffPolicyHyperparams
from rl_training.algorithms.optim import Adam, descend
from rl_training.policies.actors import Actor
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.exploration import Exploration, GaussianNoise, OrnsteinUhlenbeckNoise
from rl_training.schema import (
    Bool,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ScheduleKind,
    config,
)
from rl_training.types import Batch, TransitionBatch, UpdateResult


@config
class ActorCriticConfig(OffPolicyHyperparams):
    """Hyperparameters that all off-policy actor-critics share."""

    learning_rate: PositiveFloat = 3e-4
    """Adam's step size."""
    actor_learning_rate: PositiveFloat | None = None
    """Adam's step size for the actor (and the temperature); null: learning_rate."""
    learning_rate_schedule: ScheduleKind = "constant"
    """constant, or decaying to zero over the run: linear, cosine."""
    adam_beta1: Fraction = 0.9
    """Adam's β₁: how long the mean of gradients remembers."""
    tau: Fraction = 0.005
    """How far target networks move towards the learned ones at each of their updates."""
    num_critics: PositiveInt = 2
    """Critics in the ensemble."""
    policy_delay: PositiveInt = 1
    """Updates of the critics for each update of the actor."""
    layer_norm: Bool = False
    """Normalise each hidden layer of the critics (before its activation)."""
    exploration_noise: Literal["none", "gaussian", "ou"] = "none"
    """Noise added to actions while collecting: none, new at every step (gaussian), or drifting (ou)."""
    exploration_sigma: NonNegativeFloat = 0.1
    """Its deviation, in units of an action range of [-1, 1]."""
    exploration_sigma_final: NonNegativeFloat | None = None
    """What the deviation of `gaussian` changes to on a line; null: it stays."""
    exploration_fraction: Fraction = 1.0
    """The part of the run in which it does."""
    exploration_correlation: PositiveFloat = 10.0
    """Steps for which the noise `ou` keeps its direction."""
    max_grad_norm: PositiveFloat | None = None
    """Gradients of critics and actor are each scaled down to this norm; null: they are left as they are."""


class NextAction(NamedTuple):
    """What the policy would do next: actions, or None where all of them are weighed by their probability."""

    actions: Tensor | None
    logprobs: Tensor | None = None


class Features(NamedTuple):
    """A batch's observations as the critics and the actor read them."""

    now: Tensor
    """With a gradient to the encoder, which the critics train."""
    next: Tensor
    """Of the next observations, as the actor reads them."""
    next_target: Tensor
    """Of the next observations, by the target encoder."""


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """One update for all of them; subclasses build the networks and fill in the hooks."""

    hyperparams: Any
    policy: Actor
    critics: CriticEnsemble
    has_targets = True
    has_target_encoder = True
    """Whether target critics read a slow copy of the encoder or the one that is learned (DrQ-v2)."""
    targets_follow_actor = False
    """Whether target networks wait for the actor's updates (TD3) or move at every one."""

    # What a member of the family says.

    @abstractmethod
    def build_networks(self, context: Context) -> tuple[Actor, CriticEnsemble]:
        """The policy and its critics."""

    @abstractmethod
    def next_action(self, batch: TransitionBatch, features: Tensor) -> NextAction:
        """The action whose value the target is made of. Runs without gradients."""

    def reduce(self, values: Tensor, following: NextAction) -> Tensor:
        """From the target values of all critics `[N, B, K]` to those of the next state, `[B, K']`."""
        return values.amin(0)

    def bootstrap(self, batch: TransitionBatch, values: Tensor) -> Tensor:
        """The critics' target `[B, K']`: rewards and the discounted value after them."""
        return torch.addcmul(batch.rewards.unsqueeze(-1), batch.discount.unsqueeze(-1), values)

    def critic_errors(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of every critic on every sample `[N, B]`, and the errors of their first value `[N, B]`."""
        errors = (values - target).squeeze(-1)
        return 0.5 * errors.square(), errors

    def critic_penalty(self, batch: TransitionBatch, features: Features, values: Tensor) -> Tensor | None:
        """What is added to the critics' loss, if anything."""
        return None

    @abstractmethod
    def actor_loss(self, batch: TransitionBatch, features: Tensor) -> dict[str, Tensor]:
        """The actor's `loss` and what should be logged with it."""

    # What they share.

    def build(self, context: Context) -> None:
        """Networks, targets, and one Adam each for the critics and for the actor."""
        hp = self.hyperparams
        policy, critics = self.build_networks(context)
        self.policy, self.critics = policy.to(context.device), critics.to(context.device)
        self.networks["critics"] = self.critics
        self.target_critics, self.target_encoder = self.critics, self.policy.encoder
        encoder_parameters = list(self.policy.encoder.parameters())
        self.learned: list[Tensor] = []
        self.targets: list[Tensor] = []
        if self.has_targets:
            self.target_critics = self.add_target("target_critics", self.critics)
            if encoder_parameters and self.has_target_encoder:
                self.target_encoder = self.add_target("target_encoder", self.policy.encoder)
        self.shares_features = self.target_encoder is self.policy.encoder
        self.critic_parameters = [*self.critics.parameters(), *encoder_parameters]
        self.actor_parameters: list[Tensor] = [*self.policy.own_parameters(), *self.extra_parameters()]
        rate = self.schedule(hp.learning_rate, hp.learning_rate_schedule, "learning_rate")
        actor_rate = rate
        if hp.actor_learning_rate is not None:
            actor_rate = self.schedule(
                hp.actor_learning_rate, hp.learning_rate_schedule, "actor_learning_rate"
            )
        self.critic_optimizer = self._adam("critic", self.critic_parameters, rate)
        self.actor_optimizer = self._adam("actor", self.actor_parameters, actor_rate)
        self.exploration = build_noise(hp)

    def extra_parameters(self) -> Sequence[Tensor]:
        """What the actor's loss trains beside the actor. Called while networks are built."""
        return ()

    def add_target(self, name: str, network: Any) -> Any:
        """A copy of a network that follows it slowly, and is saved."""
        target = copy.deepcopy(network).requires_grad_(False)
        self.networks[name] = target
        self.learned += list(network.parameters())
        self.targets += list(target.parameters())
        return target

    def _adam(self, name: str, parameters: Sequence[Tensor], rate: Tensor) -> torch.optim.Optimizer:
        betas = (self.hyperparams.adam_beta1, 0.999)
        self.optimizers[name] = Adam(parameters, rate, betas=betas)
        return self.optimizers[name]

    def update(self, batch: Batch) -> UpdateResult:
        """One step of the critics and, when it is due, one of the actor and of the targets."""
        hp, batch = self.hyperparams, self._transitions(batch)
        features = self.encode(batch)
        loss, errors, metrics = self.critic_loss(batch, features)
        metrics["grad_norm"] = descend(loss, self.critic_optimizer, self.critic_parameters, hp.max_grad_norm)
        self.num_updates += 1
        actor_is_due = self.kind(self.num_updates)
        if actor_is_due:
            losses = self.actor_loss(batch, features.now.detach())
            metrics["actor_grad_norm"] = descend(
                losses.pop("loss"), self.actor_optimizer, self.actor_parameters, hp.max_grad_norm,
                after=loss.detach() + metrics["grad_norm"],
            )  # fmt: skip
            metrics.update(losses)
        if self.targets and (actor_is_due or not self.targets_follow_actor):
            with torch.no_grad():
                torch._foreach_lerp_(self.targets, self.learned, hp.tau)
        # One small tensor that outlives the update: many of them would riddle the heap with holes.
        numbers = torch.stack([value.detach() for value in metrics.values()]).unbind()
        return UpdateResult(
            dict(zip(metrics, numbers, strict=True)),
            errors.detach().abs().mean(0) if hp.prioritized else None,
        )

    def kind(self, number: int) -> bool:
        """Whether the actor is due."""
        return bool(number % self.hyperparams.policy_delay == 0)

    def encode(self, batch: TransitionBatch) -> Features:
        """Features of both ends of the transitions; without an encoder of their own, targets share them."""
        now = self.policy.features(batch.obs)
        with torch.no_grad():
            following = self.policy.features(batch.next_obs)
            if self.shares_features:
                return Features(now, following, following)
            return Features(now, following, self.target_encoder(self.policy.inputs(batch.next_obs)[0]))

    def critic_loss(
        self, batch: TransitionBatch, features: Features
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The critics' loss (each critic's mean over the batch, summed), their errors, and metrics."""
        with torch.no_grad():
            following = self.next_action(batch, features.next)
        values, next_values = self.evaluate_critics(batch, features, following)
        with torch.no_grad():
            target = self.bootstrap(batch, self.reduce(next_values, following))
        losses, errors = self.critic_errors(values, target)
        loss = torch.mv(losses, batch.weights).sum() / len(batch.weights)
        penalty = self.critic_penalty(batch, features, values)
        if penalty is not None:
            loss = loss + penalty
        return loss, errors, {"critic_loss": loss, "q_mean": values.detach().mean()}

    def evaluate_critics(
        self, batch: TransitionBatch, features: Features, following: NextAction
    ) -> tuple[Tensor, Tensor]:
        """Values of what was done, with gradients, and target values of what would be done next, without."""
        with torch.no_grad():
            next_values = self.target_critics(beside(features.next_target, following.actions))
        return self.critics(beside(features.now, batch.actions)), next_values


def build_noise(hp: ActorCriticConfig) -> Exploration | None:
    """What the collector adds to actions. The deviation of `ou` is that of the process in the long run."""
    if hp.exploration_noise == "gaussian":
        return GaussianNoise(hp.exploration_sigma, hp.exploration_sigma_final, hp.exploration_fraction)
    if hp.exploration_noise == "ou":
        rate = min(1.0 / hp.exploration_correlation, 1.0)
        push = hp.exploration_sigma * (rate * (2.0 - rate)) ** 0.5
        return OrnsteinUhlenbeckNoise(push, theta=rate, dt=1.0)
    return None


def beside(features: Tensor, actions: Tensor | None) -> Tensor:
    """What a critic reads: features and, if it is told them, actions."""
    return features if actions is None else torch.cat([features, actions.flatten(1)], dim=1)
