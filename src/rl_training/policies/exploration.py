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


class Level:
    """A number that falls on a line and then stays; in use a tensor, which recorded steps follow."""

    def __init__(self, initial: float, final: float, fraction: float) -> None:
        self.initial, self.final, self.fraction = initial, final, fraction
        self.value = initial
        self._on_device: Tensor | None = None

    def set_progress(self, progress: float) -> None:
        """The number at this point of the run."""
        done = min(progress / self.fraction, 1.0) if self.fraction > 0 else 1.0
        value = self.initial + (self.final - self.initial) * done
        if value != self.value:
            self.value = value
            if self._on_device is not None:
                self._on_device.fill_(value)

    def on(self, device: torch.device) -> Tensor:
        """The number where it is used: a tensor is taken sooner than a number that has to become one."""
        if self._on_device is None:
            with torch.inference_mode(False):  # it is asked for while collecting, and changed in between
                self._on_device = torch.tensor(self.value, device=device)
        return self._on_device


class EpsilonGreedy:
    """A random action with probability ε, decided for each env on its own; ε falls on a line, then stays."""

    def __init__(self, initial: float, final: float, fraction: float) -> None:
        self._level = Level(initial, final, fraction)

    @property
    def epsilon(self) -> float:
        """The probability now."""
        return self._level.value

    def set_progress(self, progress: float) -> None:
        """ε at this point of the run."""
        self._level.set_progress(progress)

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """One coin an env."""
        device = actions.device
        coins = torch.rand(actions.shape[0], generator=generator, device=device) < self._level.on(device)
        return torch.where(_beside(coins, actions), random, actions)

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


class RepeatedEpsilonGreedy(EpsilonGreedy):
    """ε-greedy whose random actions last: each is repeated for n steps, P(n) ∝ n⁻² (Dabney et al. 2021).

    Single random actions cancel each other out. Repeated ones get somewhere: up a hill, out of a room.
    """

    LONGEST = 1000
    """Where the distribution is cut off."""

    def __init__(self, initial: float, final: float, fraction: float) -> None:
        super().__init__(initial, final, fraction)
        weights = torch.arange(1, self.LONGEST + 1, dtype=torch.float64) ** -2.0
        self._chances = (weights.cumsum(0) / weights.sum())[:-1].float()
        self._left: Tensor | None = None
        """Steps for which each env goes on with its `_action`."""
        self._action: Tensor | None = None

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """One coin for each env that is free, and a number of steps where it falls."""
        device, num_envs = actions.device, len(actions)
        if self._left is None or self._action is None:
            self._left, self._action = torch.zeros(num_envs, dtype=torch.int64), torch.zeros_like(actions)
        left, action = self._left, self._action = self._left.to(device), self._action.to(device)
        self._chances = self._chances.to(device)
        coins, lengths = torch.rand(2, num_envs, generator=generator, device=device)
        begins = (left == 0) & (coins < self._level.on(device))
        left.copy_(torch.where(begins, torch.searchsorted(self._chances, lengths) + 1, left))
        action.copy_(torch.where(_beside(begins, action), random, action))
        goes_on = left > 0
        left.sub_(goes_on.long())
        return torch.where(_beside(goes_on, actions), action, actions)

    def reset(self, ended: Tensor) -> None:
        """A new episode begins free."""
        if self._left is not None:
            self._left.mul_(~ended)

    def state_dict(self) -> dict[str, Any]:
        """What every env is about to repeat, and how often."""
        parts = {"left": self._left, "action": self._action}
        return {name: None if part is None else part.clone() for name, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._left, self._action = (
            None if part is None else part.clone() for part in (state["left"], state["action"])
        )


def _beside(flags: Tensor, values: Tensor) -> Tensor:
    """A flag an env, in a shape that reaches over each env's values."""
    return flags.reshape(-1, *[1] * (values.dim() - 1))


class GaussianNoise:
    """Adds independent normal noise to actions in [-1, 1] and clips; the deviation may fall on a line."""

    def __init__(self, initial: float, final: float | None = None, fraction: float = 1.0) -> None:
        self._level = Level(initial, initial if final is None else final, fraction)

    @property
    def sigma(self) -> float:
        """The deviation now."""
        return self._level.value

    def set_progress(self, progress: float) -> None:
        """The deviation at this point of the run."""
        self._level.set_progress(progress)

    def explore(self, actions: Tensor, random: Tensor, generator: Generator) -> Tensor:
        """Noise for every component."""
        noise = torch.empty_like(actions).normal_(generator=generator)
        return noise.mul_(self._level.on(actions.device)).add_(actions).clamp_(-1.0, 1.0)

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
        if self._value is None:
            self._value = torch.zeros_like(actions)
        value = self._value = self._value.to(actions.device)  # a checkpoint's is on the CPU
        push = torch.randn(actions.shape, generator=generator, device=actions.device)
        value.copy_(value - self.theta * self.dt * value + self.sigma * self.dt**0.5 * push)
        return (actions + value).clamp(-1.0, 1.0)

    def reset(self, ended: Tensor) -> None:
        """Ended episodes start from zero again."""
        if self._value is not None:
            self._value *= _beside(~ended, self._value)

    def metrics(self) -> dict[str, float]:
        """The process's deviation."""
        return {"noise_sigma": self.sigma}

    def state_dict(self) -> dict[str, Any]:
        """Where the process is."""
        return {"value": None if self._value is None else self._value.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        value: Tensor | None = state["value"]
        self._value = None if value is None else value.clone()
