"""Action-value networks: encoder → hidden layers → head, and the greedy policy over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from rl_training.policies.base import SpacePolicy
from rl_training.policies.cores import MLP
from rl_training.policies.distributions import mask_logits
from rl_training.policies.modules import Part
from rl_training.policies.noisy import Noise, apply_linear
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.policies.obs import read_obs
from rl_training.policies.q_heads import Prediction, QHead
from rl_training.types import Decision, PolicyOutput

if TYPE_CHECKING:
    from rl_training.types import PolicyState, TensorObs


class QFunction(Part):
    """What is predicted about each action's return. `branch` is a last hidden layer of a special kind."""

    def __init__(
        self,
        encoder: nn.Module,
        core: MLP,
        head: QHead,
        branch: nn.Module | None = None,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core
        self.branch = branch
        self.head = head
        self.activation = activation

    def forward(self, inputs: TensorObs, noise: Noise | None = None) -> Prediction:
        features = self.core.forward(self.encoder.forward(inputs))
        if self.branch is not None:
            features = self.activation(apply_linear(self.branch, features, noise))
        return self.head.forward(features, noise)


class QPolicy(SpacePolicy):
    """Takes the action of the highest value, among those a mask allows. Built by `policies.build_q`."""

    def __init__(
        self,
        q: QFunction,
        action_map: nn.Module,
        *,
        noisy: bool = False,
        normalizer: ObsNormalizer | None = None,
        masked: bool = False,
        leaf: str | None = None,
    ) -> None:
        super().__init__(action_map, normalizer, masked=masked, leaf=leaf)
        self.q = q
        self.noisy = noisy

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: Generator | None = None,
    ) -> PolicyOutput:
        """The greedy action for each observation, with new noise for each unless `deterministic`."""
        noise = Noise(generator, shared=False) if self.noisy and not deterministic else None
        return PolicyOutput(self.action_values(obs, noise).argmax(1), state=state)

    def decide(self, obs: TensorObs, state: PolicyState | None = None) -> Decision:
        """The greedy actions and what they are chosen by: what an export computes."""
        values = self.action_values(obs)
        return Decision(values.argmax(1), {"q_values": values})

    def action_values(self, obs: TensorObs, noise: Noise | None = None) -> Tensor:
        """The value of each action; of those a mask forbids, one below all others."""
        inputs, mask = self.inputs(obs)
        return mask_logits(self.q.head.values(self.q.forward(inputs, noise).outputs), mask)

    def values(self, obs: TensorObs, state: PolicyState | None = None) -> Tensor:
        """The value of the greedy action."""
        return self.action_values(obs).amax(1)

    def random_actions(self, obs: TensorObs, generator: Generator) -> Tensor:
        """Actions drawn uniformly from those allowed (from all where a mask allows none)."""
        inputs, mask = read_obs(obs, None, masked=self.masked, leaf=self.leaf)
        rows = (inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))).shape[0]
        count = self.q.head.num_actions
        if mask is None:
            return torch.randint(count, (rows,), generator=generator, device=generator.device)
        ranks = torch.rand(rows, count, generator=generator, device=generator.device)
        return (ranks + (mask != 0)).argmax(1)
