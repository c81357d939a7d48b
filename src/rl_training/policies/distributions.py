"""Distributions over actions, written functionally: a few tensors and the formulas over them.

All of them take a leading batch axis and sum over the components of an action: `log_prob` and `entropy` are
`[batch]`. Sampling is one draw from the given generator; nothing here reads a value back to the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

MASKED_LOGIT = -1e8
"""Finite, so that gradients and 0·log 0 stay finite, and so low that the probability is exactly 0."""

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_SMALLEST_DRAW = 1e-20  # a draw of exactly 0 would win the race whatever its probability
_LARGEST_ACTION = 1.0 - 2.0**-23  # where tanh is inverted: ±1 has no finite pre-image


class Distribution(Protocol):
    """What a policy needs of a distribution."""

    def sample(self, generator: Generator | None = None) -> Tensor:
        """A random action for each row."""

    def mode(self) -> Tensor:
        """The most likely action of each row."""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability (density) of each row's action."""

    def entropy(self) -> Tensor:
        """Entropy of each row."""

    def kl(self, other: Self) -> Tensor:
        """KL divergence of `other`, a distribution of the same kind, from this one, in each row."""

    def parameters(self) -> dict[str, Tensor]:
        """The numbers that define it, by the names that an export gives them."""


DistributionT = TypeVar("DistributionT", bound=Distribution)


def frozen(dist: DistributionT) -> DistributionT:
    """A copy without gradients that no later change of the policy reaches; parameters may be part of it."""
    parts = {f.name: getattr(dist, f.name).detach().clone() for f in fields(dist)}  # type: ignore[arg-type]
    return type(dist)(**parts)


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Give actions whose mask is 0 probability 0. A row with no action left becomes uniform over all."""
    return logits if mask is None else logits.masked_fill(mask == 0, MASKED_LOGIT)


@dataclass(frozen=True, slots=True)
class Categorical:
    """One choice among n; `logprobs` are normalised, `[…, n]`."""

    logprobs: Tensor

    @classmethod
    def from_logits(cls, logits: Tensor) -> Categorical:
        """Normalise once; everything else reads the result."""
        return cls(torch.log_softmax(logits, dim=-1))

    def sample(self, generator: Generator | None = None) -> Tensor:
        """The winner of an exponential race: the argmax of p / E is distributed as p."""
        draw = torch.empty_like(self.logprobs).exponential_(generator=generator)
        return (self.logprobs - draw.clamp_min_(_SMALLEST_DRAW).log_()).argmax(dim=-1)

    def mode(self) -> Tensor:
        return self.logprobs.argmax(dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.logprobs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.logprobs.exp() * self.logprobs).sum(dim=-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.logprobs.exp() * (self.logprobs - other.logprobs)).sum(dim=-1)

    def parameters(self) -> dict[str, Tensor]:
        return {"logits": self.logprobs}


@dataclass(frozen=True, slots=True)
class MultiCategorical:
    """Several independent choices; `logprobs` are `[batch, components, largest n]`, padded by masked ones."""

    logprobs: Tensor

    @classmethod
    def from_logits(cls, logits: Tensor) -> MultiCategorical:
        return cls(torch.log_softmax(logits, dim=-1))

    def sample(self, generator: Generator | None = None) -> Tensor:
        return Categorical(self.logprobs).sample(generator)

    def mode(self) -> Tensor:
        return self.logprobs.argmax(dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return Categorical(self.logprobs).log_prob(actions).sum(dim=-1)

    def entropy(self) -> Tensor:
        return Categorical(self.logprobs).entropy().sum(dim=-1)

    def kl(self, other: MultiCategorical) -> Tensor:
        return Categorical(self.logprobs).kl(Categorical(other.logprobs)).sum(dim=-1)

    def parameters(self) -> dict[str, Tensor]:
        return {"logits": self.logprobs}


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Independent bits, as floats 0 and 1."""

    logits: Tensor

    def sample(self, generator: Generator | None = None) -> Tensor:
        draw = torch.empty_like(self.logits).uniform_(generator=generator)
        return (draw < torch.sigmoid(self.logits)).float()

    def mode(self) -> Tensor:
        return (self.logits > 0).float()

    def log_prob(self, actions: Tensor) -> Tensor:
        return (actions * self.logits - F.softplus(self.logits)).sum(dim=-1)

    def entropy(self) -> Tensor:
        return (F.softplus(self.logits) - self.logits * torch.sigmoid(self.logits)).sum(dim=-1)

    def kl(self, other: Bernoulli) -> Tensor:
        surplus = torch.sigmoid(self.logits) * (self.logits - other.logits)
        return (surplus + F.softplus(other.logits) - F.softplus(self.logits)).sum(dim=-1)

    def parameters(self) -> dict[str, Tensor]:
        return {"logits": self.logits}


