"""Small problems with goals and sparse rewards; importing this module registers them as `axiom/…`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.types import ACHIEVED_GOAL, DESIRED_GOAL, IS_SUCCESS

if TYPE_CHECKING:
    from rl_training.types import Array

Step = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class GoalEnv(gymnasium.Env[Any, Any]):
    """Base: reward -1 a step, 0 where the goal is reached; only the goal and the time decide the end."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, length: int, observation: spaces.Space[Any], goals: spaces.Space[Any]) -> None:
        self.length = length
        self.observation_space = spaces.Dict(
            {"observation": observation, ACHIEVED_GOAL: goals, DESIRED_GOAL: goals}
        )
        self.goal: Any = None
        self._steps = 0

    def draw(self) -> None:
        """A new start and a new goal."""
        raise NotImplementedError

    def move(self, action: Any) -> None:
        """What an action does."""
        raise NotImplementedError

    def observe(self) -> tuple[Any, Any]:
        """The observation, and which goal it achieves."""
        raise NotImplementedError

    def reached(self, achieved: Any, desired: Any) -> Array:
        """Whether goals are reached, for one or for rows of them."""
        raise NotImplementedError

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Array:
        """0 where the goal is reached, else -1."""
        return self.reached(achieved, desired).astype(np.float32) - 1.0

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Array:
        """Never: an episode goes on at its goal."""
        return np.zeros_like(self.reached(achieved, desired))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        self.draw()
        return self._show(), {}

    def step(self, action: Any) -> Step:
        """Move, and see how far that is from the goal."""
        self.move(action)
        self._steps += 1
        obs = self._show()
        judged = (obs[ACHIEVED_GOAL], obs[DESIRED_GOAL])
        terminated = bool(self.compute_terminated(*judged, {}))
        info = {IS_SUCCESS: bool(self.reached(*judged))}
        return obs, float(self.compute_reward(*judged, info)), terminated, self._steps >= self.length, info

    def _show(self) -> dict[str, Any]:
        observation, achieved = self.observe()
        return {"observation": observation, ACHIEVED_GOAL: achieved, DESIRED_GOAL: self.goal.copy()}


class BitFlip(GoalEnv):
    """Flip one of `n_bits` bits a step until they equal the goal, which ends the episode.

    There are `n_bits` steps for it. The best policy flips each wrong bit once: its return is 1 minus the
    number of wrong bits. Chance does not find one state among 2^n_bits (Andrychowicz et al. 2017).
    """

    def __init__(self, n_bits: int = 15, render_mode: str | None = None) -> None:
        bits = spaces.MultiBinary(n_bits)
        super().__init__(n_bits, bits, bits)
        self.action_space = spaces.Discrete(n_bits)
        self.render_mode = render_mode
        self.bits = np.zeros(n_bits, np.int8)

    def draw(self) -> None:
        """Random bits and another pattern of them."""
        self.bits, self.goal = self.np_random.integers(0, 2, (2, len(self.bits)), dtype=np.int8)
        if self.reached(self.bits, self.goal):
            self.goal[self.np_random.integers(len(self.bits))] ^= 1

    def move(self, action: Any) -> None:
        """Flip a bit."""
        self.bits[action] ^= 1

    def observe(self) -> tuple[Any, Any]:
        """The bits, which are also what is achieved."""
        return self.bits.copy(), self.bits.copy()

    def reached(self, achieved: Any, desired: Any) -> Array:
        """Every bit is right."""
        return np.asarray((np.asarray(achieved) == desired).all(-1))

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Array:
        """At the goal: there is no action that stays."""
        return self.reached(achieved, desired)


class PointGoal(GoalEnv):
    """Push a point with some inertia through a square to within `radius` of the goal, and stay there.

    An episode always lasts `length` steps; it is a success if the point is at its goal in the end.
    """

    def __init__(self, length: int = 50, radius: float = 0.1, render_mode: str | None = None) -> None:
        place = spaces.Box(-1.0, 1.0, (2,), np.float32)
        super().__init__(length, spaces.Box(-1.0, 1.0, (4,), np.float32), place)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.radius, self.render_mode = radius, render_mode
        self.place, self.velocity = np.zeros(2, np.float32), np.zeros(2, np.float32)

    def draw(self) -> None:
        """At rest somewhere, with a goal somewhere else."""
        self.place, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        self.velocity = np.zeros(2, np.float32)

    def move(self, action: Any) -> None:
        """Half of the speed is lost and the push adds to it; walls stop the point."""
        push = np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        self.velocity = (0.5 * self.velocity + 0.05 * push).astype(np.float32)
        self.place = np.clip(self.place + self.velocity, -1.0, 1.0)

    def observe(self) -> tuple[Any, Any]:
        """Place and velocity; what is achieved is the place."""
        return np.concatenate([self.place, self.velocity]), self.place.copy()

    def reached(self, achieved: Any, desired: Any) -> Array:
        """No farther away than the radius."""
        return np.asarray(np.linalg.norm(np.asarray(achieved) - desired, axis=-1) <= self.radius)


for _cls in (BitFlip, PointGoal):
    gymnasium.register(f"axiom/{_cls.__name__}-v0", entry_point=f"{__name__}:{_cls.__name__}")
