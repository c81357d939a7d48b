"""Deep Q-learning (Mnih et al. 2015) and its named variants, which differ in a few fields of one class."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rl_training.algorithms.base import Context, OffPolicyAlgorithm, OffPolicyHyperparams
from rl_training.algorithms.optim import Adam, descend
from rl_training.errors import ConfigError
from rl_training.functional.q_losses import entropy, munchausen_bonus
from rl_training.policies.build_q import HeadKind, build_q_policy
from rl_training.policies.distributions import mask_logits
from rl_training.policies.exploration import EpsilonGreedy, RepeatedEpsilonGreedy
from rl_training.policies.noisy import Noise
from rl_training.policies.q_networks import QPolicy
from rl_training.registry import register_algorithm
from rl_training.schema import (
    Bool,
    Float,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ScheduleKind,
    config,
)
from rl_training.types import Batch, TransitionBatch, UpdateResult

__all__ = ["DQN", "DQNConfig"]


@config
class DQNConfig(OffPolicyHyperparams):
    """Hyperparameters of DQN and its variants."""

    buffer_size: PositiveInt = 100_000
    """Transitions kept for replay."""
    batch_size: PositiveInt = 128
    """Transitions an update learns from."""
    learning_starts: NonNegativeInt = 1_000
    """Steps taken at random before the first update."""
    train_every: PositiveInt = 4
    """Steps (over all envs) between two rounds of updates."""
    learning_rate: PositiveFloat = 5e-4
    """Adam's step size."""
    learning_rate_schedule: ScheduleKind = "constant"
    """constant, or decaying to zero over the run: linear, cosine."""
    adam_eps: PositiveFloat = 1e-8
    """Adam's ε."""
    max_grad_norm: PositiveFloat = 10.0
    """Gradients are scaled down to this norm."""
    huber: Bool = True
    """Scalar head: errors beyond 1 count linearly, not squared."""
    target_update_every: PositiveInt = 250
    """Updates between two moves of the target network."""
    tau: Fraction = 1.0
    """How far the target network moves towards the learning one: 1 copies it."""
    exploration_initial: Fraction = 1.0
    """ε, the chance of a random action, at the start. Noisy networks explore without it."""
    exploration_final: Fraction = 0.05
    """ε at the end of the schedule and after it."""
    exploration_fraction: Fraction = 0.2
    """The part of the run over which ε falls."""
    exploration_repeats: Bool = False
    """Repeat a random action for a random number of steps, n with a chance in proportion to 1/n²."""
    double: Bool = False
    """Choose the next action by the learning network and value it by the target network."""
    dueling: Bool = False
    """Predict a state's value and each action's advantage apart."""
    noisy: Bool = False
    """Explore by learned noise on the weights of the last two layers instead of ε."""
    noisy_sigma: PositiveFloat = 0.5
    """Initial scale of that noise."""
    head: HeadKind = "scalar"
    """What is predicted of a return: its mean (scalar), or its distribution by c51, qr or iqn."""
    num_atoms: PositiveInt = 51
    """c51: fixed returns that probabilities are given for."""
    v_min: Float = -10.0
    """c51: the lowest of them."""
    v_max: Float = 10.0
    """c51: the highest of them."""
    num_quantiles: PositiveInt = 32
    """qr: quantiles an action; iqn: fractions drawn for a sample."""
    munchausen: Bool = False
    """Add the scaled log-policy to the reward and bootstrap softly, from all actions."""
    munchausen_alpha: Fraction = 0.9
    """How much of the log-policy is added."""
    munchausen_tau: PositiveFloat = 0.03
    """Temperature of the policy: softmax of the target network's values over it."""
    munchausen_clip: Float = -1.0
    """The log-policy, times the temperature, counts from here up to 0."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        problems = super().problems(num_envs)
        if self.head == "c51" and (self.v_max <= self.v_min or self.num_atoms < 2):
            problems.append(
                f"hyperparams.v_max: {self.num_atoms} atoms from {self.v_min} to {self.v_max} cover nothing"
            )
        if self.exploration_repeats and self.noisy:
            problems.append("hyperparams.exploration_repeats: noisy networks take no random actions")
        if self.munchausen and self.double:
            problems.append(
                "hyperparams.munchausen: its target has no maximum that hyperparams.double could correct"
            )
        return problems


_DISCRETE = ("Discrete",)
_RAINBOW = {"head": "c51", "double": True, "dueling": True, "noisy": True, "prioritized": True}


@register_algorithm("dqn", tier="core", actions=_DISCRETE, summary="Deep Q-learning")
@register_algorithm(
    "double_dqn", tier="core", actions=_DISCRETE, summary="DQN that chooses and values apart", double=True
)
@register_algorithm(
    "dueling_dqn",
    tier="core",
    actions=_DISCRETE,
    summary="DQN with state values and advantages",
    dueling=True,
)
@register_algorithm(
    "prioritized_dqn", tier="core", actions=_DISCRETE, summary="DQN replaying by priority", prioritized=True
)
@register_algorithm(
    "n_step_dqn", tier="core", actions=_DISCRETE, summary="DQN with n-step returns", defaults={"n_step": 3}
)
@register_algorithm(
    "noisy_dqn", tier="experimental", actions=_DISCRETE, summary="DQN exploring by noisy weights", noisy=True
)
@register_algorithm(
    "c51", tier="experimental", actions=_DISCRETE, summary="Categorical return distributions", head="c51"
)
@register_algorithm("qr_dqn", tier="core", actions=_DISCRETE, summary="Quantiles of the return", head="qr")
@register_algorithm(
    "iqn", tier="experimental", actions=_DISCRETE, summary="Implicit quantiles of the return", head="iqn"
)
@register_algorithm(
    "rainbow",
    tier="experimental",
    actions=_DISCRETE,
    summary="C51 + double + dueling + noisy + prioritised + n-step",
    defaults={"n_step": 3},
    **_RAINBOW,
)
class DQN(OffPolicyAlgorithm):
    """DQN for Discrete actions. What is predicted is the head's affair, what is replayed the sampler's."""

    Hyperparams = DQNConfig
    hyperparams: DQNConfig
    policy: QPolicy

    def build(self, context: Context) -> None:
        """The network that learns, a copy of it for targets, and Adam."""
        hp = self.hyperparams
        self.policy = build_q_policy(
            context.spec,
            context.network,
            head=hp.head,
            dueling=hp.dueling,
            noisy_sigma=hp.noisy_sigma if hp.noisy else None,
            size=hp.num_atoms if hp.head == "c51" else hp.num_quantiles,
            value_range=(hp.v_min, hp.v_max),
            huber=hp.huber,
            normalize_obs=context.normalize_obs,
        ).to(context.device)
        self.target = copy.deepcopy(self.policy.q).requires_grad_(False)
        self.networks["target"] = self.target
        self.parameters: list[Tensor] = list(self.policy.parameters())
        self.target_parameters: list[Tensor] = list(self.target.parameters())
        learning_rate = self.schedule(hp.learning_rate, hp.learning_rate_schedule, "learning_rate")
        self.optimizer = Adam(self.parameters, learning_rate, eps=hp.adam_eps)
        self.optimizers["adam"] = self.optimizer
        self.noise = Noise(self.generator) if hp.noisy or hp.head == "iqn" else None
        if not hp.noisy:
            if hp.exploration_repeats and self.policy.masked:
                raise ConfigError(
                    "hyperparams.exploration_repeats: an action mask may forbid what is to be repeated"
                )
            greedy = RepeatedEpsilonGreedy if hp.exploration_repeats else EpsilonGreedy
            self.exploration = greedy(hp.exploration_initial, hp.exploration_final, hp.exploration_fraction)

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step on one batch; every so often the target network follows."""
        batch = self._transitions(batch)
        head = self.policy.q.head
        targets = self.targets(batch)
        outputs, taus = self.policy.q.forward(self.policy.inputs(batch.obs)[0], self.noise)
        chosen = head.pick(outputs, batch.actions)
        loss, errors = head.loss(chosen, targets, batch.weights, taus)
        grad_norm = descend(loss, self.optimizer, self.parameters, self.hyperparams.max_grad_norm)
        self.num_updates += 1
        if self.kind(self.num_updates):
            self.move_target()
        metrics = {
            "loss": loss.detach(),
            "q_mean": head.values(chosen.detach()).mean(),
            "grad_norm": grad_norm,
        }
        return UpdateResult(metrics, errors if self.hyperparams.prioritized else None)

    def kind(self, number: int) -> bool:
        """Whether the target network follows."""
        return number % self.hyperparams.target_update_every == 0

    @torch.no_grad()
    def targets(self, batch: TransitionBatch) -> Tensor:
        """What the outputs for the actions taken should be: r + γ · those of the next action."""
        hp, head = self.hyperparams, self.policy.q.head
        inputs, mask = self.policy.inputs(batch.next_obs)
        after = self.target.forward(inputs, self.noise).outputs
        if hp.munchausen:
            logpi = self._log_policy(after, mask)
            bonus = self._munchausen_bonus(batch)
            rewards = batch.rewards + bonus + batch.discount * (hp.munchausen_tau * entropy(logpi))
            return head.target(head.mix(after, logpi.exp()), rewards, batch.discount)
        judge = self.policy.q.forward(inputs, self.noise).outputs if hp.double else after
        best = mask_logits(head.values(judge), mask).argmax(1)
        return head.target(head.pick(after, best), batch.rewards, batch.discount)

    @torch.no_grad()
    def move_target(self) -> None:
        """Bring the target network closer to the learning one, or make it the same."""
        tau = self.hyperparams.tau
        if tau == 1.0:
            torch._foreach_copy_(self.target_parameters, self.parameters)
        else:
            torch._foreach_lerp_(self.target_parameters, self.parameters, tau)

    def _munchausen_bonus(self, batch: TransitionBatch) -> Tensor:
        """What Munchausen adds to the rewards: how likely the policy is to do what was done."""
        hp = self.hyperparams
        inputs, mask = self.policy.inputs(batch.obs)
        logpi = self._log_policy(self.target.forward(inputs, self.noise).outputs, mask)
        return munchausen_bonus(
            logpi, batch.actions, alpha=hp.munchausen_alpha, tau=hp.munchausen_tau, low=hp.munchausen_clip
        )

    def _log_policy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """log softmax(q / τ) over the actions allowed."""
        values = self.policy.q.head.values(outputs) / self.hyperparams.munchausen_tau
        return torch.log_softmax(mask_logits(values, mask), -1)
