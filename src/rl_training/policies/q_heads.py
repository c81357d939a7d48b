"""Heads of action-value networks: what is predicted about the return of each action, and how it is learned.

A head turns features into outputs for every action, reads values from them, and owns the target and the loss
that belong to what it predicts: the mean (scalar), probabilities of fixed returns (C51), returns at fixed
(QR) or drawn (IQN) fractions of probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from rl_training.functional.q_losses import (
    LossAndErrors,
    categorical_loss,
    project_distribution,
    quantile_huber_loss,
    td_loss,
)
from rl_training.policies.modules import Part
from rl_training.policies.noisy import Noise, apply_linear

MakeLinear = Callable[[int, int], nn.Module]


class Prediction(NamedTuple):
    """A head's outputs `[B, actions, …]`, and the fractions they stand for if those were drawn."""

    outputs: Tensor
    taus: Tensor | None = None


class QHead(Part):
    """The mean return of each action. Subclasses predict `size` numbers an action instead of one.

    `dueling`: outputs are a state's part plus each action's part less the mean of these (Wang et al. 2016).
    `split`: the first half of the features is for the actions' part and the other for the state's.
    """

    def __init__(
        self,
        in_dim: int,
        num_actions: int,
        linear: MakeLinear = nn.Linear,
        *,
        dueling: bool = False,
        split: bool = False,
        size: int = 1,
    ) -> None:
        super().__init__()
        self.num_actions, self.size = num_actions, size
        self.halves = 2 if split else 1
        self.features = in_dim // self.halves
        self.actions = linear(self.features, num_actions * size)
        self.state = linear(self.features, size) if dueling else None
        self.huber = True

    def forward(self, features: Tensor, noise: Noise | None = None) -> Prediction:
        return Prediction(self.outputs(features, noise))

    def outputs(self, features: Tensor, noise: Noise | None) -> Tensor:
        """Numbers from features: `[B, actions, size]`, or `[B, actions]` if there is one an action."""
        own = features if self.halves == 1 else features[:, : self.features]
        outputs = apply_linear(self.actions, own, noise)
        if self.size > 1:
            outputs = outputs.view(-1, self.num_actions, self.size)
        if self.state is None:
            return outputs
        common = features if self.halves == 1 else features[:, self.features :]
        base = apply_linear(self.state, common, noise)
        if self.size > 1:
            base = base.view(-1, 1, self.size)
        return base + outputs - outputs.mean(1, keepdim=True)

    def pick(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The outputs of one action a row."""
        return outputs.gather(1, actions[:, None]).squeeze(1)

    def mix(self, outputs: Tensor, probs: Tensor) -> Tensor:
        """The outputs of an action drawn with `probs` `[B, actions]`."""
        return (outputs * probs).sum(1)

    def values(self, outputs: Tensor) -> Tensor:
        """Mean returns, from outputs of all actions or of one."""
        return outputs

    def target(self, outputs: Tensor, rewards: Tensor, discount: Tensor) -> Tensor:
        """What the outputs should have been, given those of the next state's action."""
        return torch.addcmul(rewards, discount, outputs)

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor, taus: Tensor | None) -> LossAndErrors:
        """The loss of one action's outputs, and the size of each sample's error."""
        return td_loss(outputs, targets, weights, huber=self.huber)


class DistributionalHead(QHead):
    """What heads have in common that predict several numbers an action."""

    def forward(self, features: Tensor, noise: Noise | None = None) -> Prediction:
        outputs = self.outputs(features, noise)
        return Prediction(outputs if self.size > 1 else outputs[..., None])

    def pick(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The outputs of one action a row."""
        index = actions[:, None, None].expand(-1, 1, outputs.shape[2])
        return outputs.gather(1, index).squeeze(1)

    def mix(self, outputs: Tensor, probs: Tensor) -> Tensor:
        """The outputs of an action drawn with `probs`, at each fraction on its own."""
        return (outputs * probs[..., None]).sum(1)


class C51Head(DistributionalHead):
    """Probabilities of `size` fixed returns from `low` to `high` (Bellemare et al. 2017)."""

    support: Tensor

    def set_support(self, low: float, high: float) -> C51Head:
        """The returns that probabilities are given for."""
        self.register_buffer("support", torch.linspace(low, high, self.size), persistent=False)
        return self

    def mix(self, outputs: Tensor, probs: Tensor) -> Tensor:
        """Logits of the mixture of all actions' distributions."""
        return (outputs.softmax(-1) * probs[..., None]).sum(1).log()

    def values(self, outputs: Tensor) -> Tensor:
        """Means of the distributions."""
        return outputs.softmax(-1) @ self.support

    def target(self, outputs: Tensor, rewards: Tensor, discount: Tensor) -> Tensor:
        """The next distribution, discounted, moved by the reward and put back on the support."""
        return project_distribution(outputs.softmax(-1), rewards, discount, self.support)

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor, taus: Tensor | None) -> LossAndErrors:
        """Cross-entropy."""
        return categorical_loss(outputs, targets, weights)


class QuantileHead(DistributionalHead):
    """Returns at `size` evenly spaced fractions of probability (QR-DQN, Dabney et al. 2018)."""

    fractions: Tensor

    def set_fractions(self, count: int) -> Self:
        """How many fractions there are: those in the middle of as many equal parts of [0, 1]."""
        self.register_buffer("fractions", (torch.arange(count) + 0.5) / count, persistent=False)
        return self

    def values(self, outputs: Tensor) -> Tensor:
        """Means over the fractions."""
        return outputs.mean(-1)

    def target(self, outputs: Tensor, rewards: Tensor, discount: Tensor) -> Tensor:
        """Every quantile of the next return makes a sample of this one."""
        return torch.addcmul(rewards[:, None], discount[:, None], outputs)

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor, taus: Tensor | None) -> LossAndErrors:
        """Quantile regression."""
        return quantile_huber_loss(outputs, targets, self.fractions if taus is None else taus, weights)


class ImplicitQuantileHead(QuantileHead):
    """Returns at fractions that are drawn anew for each sample (IQN, Dabney et al. 2018b).

    Features are multiplied by an embedding of the fraction in cosines, so there is one output an action.
    Without noise the fractions are those of QR-DQN: the greedy action is a function of the observation.
    """

    waves: Tensor

    def set_fractions(self, count: int, *, waves: int = 64) -> Self:
        """How many fractions are drawn, and the cosines they are embedded in."""
        super().set_fractions(count)
        self.register_buffer("waves", torch.arange(1, waves + 1) * math.pi, persistent=False)
        self.embed = nn.Linear(waves, self.features * self.halves)
        return self

    def forward(self, features: Tensor, noise: Noise | None = None) -> Prediction:
        batch, count = features.shape[0], len(self.fractions)  # len() would fix the batch of an export
        if noise is None:
            taus = self.fractions.expand(batch, -1)
        else:
            taus = torch.rand(batch, count, generator=noise.generator, device=features.device)
        embedded = torch.relu(self.embed((taus[..., None] * self.waves).cos()))
        mixed = (features[:, None, :] * embedded).flatten(0, 1)
        outputs = self.outputs(mixed, noise).view(batch, count, self.num_actions)
        return Prediction(outputs.transpose(1, 2), taus)
