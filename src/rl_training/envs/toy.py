"""Small problems with known optimal values; importing this module registers them as `axiom/…`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.types import ACTION_MASK

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Guess(gymnasium.Env[Any, Any]):
    """Base: every step shows a random target and the action answers it; `length` answers are an episode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, length: int = 16, render_mode: str | None = None) -> None:
        self.length = length
        self.render_mode = render_mode
        self.target: Any = 0
        self._steps = 0

    def draw(self) -> Any:
        """A new target."""
        raise NotImplementedError

    def score(self, action: Any) -> float:
        """The reward of an answer."""
        raise NotImplementedError

    def show(self) -> Any:
        """The observation that reveals the target."""
        return self.target

    def info(self) -> dict[str, Any]:
        """What goes with the observation."""
        return {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        self.target = self.draw()
        return self.show(), self.info()

    def step(self, action: Any) -> Step:
        """Answer the target and see the next one."""
        reward = self.score(action)
        self._steps += 1
        self.target = self.draw()
        return self.show(), reward, self._steps >= self.length, False, self.info()

    def render(self) -> Any:
        """A grey picture whose brightness grows with the steps taken."""
        return np.full((32, 32, 3), 255 * self._steps // self.length, dtype=np.uint8)


class Identity(Guess):
    """Say the number shown: reward 1 if right. Optimal return: `length`."""

    def __init__(self, n: int = 4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = n
        self.observation_space = spaces.Discrete(n)
        self.action_space = spaces.Discrete(n)

    def draw(self) -> int:
        """A number below n."""
        return int(self.np_random.integers(self.n))

    def score(self, action: Any) -> float:
        """1 for the number shown."""
        return float(action == self.target)


class IdentityBox(Guess):
    """Repeat the vector shown: reward minus the mean squared error. Optimal return: 0."""

    def __init__(self, size: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)

    def draw(self) -> Any:
        """A vector in the unit box."""
        return self.np_random.uniform(-1.0, 1.0, self.observation_space.shape).astype(np.float32)

    def score(self, action: Any) -> float:
        """Minus the mean squared error."""
        return -float(np.mean((np.asarray(action) - self.target) ** 2))


class Spot(IdentityBox):
    """`IdentityBox` whose picture shows the answer, (down, right), as a bright spot: for `env.pixels`."""

    def __init__(self, pixels: int = 24, **kwargs: Any) -> None:
        super().__init__(2, **kwargs)
        self.pixels = pixels

    def render(self) -> Any:
        """The spot, in the middle of the picture if the answer is 0."""
        image = np.zeros((self.pixels, self.pixels, 3), dtype=np.uint8)
        side = self.pixels // 6
        top, left = np.rint((self.target + 1.0) / 2.0 * (self.pixels - side)).astype(int)
        image[top : top + side, left : left + side] = 255
        return image


class MultiDiscrete(Guess):
    """Say several numbers at once: reward is the share that is right. Optimal return: `length`.

    With `masked`, the right numbers and about half of the wrong ones are allowed; a forbidden one costs 1.
    """

    def __init__(self, sizes: tuple[int, ...] = (3, 4), masked: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.MultiDiscrete(list(sizes))
        self.action_space = spaces.MultiDiscrete(list(sizes))
        self.sizes = np.array(sizes)
        self.masked = masked
        self._masks: tuple[Any, ...] = ()

    def draw(self) -> Any:
        """A number for every component, and what else is allowed."""
        target = self.np_random.integers(self.sizes)
        if self.masked:
            self._masks = tuple(self.np_random.integers(0, 2, size, dtype=np.int8) for size in self.sizes)
            for mask, right in zip(self._masks, target, strict=True):
                mask[right] = 1
        return target

    def score(self, action: Any) -> float:
        """The share of right numbers, less 1 for each forbidden one."""
        forbidden = (
            sum(not mask[said] for mask, said in zip(self._masks, action, strict=True)) if self.masked else 0
        )
        return float(np.mean(np.asarray(action) == self.target)) - forbidden

    def info(self) -> dict[str, Any]:
        """The masks, one a component."""
        return {ACTION_MASK: tuple(mask.copy() for mask in self._masks)} if self.masked else {}


class MultiBinary(Guess):
    """Repeat the bits shown: reward is the share that is right. Optimal return: `length`."""

    def __init__(self, size: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.MultiBinary(size)
        self.action_space = spaces.MultiBinary(size)

    def draw(self) -> Any:
        """Random bits."""
        return self.np_random.integers(0, 2, self.action_space.shape, dtype=np.int8)

    def score(self, action: Any) -> float:
        """The share of right bits."""
        return float(np.mean(np.asarray(action) == self.target))


class Masked(Identity):
    """`Identity` in which about half of the wrong answers are forbidden and cost 1. Optimal return: `length`.

    A policy that respects the mask and otherwise guesses never sees a negative reward.
    """

    def __init__(self, n: int = 4, **kwargs: Any) -> None:
        super().__init__(n, **kwargs)
        self._mask = np.ones(n, dtype=np.int8)

    def draw(self) -> int:
        """A number, and what else is allowed."""
        target = super().draw()
        self._mask = self.np_random.integers(0, 2, self.n, dtype=np.int8)
        self._mask[target] = 1
        return target

    def score(self, action: Any) -> float:
        """1 for the number shown, -1 for a forbidden one."""
        return super().score(action) if self._mask[action] else -1.0

    def info(self) -> dict[str, Any]:
        """The mask."""
        return {ACTION_MASK: self._mask.copy()}


class Image(Identity):
    """`Identity` with the number shown as one bright stripe of n in an image. Optimal return: `length`."""

    def __init__(self, n: int = 4, size: int = 36, channels: int = 1, **kwargs: Any) -> None:
        super().__init__(n, **kwargs)
        self.observation_space = spaces.Box(0, 255, (size, size, channels), np.uint8)

    def show(self) -> Any:
        """The picture."""
        return _stripe(self.observation_space.shape or (), self.target, self.n)


class DictObs(Identity):
    """Half of the answer is in an image, half in a vector: both must be read. Optimal return: `length`."""

    def __init__(self, size: int = 36, **kwargs: Any) -> None:
        super().__init__(4, **kwargs)
        self._shape = (size, size, 1)
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, self._shape, np.uint8),
                "vector": spaces.Box(0.0, 1.0, (2,), np.float32),
            }
        )

    def show(self) -> Any:
        """A stripe for the high bit, a one-hot vector for the low bit."""
        high, low = divmod(self.target, 2)
        return {"image": _stripe(self._shape, high, 2), "vector": np.eye(2, dtype=np.float32)[low]}


def _stripe(shape: tuple[int, ...], which: int, of: int) -> Any:
    image = np.zeros(shape, dtype=np.uint8)
    image[:, which * shape[1] // of : (which + 1) * shape[1] // of] = 255
    return image


class Chain(gymnasium.Env[Any, Any]):
    """Walk right (action 1) for reward 1 a step; action 0 stays and gets nothing. The place is observed.

    `truncate=False`: leaving the last of n places terminates. V*(place) = (1 - γ^(n - place)) / (1 - γ); the
    optimal return is n. `truncate=True`: the last place goes on paying and only a limit of 2n steps ends the
    episode, by truncation. V*(place) = 1 / (1 - γ) at every place; the optimal return is 2n.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, n: int = 5, truncate: bool = False, render_mode: str | None = None) -> None:
        self.n, self.truncate, self.render_mode = n, truncate, render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0
        self._steps = 0

    def optimal_value(self, place: int, gamma: float) -> float:
        """V* of a place."""
        return (1.0 if self.truncate else 1.0 - gamma ** (self.n - place)) / (1.0 - gamma)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Back to the first place."""
        super().reset(seed=seed, options=options)
        self.place = self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> Step:
        """Walk or stay."""
        self._steps += 1
        self.place += int(action)
        terminated = not self.truncate and self.place >= self.n
        truncated = self._steps >= 2 * self.n if self.truncate else self._steps >= 100 * self.n
        if self.truncate:
            self.place = min(self.place, self.n - 1)
        return self._show(), float(action), terminated, truncated, {}

    def _show(self) -> Any:
        return np.array([self.place / self.n], dtype=np.float32)


_IDS = (Identity, IdentityBox, Spot, MultiDiscrete, MultiBinary, Masked, Image, DictObs, Chain)
for _cls in _IDS:
    gymnasium.register(f"axiom/{_cls.__name__}-v0", entry_point=f"{__name__}:{_cls.__name__}")
