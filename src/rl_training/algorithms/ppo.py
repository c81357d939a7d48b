"""Proximal Policy Optimisation (Schulman et al. 2017), clipped surrogate objective."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Context, OnPolicyAlgorithm, OnPolicyHyperparams, descend
from rl_training.functional.losses import ppo_loss
from rl_training.policies.build import build_actor_critic
from rl_training.registry import register_algorithm
from rl_training.schema import Bool, NonNegativeFloat, PositiveFloat, ScheduleKind, config
from rl_training.types import Batch, RolloutBatch, UpdateResult

__all__ = ["PPO", "PPOConfig", "ppo_loss"]


@config
class PPOConfig(OnPolicyHyperparams):
    """Hyperparameters of PPO."""

    learning_rate: PositiveFloat = 3e-4
    """Adam's step size."""
    learning_rate_schedule: ScheduleKind = "constant"
    """constant, or decaying to zero over the run: linear, cosine."""
    adam_eps: PositiveFloat = 1e-5
    """Adam's ε."""
    clip_coef: PositiveFloat = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_coef_schedule: ScheduleKind = "constant"
    """Schedule of `clip_coef`."""
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
    clip_value_loss: Bool = True
    """Clip value predictions around the old ones by `clip_coef`, as the policy is."""
    target_kl: PositiveFloat | None = None
    """Stop the epochs of an iteration when the approximate KL divergence exceeds this; null: never."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        problems = super().problems(num_envs)
        if not problems and self.normalize_advantages and self.num_steps * num_envs == self.num_minibatches:
            problems.append(
                "hyperparams.num_minibatches: minibatches of one sample cannot be normalised; use fewer, "
                "or set hyperparams.normalize_advantages to false"
            )
        return problems


@register_algorithm(
    "ppo",
    tier="core",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    summary="Proximal Policy Optimisation with a clipped objective",
)
class PPO(OnPolicyAlgorithm):
    """PPO for any supported observation and action space."""

    Hyperparams = PPOConfig
    hyperparams: PPOConfig

    def build(self, context: Context) -> None:
        """One actor-critic and one Adam over all of it."""
        hp = self.hyperparams
        self.policy = build_actor_critic(
            context.spec, context.network, normalize_obs=context.normalize_obs
        ).to(context.device)
        self.parameters = list(self.policy.parameters())
        self.clip_coef = self.schedule(hp.clip_coef, hp.clip_coef_schedule, "clip_coef")
        # A plain zero keeps the entropy out of the backward pass.
        self.ent_coef = self.schedule(hp.ent_coef, hp.ent_coef_schedule, "ent_coef") if hp.ent_coef else 0.0
        learning_rate = self.schedule(hp.learning_rate, hp.learning_rate_schedule, "learning_rate")
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate, eps=hp.adam_eps, fused=True)
        self.optimizers["adam"] = self.optimizer
        self.last_kl: Tensor | None = None

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step on one minibatch."""
        losses = self.losses(self._rollout(batch))
        grad_norm = descend(losses["loss"], self.optimizer, self.parameters, self.hyperparams.max_grad_norm)
        self.last_kl = losses["approx_kl"]
        metrics = {name: value.detach() for name, value in losses.items()}
        return UpdateResult({**metrics, "grad_norm": grad_norm})

    def losses(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """The loss of a minibatch under the current policy, and what it is made of."""
        hp = self.hyperparams
        logprobs, entropy, values = self.policy.evaluate_actions(batch.obs, batch.actions)
        advantages = batch.advantages
        if hp.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        minibatch = {
            "logprobs": logprobs,
            "old_logprobs": batch.logprobs,
            "advantages": advantages,
            "returns": batch.returns,
            "values": batch.values,
            "new_values": values,
            "entropy": entropy,
        }
        return ppo_loss(
            minibatch, self.clip_coef, self.ent_coef, hp.vf_coef, clip_value_loss=hp.clip_value_loss
        )

    def after_epoch(self) -> bool:
        """Stop this iteration's epochs when the policy has moved further than `target_kl`."""
        target = self.hyperparams.target_kl
        return target is None or self.last_kl is None or float(self.last_kl) <= target
