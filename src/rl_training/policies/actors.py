"""The policies of off-policy actor-critics. Their encoder is shared with the critics, which train it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Generator, Tensor, nn

from rl_training.policies.base import SpacePolicy
from rl_training.policies.batch_renorm import RenormMLP
from rl_training.policies.cores import MLP
from rl_training.policies.distributions import Categorical, SquashedGaussian, mask_logits
from rl_training.policies.modules import linear
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.types import ACTION_MASK, Decision, PolicyOutput

if TYPE_CHECKING:
    from rl_training.types import PolicyState, TensorObs

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class Actor(SpacePolicy):
    """Encoder → core → one linear layer; subclasses say what its outputs mean."""

    def __init__(
        self,
        *,
        encoder: nn.Module,
        core: MLP,
        outputs: int,
        action_map: nn.Module,
        action_shape: tuple[int, ...] = (),
        normalizer: ObsNormalizer | None = None,
        masked: bool = False,
        leaf: str | None = None,
    ) -> None:
        super().__init__(action_map, normalizer, masked=masked, leaf=leaf)
        self.encoder = encoder
        self.core = core
        self.head = nn.Linear(core.out_dim, outputs)
        self.action_shape = action_shape

    def own_parameters(self) -> list[nn.Parameter]:
        """What the actor's loss trains: everything but the encoder."""
        return [*self.core.parameters(), *self.head.parameters()]

    def mask(self, obs: TensorObs) -> Tensor | None:
        """The action mask of an observation that has one."""
        return obs[ACTION_MASK] if self.masked and isinstance(obs, dict) else None

    def features(self, obs: TensorObs) -> Tensor:
        """Observations as rows of numbers, for actor and critics alike."""
        encoded: Tensor = self.encoder.forward(self.inputs(obs)[0])
        return encoded

    def outputs(self, features: Tensor, training: bool = False) -> Tensor:
        """What the last layer says, in float32; `training` matters to batch renormalisation alone."""
        core = self.core
        latent = core.forward(features, training) if isinstance(core, RenormMLP) else core.forward(features)
        return linear(self.head, latent).float()

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: Generator | None = None,
    ) -> PolicyOutput:
        """Choose an action for each observation."""
        raise NotImplementedError

    def decide(self, obs: TensorObs, state: PolicyState | None = None) -> Decision:
        """What it plays when it does not explore: what an export computes."""
        raise NotImplementedError

    def random_actions(self, obs: TensorObs, generator: Generator) -> Tensor:
        """Uniform actions in [-1, 1]."""
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        shape = (first.shape[0], *self.action_shape)
        return torch.empty(shape, device=first.device).uniform_(-1.0, 1.0, generator=generator)

    def values(self, obs: TensorObs, state: PolicyState | None = None) -> NoReturn:
        """An actor knows no values; its critics do."""
        raise NotImplementedError("the values of an off-policy actor-critic belong to its critics")


class DeterministicActor(Actor):
    """Box actions by tanh of the last layer: TD3 and DDPG."""

    def action(self, features: Tensor) -> Tensor:
        """Flat actions in [-1, 1]."""
        return torch.tanh(self.outputs(features))

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: Generator | None = None,
    ) -> PolicyOutput:
        """The one action of each observation; exploration is added by whoever collects."""
        return PolicyOutput(self.action(self.features(obs)).reshape(-1, *self.action_shape), state=state)

    def decide(self, obs: TensorObs, state: PolicyState | None = None) -> Decision:
        """The one action; it rests on nothing else."""
        return Decision(self.action(self.features(obs)).reshape(-1, *self.action_shape), {})


class GaussianActor(Actor):
    """Box actions by a squashed Gaussian whose mean and deviation both depend on the state: SAC."""

    def distribution(self, features: Tensor, training: bool = False) -> SquashedGaussian:
        """Over flat actions in [-1, 1]."""
        mean, log_std = self.outputs(features, training).chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: Generator | None = None,
    ) -> PolicyOutput:
        """A sample, or tanh of the mean."""
        dist = self.distribution(self.features(obs))
        actions = dist.mode() if deterministic else dist.sample(generator)
        return PolicyOutput(actions.reshape(-1, *self.action_shape), state=state)

    def decide(self, obs: TensorObs, state: PolicyState | None = None) -> Decision:
        """tanh of the mean."""
        dist = self.distribution(self.features(obs))
        return Decision(dist.mode().reshape(-1, *self.action_shape), dist.parameters())


class CategoricalActor(Actor):
    """Discrete actions: discrete SAC."""

    def distribution(self, features: Tensor, mask: Tensor | None = None) -> Categorical:
        """Over the choices; forbidden ones have probability 0."""
        return Categorical.from_logits(mask_logits(self.outputs(features), mask))

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: Generator | None = None,
    ) -> PolicyOutput:
        """A sample, or the likeliest choice."""
        dist = self.distribution(self.features(obs), self.mask(obs))
        return PolicyOutput(dist.mode() if deterministic else dist.sample(generator), state=state)

    def decide(self, obs: TensorObs, state: PolicyState | None = None) -> Decision:
        """The likeliest choice."""
        dist = self.distribution(self.features(obs), self.mask(obs))
        return Decision(dist.mode(), dist.parameters())

    def random_actions(self, obs: TensorObs, generator: Generator) -> Tensor:
        """Uniform over the allowed choices."""
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        logits = torch.zeros(first.shape[0], self.head.out_features, device=first.device)
        return Categorical.from_logits(mask_logits(logits, self.mask(obs))).sample(generator)
