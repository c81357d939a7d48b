"""What policies of all kinds share: how they read observations, and how envs read their actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from rl_training.policies.modules import Part
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.policies.obs import read_obs

if TYPE_CHECKING:
    from rl_training.types import PolicyState, TensorObs


class Reader(Part):
    """A network that reads an env's observations.

    `masked`: the observation is a Dict with an action mask; `leaf`: the one key of it the encoder reads, if
    it reads a plain observation.
    """

    def __init__(
        self, normalizer: ObsNormalizer | None = None, *, masked: bool = False, leaf: str | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.masked, self.leaf = masked, leaf

    def inputs(self, obs: TensorObs) -> tuple[TensorObs, Tensor | None]:
        """What the encoder reads, normalised, and the action mask."""
        return read_obs(obs, self.normalizer, masked=self.masked, leaf=self.leaf)


class SpacePolicy(Reader):
    """A policy for an env's spaces; without a memory, unless a subclass has one."""

    def __init__(
        self,
        action_map: nn.Module,
        normalizer: ObsNormalizer | None = None,
        *,
        masked: bool = False,
        leaf: str | None = None,
    ) -> None:
        super().__init__(normalizer, masked=masked, leaf=leaf)
        self.action_map = action_map

    def env_actions(self, actions: Tensor) -> Tensor:
        """The env's form of the policy's actions: offset, clipped or rescaled to its action space."""
        mapped: Tensor = self.action_map.forward(actions)
        return mapped

    def initial_state(self, num_envs: int) -> PolicyState | None:
        """The state before the first step, or None for a policy that carries none."""
        return None

    def reset_state(self, state: PolicyState | None, ended: Tensor) -> PolicyState | None:
        """The state with the rows of ended episodes (a bool row) begun anew."""
        return state
