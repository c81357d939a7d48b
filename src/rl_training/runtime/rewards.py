"""From the env's rewards to the learner's: scaling, normalisation, clipping, a whole rollout at a time.

Arrays and tensors are treated alike, so that rewards on a device are never read by the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import NonFiniteError
from rl_training.types import Averaging


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """What happens to rewards before the learner sees them, in this order."""

    scale: float = 1.0
    normalize: bool = False
    clip: float | None = None
    gamma: float = 0.99


class RewardTransform:
    """Turns raw rewards into the learner's; owns the running deviation of the discounted return."""

    def __init__(self, settings: RewardSettings, num_envs: int, averaging: Averaging | None = None) -> None:
        self.settings, self.averaging = settings, averaging
        self.is_identity = settings.scale == 1.0 and not settings.normalize and settings.clip is None
        """Nothing to do: the learner sees what the env gave."""
        self._num_envs = num_envs
        self.returns: Any = np.zeros(num_envs, np.float64)
        self.mean: Any = 0.0
        self.variance: Any = 1.0
        self.count: Any = 0.0
        self._first_bad: Tensor | None = None

    def watch_on(self, device: torch.device) -> None:
        """Have `watch` keep what it finds on `device`: for those who look only after `apply`.

        Clipped, infinity is a number like any other. Rewards that stay as they are can be looked at later.
        """
        if not self.is_identity:
            self._first_bad = torch.full((), -1, device=device)

    def watch(self, rewards: Any) -> None:
        """Take note of the first raw reward of a `[T, N]` block that is no number. The host reads nothing."""
        if self._first_bad is not None:
            bad = torch.as_tensor(rewards).isfinite().logical_not().flatten()
            self._first_bad.copy_(torch.where(bad.any(), bad.to(torch.uint8).argmax(), -1))

    def require_finite(self) -> None:
        """Refuse the block that was watched last if it was broken."""
        place = -1 if self._first_bad is None else int(self._first_bad)
        if place >= 0:
            step, env = divmod(place, len(self.returns))
            where = f"the reward of env {env} at step {step} of the rollout"
            raise NonFiniteError(f"{where} is NaN or infinite: the env is broken")

    def apply(self, rewards: Any, dones: Any) -> None:
        """Transform a `[T, N]` block in place; statistics are updated first, then used for all of it."""
        settings = self.settings
        if settings.scale != 1.0:
            rewards *= settings.scale
        if settings.normalize:
            self._observe(rewards, dones)
            rewards /= _sqrt(self.variance + 1e-8)
        if settings.clip is not None:
            rewards[...] = rewards.clip(-settings.clip, settings.clip)

    def _observe(self, rewards: Any, dones: Any) -> None:
        """Merge the discounted returns seen at every step of the block into the running variance."""
        if isinstance(rewards, Tensor):
            self._move_to(rewards.device)
            seen: Any = torch.empty(rewards.shape, dtype=torch.float64, device=rewards.device)
        else:
            seen = np.empty(rewards.shape, np.float64)
        for t in range(len(rewards)):
            self.returns *= self.settings.gamma
            self.returns += rewards[t]
            seen[t] = self.returns
            self.returns *= 1.0 - dones[t]
        size = len(rewards) * len(self.returns) * (1 if self.averaging is None else self.averaging.members)
        total = self.count + size
        mean = self._shared(seen.mean())
        delta = mean - self.mean
        squares = self.variance * self.count + self._shared(((seen - mean) ** 2).mean()) * size
        squares = squares + delta**2 * self.count * size / total
        self.mean += delta * size / total
        self.count += size
        if isinstance(self.variance, Tensor):
            self.variance.copy_(squares / total)
        else:
            self.variance = squares / total

    def _shared(self, number: Any) -> Any:
        """The mean of what all learners have, where there are several."""
        if self.averaging is None:
            return number
        mean = self.averaging(torch.as_tensor(number, dtype=torch.float64))
        return mean if isinstance(number, Tensor) else mean.item()

    def _move_to(self, device: torch.device) -> None:
        """Keep everything on `device` from now on, changed in place as a captured graph wants it."""
        if not isinstance(self.returns, Tensor):
            for name in ("returns", "mean", "variance", "count"):
                setattr(self, name, torch.tensor(getattr(self, name), dtype=torch.float64, device=device))

    @property
    def moments(self) -> list[float]:
        """Mean and variance of the discounted returns seen so far, and how many that were."""
        return [float(self.mean), float(self.variance), float(self.count)]

    @moments.setter
    def moments(self, moments: Sequence[float]) -> None:
        self.mean, self.variance, self.count = moments

    def state_dict(self) -> dict[str, Any]:
        """Running statistics and the return of each env's current episode."""
        return {"returns": 1.0 * self.returns, "moments": self.moments}  # a copy, of either kind

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.returns = torch.as_tensor(state["returns"], dtype=torch.float64).numpy(force=True).copy()
        self.moments = state["moments"]

    def abandon(self) -> None:
        """Begin the return of every env anew: its episode could not be restored, and envs may be others."""
        self.returns = np.zeros(self._num_envs, np.float64)


def _sqrt(x: Any) -> Any:
    return x.sqrt() if isinstance(x, Tensor) else np.sqrt(x)
