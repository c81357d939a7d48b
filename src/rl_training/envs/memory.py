"""Problems that a single observation does not solve; importing this module registers them as `axiom/…`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from rl_training.envs.toy import Identity, Step


class CartPoleNoVelocity(CartPoleEnv):
    """CartPole that shows where the cart and the pole are, but not how fast they move."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        space = self.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = super().reset(seed=seed, options=options)
        return obs[::2].copy(), info

    def step(self, action: Any) -> Step:
        """As CartPole's."""
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return obs[::2].copy(), float(reward), terminated, truncated, info


class PendulumNoVelocity(PendulumEnv):
    """Pendulum that shows its angle (cosine and sine), but not how fast it turns."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = super().reset(seed=seed, options=options)
        return obs[:2].copy(), info

    def step(self, action: Any) -> Step:
        """As Pendulum's."""
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return obs[:2].copy(), float(reward), terminated, truncated, info


class Recall(Identity):
    """`Identity` whose number is shown at the first step only: it is to be said at every step.

    Optimal return: `length`. Without a memory at most 1 + (length - 1) / n are to be had on average.
    """

    def __init__(self, n: int = 4, length: int = 8, **kwargs: Any) -> None:
        super().__init__(n, length=length, **kwargs)
        self.observation_space = spaces.Discrete(n + 1)

    def draw(self) -> int:
        """A number below n, kept for the episode."""
        return super().draw() if self._steps == 0 else int(self.target)

    def show(self) -> int:
        """The number, or n for nothing."""
        return int(self.target) if self._steps == 0 else self.n


for _cls, _limit in ((CartPoleNoVelocity, 500), (PendulumNoVelocity, 200), (Recall, None)):
    gymnasium.register(
        f"axiom/{_cls.__name__}-v0", entry_point=f"{__name__}:{_cls.__name__}", max_episode_steps=_limit
    )
