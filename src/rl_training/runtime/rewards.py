"""From the env's rewards to the learner's: scaling, normalisation, clipping, a whole rollout at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.types import Array


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """What happens to rewards before the learner sees them, in this order."""

    scale: float = 1.0
    normalize: bool = False
    clip: float | None = None
    gamma: float = 0.99


class RewardTransform:
    """Turns raw rewards into the learner's; owns the running deviation of the discounted return."""

    def __init__(self, settings: RewardSettings, num_envs: int) -> None:
        self.settings = settings
        self.returns = np.zeros(num_envs, np.float64)
        self.mean, self.variance, self.count = 0.0, 1.0, 0.0

    @property
    def is_identity(self) -> bool:
        """Nothing to do: the learner sees what the env gave."""
        s = self.settings
        return s.scale == 1.0 and not s.normalize and s.clip is None

    def apply(self, rewards: Array, dones: Array) -> None:
        """Transform a `[T, N]` block in place; statistics are updated first, then used for all of it."""
        settings = self.settings
        if settings.scale != 1.0:
            rewards *= settings.scale
        if settings.normalize:
            self._observe(rewards, dones)
            rewards /= np.sqrt(self.variance + 1e-8)
        if settings.clip is not None:
            np.clip(rewards, -settings.clip, settings.clip, out=rewards)

    def _observe(self, rewards: Array, dones: Array) -> None:
        """Merge the discounted returns seen at every step of the block into the running variance."""
        seen = np.empty(rewards.shape, np.float64)
        for t in range(len(rewards)):
            self.returns = self.returns * self.settings.gamma + rewards[t]
            seen[t] = self.returns
            self.returns = self.returns * (1.0 - dones[t])
        total = self.count + seen.size
        delta = float(seen.mean()) - self.mean
        squares = self.variance * self.count + float(seen.var()) * seen.size
        squares += delta**2 * self.count * seen.size / total
        self.mean += delta * seen.size / total
        self.variance = squares / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Running statistics and the return of each env's current episode."""
        return {"returns": self.returns, "moments": [self.mean, self.variance, float(self.count)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.returns = np.array(state["returns"], np.float64)
        self.mean, self.variance, self.count = state["moments"]
