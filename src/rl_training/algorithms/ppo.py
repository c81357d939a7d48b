"""Proximal Policy Optimisation (Schulman et al. 2017), clipped surrogate objective."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl_training.algorithms.base import Context
from rl_training.algorithms.optim import Adam
from rl_training.algorithms.policy_gradient import PolicyGradient, PolicyGradientHyperparams
from rl_training.functional.losses import ppo_loss
from rl_training.registry import register_algorithm
from rl_training.schema import Bool, PositiveFloat, ScheduleKind, config
from rl_training.types import RolloutBatch, UpdateResult

__all__ = ["PPO", "PPOConfig", "ppo_loss"]


@config
class PPOConfig(PolicyGradientHyperparams):
    """Hyperparameters of PPO."""

    adam_eps: PositiveFloat = 1e-5
    """Adam's ε."""
    clip_coef: PositiveFloat = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_coef_schedule: ScheduleKind = "constant"
    """Schedule of `clip_coef`."""
    clip_value_loss: Bool = True
    """Clip value predictions around the old ones by `clip_coef`, as the policy is."""
    target_kl: PositiveFloat | None = None
    """Stop the epochs of an iteration when the approximate KL divergence exceeds this; null: never."""


@register_algorithm(
    "ppo",
    tier="core",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    summary="Proximal Policy Optimisation with a clipped objective",
)
class PPO(PolicyGradient):
    """PPO for any supported observation and action space."""

    Hyperparams = PPOConfig
    hyperparams: PPOConfig
    optimizer_name = "adam"

    def build(self, context: Context) -> None:
        """The actor-critic, and how far its policy may move."""
        hp = self.hyperparams
        self.clip_coef = self.schedule(hp.clip_coef, hp.clip_coef_schedule, "clip_coef")
        super().build(context)

    def make_optimizer(self, parameters: Sequence[Tensor], learning_rate: Tensor) -> Adam:
        """Adam."""
        return Adam(parameters, learning_rate, eps=self.hyperparams.adam_eps)

    def losses(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """The clipped objective of a minibatch, and what it is made of."""
        hp = self.hyperparams
        return ppo_loss(
            self.minibatch(batch), self.clip_coef, self.ent_coef, hp.vf_coef,
            clip_value_loss=hp.clip_value_loss,
        )  # fmt: skip

    def after_epoch(self, last: UpdateResult) -> bool:
        """Stop this iteration's epochs when the policy has moved further than `target_kl`."""
        target = self.hyperparams.target_kl
        return target is None or float(last.metrics["approx_kl"]) <= target
