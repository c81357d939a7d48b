"""What off-policy collection adds to a policy's actions so that it sees more than the policy would choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Generator, Tensor


class Exploration(Protocol):
    """Changes a policy's actions; owns its schedule and whatever it remembers."""

    def set_progress(self, progress: float) -> None:
        """Move the schedule to `progress` in [0, 1] of the run."""

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """The actions to take; `random` are actions drawn uniformly (allowed ones, where there are masks)."""

    def reset(self, ended: Tensor) -> None:
        """Forget what belongs to episodes that have ended."""

    def metrics(self) -> dict[str, float]:
        """What a log line should say about it."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class EpsilonGreedy:
    """A random action with probability ε, decided for each env on its own; ε falls on a line, then stays."""

    def __init__(self, initial: float, final: float, fraction: float) -> None:
        self.initial, self.final, self.fraction = initial, final, fraction
        self.epsilon = initial

    def set_progress(self, progress: float) -> None:
        """ε at this point of the run."""
        done = min(progress / self.fraction, 1.0) if self.fraction > 0 else 1.0
        self.epsilon = self.initial + (self.final - self.initial) * done

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """One coin an env."""
        coins = torch.rand(len(actions), generator=generator, device=actions.device) < self.epsilon
        return torch.where(coins.reshape(-1, *[1] * (actions.dim() - 1)), random, actions)

    def reset(self, ended: Tensor) -> None:
        """Nothing is remembered."""

    def metrics(self) -> dict[str, float]:
        """The current ε."""
        return {"epsilon": self.epsilon}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: ε follows from the progress."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class GaussianNoise:
    """Adds independent normal noise to actions in [-1, 1] and clips; the deviation may fall on a line."""

    def __init__(self, initial: float, final: float | None = None, fraction: float = 1.0) -> None:
        self.initial, self.final, self.fraction = initial, initial if final is None else final, fraction
        self.sigma = initial

    def set_progress(self, progress: float) -> None:
        """The deviation at this point of the run."""
        done = min(progress / self.fraction, 1.0) if self.fraction > 0 else 1.0
        self.sigma = self.initial + (self.final - self.initial) * done

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """Noise for every component."""
        noise = torch.randn(actions.shape, generator=generator, device=actions.device)
        return (actions + self.sigma * noise).clamp(-1.0, 1.0)

    def reset(self, ended: Tensor) -> None:
        """Nothing is remembered."""

    def metrics(self) -> dict[str, float]:
        """The current deviation."""
        return {"noise_sigma": self.sigma}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the deviation follows from the progress."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class OrnsteinUhlenbeckNoise:
    """Noise that drifts back to zero, so that neighbouring steps are pushed the same way (DDPG's)."""

    def __init__(self, sigma: float, theta: float = 0.15, dt: float = 1e-2) -> None:
        self.sigma, self.theta, self.dt = sigma, theta, dt
        self._value: Tensor | None = None

    def set_progress(self, progress: float) -> None:
        """It has no schedule."""

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """One step of the process for every env and component."""
        value = torch.zeros_like(actions) if self._value is None else self._value
        push = torch.randn(actions.shape, generator=generator, device=actions.device)
        self._value = value - self.theta * self.dt * value + self.sigma * self.dt**0.5 * push
        return (actions + self._value).clamp(-1.0, 1.0)

    def reset(self, ended: Tensor) -> None:
        """Ended episodes start from zero again."""
        if self._value is not None:
            self._value = self._value * (~ended).reshape(-1, *[1] * (self._value.dim() - 1))

    def metrics(self) -> dict[str, float]:
        """The process's deviation."""
        return {"noise_sigma": self.sigma}

    def state_dict(self) -> dict[str, Any]:
        """Where the process is."""
        return {"value": self._value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._value = state["value"]
