"""Truncated Quantile Critics (Kuznetsov et al. 2020): SAC with distributions, their top cut off."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic import NextAction
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.registry import register_algorithm
from rl_training.schema import NonNegativeInt, PositiveInt, config

__all__ = ["TQC", "TQCConfig", "truncated_quantile_loss"]


@config
class TQCConfig(SACConfig):
    """Hyperparameters of TQC."""

    num_quantiles: PositiveInt = 25
    """Quantiles each critic predicts."""
    drop_quantiles: NonNegativeInt = 2
    """How many of the highest quantiles are dropped for each critic, of all critics' together."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        problems = super().problems(num_envs)
        if self.drop_quantiles >= self.num_quantiles:
            problems.append(
                f"hyperparams.drop_quantiles: {self.drop_quantiles} leaves nothing of num_quantiles = "
                f"{self.num_quantiles}"
            )
        return problems


@register_algorithm(
    "tqc", tier="experimental", actions=("Box",), summary="SAC with truncated quantile critics"
)
class TQC(SAC):
    """SAC whose critics predict quantiles; the target is the mixture of all without its highest ones."""

    Hyperparams = TQCConfig
    hyperparams: TQCConfig

    def critic_outputs(self) -> int:
        """One a quantile."""
        return self.hyperparams.num_quantiles

    def reduce(self, values: Tensor, following: NextAction) -> Tensor:
        """All critics' quantiles in order, without the highest."""
        hp = self.hyperparams
        pooled = values.transpose(0, 1).flatten(1).sort(dim=1).values
        kept = hp.num_critics * (hp.num_quantiles - hp.drop_quantiles)
        return self.soft(pooled[:, :kept], following)

    def critic_errors(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Quantile regression of every critic; the error of its mean is its priority."""
        losses = truncated_quantile_loss(values, target)
        with torch.no_grad():
            errors = values.mean(-1) - target.mean(-1)
        return losses, errors

    def appraise(self, values: Tensor) -> Tensor:
        """The mean of all quantiles of all critics."""
        return values.mean(-1).mean(0)


def truncated_quantile_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Quantile Huber loss of `[N, B, K]` against samples `[B, M]`, the mean over both: `[N, B]`."""
    size = quantiles.shape[-1]
    taus = (torch.arange(size, device=quantiles.device) + 0.5) / size
    gaps = targets[None, :, None, :] - quantiles[..., None]
    distance = gaps.abs()
    huber = torch.where(distance > 1.0, distance - 0.5, 0.5 * gaps.square())
    weights = (taus[:, None] - (gaps.detach() < 0).float()).abs()
    return (weights * huber).mean((-2, -1))
