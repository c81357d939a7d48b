"""Trust Region Policy Optimisation (Schulman et al. 2015): one natural-gradient step a rollout.

The step has to look at values (its line search), so it is taken in `before_epochs`, once a rollout and
outside `update`. The epochs over minibatches, which `update` serves, train the critic alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rl_training.algorithms.base import Context, OnPolicyAlgorithm, OnPolicyHyperparams
from rl_training.algorithms.optim import Adam, descend
from rl_training.functional.flat import assign_flat, flat
from rl_training.functional.losses import standardized, value_loss
from rl_training.functional.trust_region import conjugate_gradient, hessian_vector_product
from rl_training.policies.build import build_actor_critic
from rl_training.policies.distributions import Distribution, frozen
from rl_training.registry import register_algorithm
from rl_training.schema import (
    Bool,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
    ScheduleKind,
    config,
)
from rl_training.types import Batch, RolloutBatch, UpdateResult

__all__ = ["TRPO", "TRPOConfig"]


@config
class TRPOConfig(OnPolicyHyperparams):
    """Hyperparameters of TRPO."""

    num_steps: PositiveInt = 1024
    """Steps collected in each env before an update."""
    num_minibatches: PositiveInt = 16
    """Minibatches an epoch of the critic; num_steps * num_envs must be divisible by it."""
    update_epochs: PositiveInt = 10
    """Passes of the critic over each rollout; the policy makes one step."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's step size, for the critic."""
    learning_rate_schedule: ScheduleKind = "constant"
    """constant, or decaying to zero over the run: linear, cosine."""
    adam_eps: PositiveFloat = 1e-5
    """Adam's ε."""
    target_kl: PositiveFloat = 0.01
    """The trust region: how far a step may move the policy, as the mean KL divergence from the old one."""
    cg_steps: PositiveInt = 15
    """Conjugate-gradient steps towards the natural gradient."""
    cg_damping: NonNegativeFloat = 0.1
    """Multiple of the identity added to the Fisher matrix."""
    line_search_steps: PositiveInt = 10
    """Step lengths tried before the step is given up."""
    line_search_shrink: ProperFraction = 0.8
    """Each step length tried is the one before times this."""
    normalize_advantages: Bool = True
    """Shift and scale the advantages of each rollout to mean 0 and deviation 1."""


@register_algorithm(
    "trpo",
    tier="core",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    summary="Trust Region Policy Optimisation: natural gradient and line search",
)
class TRPO(OnPolicyAlgorithm):
    """TRPO for any supported observation and action space."""

    Hyperparams = TRPOConfig
    hyperparams: TRPOConfig
    alone_only = "a line search tries its steps on the rollout of one learner"

    def build(self, context: Context) -> None:
        """An actor and a critic, separate unless told otherwise, and Adam for the critic."""
        hp = self.hyperparams
        shared = context.network.shared or False  # what the critic learns must not move the policy
        self.policy = build_actor_critic(
            context.spec, replace(context.network, shared=shared), normalize_obs=context.normalize_obs
        ).to(context.device)
        self.actor: list[Tensor] = list(self.policy.actor_parameters())
        actor = {id(parameter) for parameter in self.actor}
        self.critic = [p for p in self.policy.parameters() if id(p) not in actor]
        learning_rate = self.schedule(hp.learning_rate, hp.learning_rate_schedule, "learning_rate")
        self.optimizer = Adam(self.critic, learning_rate, eps=hp.adam_eps)
        self.optimizers["adam"] = self.optimizer

    def before_epochs(self, rollout: RolloutBatch) -> UpdateResult:
        """Move the policy: along the natural gradient, as far as the trust region and improvement allow."""
        hp = self.hyperparams
        advantages = standardized(rollout.advantages) if hp.normalize_advantages else rollout.advantages
        with torch.no_grad():
            old = frozen(self.policy.distribution(rollout.obs))
        objective, kl, entropy = self.surrogate(rollout, advantages, old)
        gradient = flat(torch.autograd.grad(objective, self.actor, retain_graph=True))
        step = self.natural_step(gradient, kl)

        start = flat(self.actor).detach()
        accepted = False
        new_objective, new_kl = objective, kl
        for tries in range(hp.line_search_steps):
            assign_flat(self.actor, start + hp.line_search_shrink**tries * step)
            with torch.no_grad():
                new_objective, new_kl, _ = self.surrogate(rollout, advantages, old)
            accepted = bool((new_kl <= hp.target_kl) & (new_objective > objective))
            if accepted:
                break
        else:
            assign_flat(self.actor, start)
            new_objective, new_kl = objective, kl
        return UpdateResult(
            {
                "policy_loss": -new_objective.detach(),
                "entropy_loss": entropy.detach(),
                "kl": new_kl.detach(),
                "line_search_success": torch.tensor(float(accepted), device=start.device),
                "policy_grad_norm": torch.linalg.vector_norm(gradient),
            }
        )

    def surrogate(
        self, rollout: RolloutBatch, advantages: Tensor, old: Distribution
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The objective (eq. 14), the mean KL divergence from the old policy, and the mean entropy."""
        new: Distribution = self.policy.distribution(rollout.obs)
        logprobs = new.log_prob(self.policy.flat_actions(rollout.actions))
        objective = (advantages * (logprobs - rollout.logprobs).exp()).mean()
        return objective, old.kl(new).mean(), new.entropy().mean()

    def natural_step(self, gradient: Tensor, kl: Tensor) -> Tensor:
        """The longest step along F⁻¹g that the quadratic model of the KL allows (appendix C)."""
        hp = self.hyperparams
        product = hessian_vector_product(kl, self.actor)

        def fisher(vector: Tensor) -> Tensor:
            return product(vector) + hp.cg_damping * vector

        direction = conjugate_gradient(fisher, gradient, hp.cg_steps)
        return direction * (2.0 * hp.target_kl / (direction @ fisher(direction))).sqrt()

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step of the critic on one minibatch."""
        batch = self._rollout(batch)
        loss = value_loss(self.policy.values(batch.obs), batch.returns)
        grad_norm = descend(loss, self.optimizer, self.critic)
        return UpdateResult({"value_loss": loss.detach(), "grad_norm": grad_norm})
