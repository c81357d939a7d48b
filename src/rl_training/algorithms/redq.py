"""Randomized Ensembled Double Q-learning (Chen et al. 2021): SAC, many critics, many updates a step."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic import NextAction
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.registry import register_algorithm
from rl_training.schema import PositiveInt, config

__all__ = ["REDQ", "REDQConfig"]


@config
class REDQConfig(SACConfig):
    """Hyperparameters of REDQ."""

    gradient_steps: PositiveInt = 20
    """Updates a round: gradient_steps / train_every is the update-to-data ratio."""
    num_critics: PositiveInt = 10
    """Critics in the ensemble."""
    subset_size: PositiveInt = 2
    """How many critics, drawn anew for each update, the target takes the lowest of."""
    policy_delay: PositiveInt = 20
    """Updates of the critics for each update of the actor."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        problems = super().problems(num_envs)
        if self.subset_size > self.num_critics:
            problems.append(
                f"hyperparams.subset_size: {self.subset_size} of num_critics = {self.num_critics} critics "
                "cannot be drawn"
            )
        return problems


@register_algorithm(
    "redq", tier="experimental", actions=("Box",), summary="SAC with a random subset of a large ensemble"
)
class REDQ(SAC):
    """SAC whose target is the lowest of a few critics of many, and whose actor climbs the mean of all."""

    Hyperparams = REDQConfig
    hyperparams: REDQConfig

    def reduce(self, values: Tensor, following: NextAction) -> Tensor:
        """The lowest value of a random subset of the critics."""
        order = torch.randperm(len(values), generator=self.generator, device=values.device)
        subset = values.index_select(0, order[: self.hyperparams.subset_size])
        return self.soft(subset.amin(0), following)

    def appraise(self, values: Tensor) -> Tensor:
        """The mean of all critics."""
        return values.squeeze(-1).mean(0)
