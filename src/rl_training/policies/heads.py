"""Heads: from a core's features to a distribution over actions, or to a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from rl_training.policies.distributions import (
    MASKED_LOGIT,
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    StateDependentGaussian,
    mask_logits,
)
from rl_training.policies.modules import Part, linear

if TYPE_CHECKING:
    from rl_training.types import PolicyState

_FOREVER = 2**62


class PolicyHead(Part):
    """One linear layer and a distribution over its outputs; subclasses say which."""

    stateful = False

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        raise NotImplementedError

    def outputs(self, features: Tensor) -> Tensor:
        """What the linear layer says, in float32 whatever the precision before it."""
        return linear(self.linear, features).float()


class CategoricalHead(PolicyHead):
    """Discrete actions."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical.from_logits(mask_logits(self.outputs(features), mask))


class MultiCategoricalHead(PolicyHead):
    """MultiDiscrete actions: the logits of all components in one row, `sum(sizes)` of them."""

    padded: Tensor

    def __init__(self, in_dim: int, sizes: Sequence[int]) -> None:
        super().__init__(in_dim, sum(sizes))
        self.shape = (len(sizes), max(sizes))
        self.ragged = min(sizes) != max(sizes)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        # For each cell of [components, largest n] the logit it holds; the extra last one fills the rest.
        cells = [
            start + j if j < size else sum(sizes)
            for start, size in zip(starts, sizes, strict=True)
            for j in range(max(sizes))
        ]
        self.register_buffer("padded", torch.tensor(cells), persistent=False)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        logits = mask_logits(self.outputs(features), mask)
        if self.ragged:
            logits = F.pad(logits, (0, 1), value=2 * MASKED_LOGIT).index_select(-1, self.padded)
        return MultiCategorical.from_logits(logits.reshape(-1, *self.shape))


class BernoulliHead(PolicyHead):
    """MultiBinary actions."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Bernoulli:
        return Bernoulli(self.outputs(features))


class GaussianHead(PolicyHead):
    """Box actions, with a standard deviation that does not depend on the state."""

    def __init__(self, in_dim: int, out_dim: int, log_std_init: float = 0.0) -> None:
        super().__init__(in_dim, out_dim)
        self.log_std = nn.Parameter(torch.full((out_dim,), float(log_std_init)))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        return DiagonalGaussian(self.outputs(features), self.log_std)


class SquashedGaussianHead(GaussianHead):
    """Box actions that never leave the bounds: [-1, 1], rescaled for the env."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        return SquashedGaussian(self.outputs(features), self.log_std)


class StateDependentHead(PolicyHead):
    """Box actions with state-dependent noise, redrawn every `sample_freq` steps of an env (0: each episode).

    The noise of each env travels in the policy's state: `noise` ε and `noise_left`, the steps it still
    serves. Features are divided by the root of their number, so that `log_std_init` means about what it
    means for a plain Gaussian, and detached, so that noise does not shape them.
    """

    stateful = True

    def __init__(self, in_dim: int, out_dim: int, log_std_init: float = 0.0, sample_freq: int = 0) -> None:
        super().__init__(in_dim, out_dim)
        self.log_std = nn.Parameter(torch.full((in_dim, out_dim), float(log_std_init)))
        self.feature_scale = 1.0 / math.sqrt(in_dim)
        self.period = sample_freq or _FOREVER

    def forward(self, features: Tensor, mask: Tensor | None = None) -> StateDependentGaussian:
        scaled = features.detach().float() * self.feature_scale
        return StateDependentGaussian(self.outputs(features), scaled, self.log_std.exp())

    def explore(
        self, dist: StateDependentGaussian, state: PolicyState | None, generator: Generator | None
    ) -> tuple[Tensor, PolicyState]:
        """Actions under each env's current noise, and the state that carries it on."""
        # Drawn at every step and used where due: to know where would mean to wait for the device.
        noise = dist.draw_noise(generator)
        if state is None:
            left = torch.full((noise.shape[0],), self.period, device=noise.device)
        else:
            due = state["noise_left"] == 0
            noise = torch.where(due[:, None, None], noise, state["noise"])
            left = torch.where(due, self.period, state["noise_left"])
        return dist.sample_from(noise), {"noise": noise, "noise_left": left - 1}

    def initial_state(self, num_envs: int) -> PolicyState:
        """A state whose noise is due to be drawn at the first step."""
        noise = self.log_std.new_zeros((num_envs, *self.log_std.shape), requires_grad=False)
        return {"noise": noise, "noise_left": torch.zeros(num_envs, dtype=torch.int64, device=noise.device)}

    def reset_state(self, state: PolicyState, ended: Tensor) -> PolicyState:
        """Draw new noise at the next step where an episode ended."""
        return {"noise": state["noise"], "noise_left": state["noise_left"].masked_fill(ended, 0)}


class ValueHead(Part):
    """The value of a state."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, 1)

    def forward(self, features: Tensor) -> Tensor:
        return linear(self.linear, features).float().squeeze(-1)
