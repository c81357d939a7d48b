"""What gradient steps on an actor-critic's loss have in common: PPO and A2C are this with a loss each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.base import Context, OnPolicyAlgorithm, OnPolicyHyperparams
from rl_training.algorithms.optim import descend
from rl_training.functional.losses import standardized
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.build import build_actor_critic
from rl_training.schema import Bool, NonNegativeFloat, PositiveFloat, ScheduleKind, config
from rl_training.types import Batch, RolloutBatch, UpdateResult


@config
class PolicyGradientHyperparams(OnPolicyHyperparams):
    """What every loss over an actor-critic needs."""

    learning_rate: PositiveFloat = 3e-4
    """The optimiser's step size."""
    learning_rate_schedule: ScheduleKind = "constant"
    """constant, or decaying to zero over the run: linear, cosine."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    ent_coef_schedule: ScheduleKind = "constant"
    """Schedule of `ent_coef`."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat = 0.5
    """Gradients are scaled down to this norm."""
    normalize_advantages: Bool = True
    """Shift and scale the advantages of each minibatch to mean 0 and deviation 1."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        problems = super().problems(num_envs)
        if not problems and self.normalize_advantages and self.num_steps * num_envs == self.num_minibatches:
            problems.append(
                "hyperparams.num_minibatches: minibatches of one sample cannot be normalised; use fewer, "
                "or set hyperparams.normalize_advantages to false"
            )
        return problems


class PolicyGradient(OnPolicyAlgorithm):
    """One actor-critic, one optimiser over all of it, one clipped gradient step a minibatch."""

    hyperparams: PolicyGradientHyperparams
    optimizer_name: ClassVar[str]
    """The name its state is saved under."""

    def build(self, context: Context) -> None:
        """Networks, schedules and the optimiser."""
        hp = self.hyperparams
        self.policy = self.build_policy(context).to(context.device)
        self.parameters = list(self.policy.parameters())
        # A plain zero keeps the entropy out of the backward pass.
        self.ent_coef = self.schedule(hp.ent_coef, hp.ent_coef_schedule, "ent_coef") if hp.ent_coef else 0.0
        learning_rate = self.schedule(hp.learning_rate, hp.learning_rate_schedule, "learning_rate")
        self.optimizer = self.make_optimizer(self.parameters, learning_rate)
        self.optimizers[self.optimizer_name] = self.optimizer

    def build_policy(self, context: Context) -> ActorCritic:
        """What acts and judges."""
        return build_actor_critic(context.spec, context.network, normalize_obs=context.normalize_obs)

    @abstractmethod
    def make_optimizer(self, parameters: Sequence[Tensor], learning_rate: Tensor) -> torch.optim.Optimizer:
        """The optimiser; it must leave its weights alone where a gradient is not finite."""

    @abstractmethod
    def losses(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """The `loss` of a minibatch under the current policy, and what it is made of."""

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step on one minibatch."""
        losses = self.losses(self._rollout(batch))
        grad_norm = descend(losses["loss"], self.optimizer, self.parameters, self.hyperparams.max_grad_norm)
        metrics = {name: value.detach() for name, value in losses.items()}
        return UpdateResult({**metrics, "grad_norm": grad_norm})

    def evaluate_actions(self, batch: RolloutBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of a minibatch's actions, entropies and values under the current policy."""
        logprobs, entropy, values = self.policy.evaluate_actions(batch.obs, batch.actions)
        return logprobs, entropy, values

    def minibatch(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """What losses read: the current policy's view of a minibatch beside that of the one that acted."""
        logprobs, entropy, values = self.evaluate_actions(batch)
        advantages = batch.advantages
        if self.hyperparams.normalize_advantages:
            advantages = standardized(advantages, self.averaging)
        return {
            "logprobs": logprobs,
            "old_logprobs": batch.logprobs,
            "advantages": advantages,
            "returns": batch.returns,
            "values": batch.values,
            "new_values": values,
            "entropy": entropy,
        }