@dataclass(frozen=True, slots=True)
class DiagonalGaussian:
    """Independent normals; `log_std` broadcasts against `mean`. Samples carry gradients to both."""

    mean: Tensor
    log_std: Tensor

    def sample(self, generator: Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        z = (actions - self.mean) * (-self.log_std).exp()
        return -(0.5 * z.square() + (self.log_std + _HALF_LOG_2PI)).sum(dim=-1)

    def entropy(self) -> Tensor:
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).expand_as(self.mean).sum(dim=-1)

    def kl(self, other: DiagonalGaussian) -> Tensor:
        shift = (self.mean - other.mean) * (-other.log_std).exp()
        log_ratio = self.log_std - other.log_std
        return (0.5 * (torch.expm1(2.0 * log_ratio) + shift.square()) - log_ratio).sum(dim=-1)

    def parameters(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "log_std": self.log_std.expand_as(self.mean)}


@dataclass(frozen=True, slots=True)
class SquashedGaussian:
    """tanh of independent normals: actions in [-1, 1]. Samples carry gradients."""

    mean: Tensor
    log_std: Tensor

    def sample(self, generator: Generator | None = None) -> Tensor:
        return torch.tanh(self._normal().sample(generator))

    def sample_with_log_prob(self, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """An action and its log-density from the value before tanh: exact however close to the bounds."""
        u = self._normal().sample(generator)
        return torch.tanh(u), self._log_prob_before_tanh(u)

    def mode(self) -> Tensor:
        """tanh of the mean: the median, and what is customarily played; the density's peak has no formula."""
        return torch.tanh(self.mean)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-density of stored actions, through an inverse that stays finite at ±1."""
        return self._log_prob_before_tanh(torch.atanh(actions.clamp(-_LARGEST_ACTION, _LARGEST_ACTION)))

    def entropy(self) -> Tensor:
        """The normal's entropy plus the mean log-slope of tanh, integrated over z by the trapezoid rule."""
        z = torch.linspace(-6.0, 6.0, 33, device=self.mean.device)
        weights = (-0.5 * z.square() - _HALF_LOG_2PI).exp() * (12.0 / 32)
        u = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * z
        return self._normal().entropy() + (_log_slope_of_tanh(u) * weights).sum(dim=(-2, -1))

    def kl(self, other: SquashedGaussian) -> Tensor:
        """That of the normals: squashing both in the same way changes nothing."""
        return self._normal().kl(other._normal())

    def parameters(self) -> dict[str, Tensor]:
        """Those of the normals before tanh."""
        return self._normal().parameters()

    def _normal(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean, self.log_std)

    def _log_prob_before_tanh(self, u: Tensor) -> Tensor:
        return self._normal().log_prob(u) - _log_slope_of_tanh(u).sum(dim=-1)


def _log_slope_of_tanh(u: Tensor) -> Tensor:
    """log(1 − tanh²u), without ever forming 1 − tanh²u."""
    return 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))


@dataclass(frozen=True, slots=True)
class StateDependentGaussian:
    """Noise that is a linear function of features φ: a = mean + φ·(std ∘ ε) (gSDE, Raffin et al., 2021).

    While ε `[batch, features, actions]` is held fixed the policy is deterministic, so exploration is smooth.
    Over ε, the action is normal with variance φ²·std²; log-probabilities need no more than that.
    """

    mean: Tensor
    features: Tensor
    std: Tensor

    def draw_noise(self, generator: Generator | None = None) -> Tensor:
        """A fresh ε for every row."""
        shape = (self.mean.shape[0], *self.std.shape)
        return torch.randn(shape, generator=generator, device=self.mean.device, dtype=self.mean.dtype)

    def sample_from(self, noise: Tensor) -> Tensor:
        """The actions under a given ε."""
        return self.mean + torch.bmm(self.features.unsqueeze(1), self.std * noise).squeeze(1)

    def sample(self, generator: Generator | None = None) -> Tensor:
        return self.sample_from(self.draw_noise(generator))

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        return self._marginal().log_prob(actions)

    def entropy(self) -> Tensor:
        return self._marginal().entropy()

    def kl(self, other: StateDependentGaussian) -> Tensor:
        return self._marginal().kl(other._marginal())

    def parameters(self) -> dict[str, Tensor]:
        return self._marginal().parameters()

    def _marginal(self) -> DiagonalGaussian:
        variance = (self.features.square() @ self.std.square()).float() + 1e-6  # φ may be 0
        return DiagonalGaussian(self.mean, 0.5 * variance.log())
