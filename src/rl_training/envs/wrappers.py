"""What the `env` section wraps around an env. Rewards and normalisation are not touched here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_training.envs.backends import Env, describe_failure
from rl_training.envs.config import EnvConfig
from rl_training.envs.spaces import Space, channel_axis, flat_mask, is_image, mask_size, with_action_mask
from rl_training.errors import EnvError
from rl_training.types import ACTION_MASK

if TYPE_CHECKING:
    from rl_training.types import Array

Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]


def wrap(env: Env, settings: EnvConfig) -> Env:
    """Everything the `env` section asks for, in the order in which it acts on an observation."""
    if settings.frame_skip > 1:
        env = FrameSkip(env, settings.frame_skip)
    if settings.pixels:
        env = RenderedPixels(env)
    if is_nested(env.observation_space):
        env = FlattenDict(env)
    if settings.grayscale:
        env = MapImages(env, "env.grayscale", to_gray)
    if settings.resize is not None:
        env = MapImages(env, "env.resize", AreaResize(settings.resize))
    if settings.frame_stack > 1:
        env = FrameStack(env, settings.frame_stack)
    if settings.max_episode_steps is not None:
        env = TimeLimit(env, settings.max_episode_steps)
    return env


class FrameSkip(Wrapper):
    """Repeat each action and sum the rewards; stops where the episode ends."""

    def __init__(self, env: Env, frames: int) -> None:
        super().__init__(env)
        self._frames = frames

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One agent step: up to `frames` steps of the env."""
        total = 0.0
        for _ in range(self._frames):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class RenderedPixels(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the picture the env renders instead of its observation: what a camera sees and nothing else."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise EnvError(f"env.pixels needs an env with render_mode 'rgb_array', not {env.render_mode!r}")
        try:
            env.reset(seed=0)  # nothing can be drawn before; every episode is seeded anew
            shape = self.observation(None).shape
        except EnvError:
            raise
        except Exception as error:
            name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
            raise EnvError(describe_failure(f"env.pixels: rendering {name}", error)) from error
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation: Any) -> Array:
        """The picture as it is now."""
        frame = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
            raise EnvError("env.pixels: render() gives no picture of bytes (height, width, channels)")
        return frame


class ObservationWrapper(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Changes observations entry by entry, whether the observation is a Dict or not."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._space: Space = env.observation_space

    def _selected(self, option: str, choose: Callable[[Space], bool]) -> dict[str, spaces.Box]:
        """The entries that an option applies to; none is an error, for the option would do nothing."""
        entries = dict(self._space) if isinstance(self._space, spaces.Dict) else {"": self._space}
        chosen = {
            k: s for k, s in entries.items() if k != ACTION_MASK and isinstance(s, spaces.Box) and choose(s)
        }
        if not chosen:
            raise EnvError(f"{option} does not apply to the observation space {self._space}")
        return chosen

    def _set_space(self, changed: dict[str, spaces.Box]) -> None:
        old = self._space
        self.observation_space = (
            spaces.Dict({**old, **changed}) if isinstance(old, spaces.Dict) else changed[""]
        )


class MapImages(ObservationWrapper):
    """Apply a function to every image of the observation; three axes `(height, width, channels)` come out."""

    def __init__(self, env: Env, option: str, function: Callable[[Array], Array]) -> None:
        super().__init__(env)
        self._images = self._selected(option, is_image)
        self.selected = tuple(self._images)
        self._function = function
        self._set_space({key: self._mapped(space) for key, space in self._images.items()})

    def _mapped(self, space: spaces.Box) -> spaces.Box:
        shape = self._apply(np.zeros(space.shape, space.dtype)).shape
        return spaces.Box(space.low.min(), space.high.max(), shape, dtype=space.dtype.type)

    def _apply(self, image: Array) -> Array:
        return self._function(channels_last(image)).astype(image.dtype, copy=False)

    def observation(self, observation: Any) -> Any:
        """The observation with its images changed."""
        if not isinstance(observation, dict):
            return self._apply(np.asarray(observation))
        return {k: self._apply(np.asarray(v)) if k in self._images else v for k, v in observation.items()}


def channels_last(image: Array) -> Array:
    """An image as `(height, width, channels)`, from that, from `(height, width)` or from channels first."""
    if image.ndim == 2:
        return image[:, :, None]
    return image if channel_axis(image.shape) == 2 else np.moveaxis(image, 0, -1)


_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601


def to_gray(image: Array) -> Array:
    """RGB (or RGBA, whose alpha is ignored) to one channel; an image of one channel stays as it is."""
    if image.shape[2] < 3:
        return image
    return _round_like(image[:, :, :3] @ _LUMA, image.dtype)[:, :, None]


class AreaResize:
    """Resize by averaging over the area that each new pixel covers, as a product of two small matrices."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._weights: dict[tuple[int, int], Array] = {}

    def __call__(self, image: Array) -> Array:
        """`(height, width, channels)` to the new height and width."""
        rows = self._coverage(image.shape[0], self._shape[0])
        columns = self._coverage(image.shape[1], self._shape[1])
        pixels = image.astype(np.float32)
        tall = np.tensordot(rows, pixels, axes=(1, 0))
        resized = np.moveaxis(np.tensordot(columns, tall, axes=(1, 1)), 0, 1)
        return _round_like(resized, image.dtype)

    def _coverage(self, old: int, new: int) -> Array:
        """How much of each old pixel lies in each new one; rows sum to one."""
        if (old, new) not in self._weights:
            edges = np.linspace(0, old, new + 1)
            pixel = np.arange(old)
            overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
            weights = np.clip(overlap, 0, None)
            self._weights[old, new] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        return self._weights[old, new]


def _round_like(values: Array, dtype: Any) -> Array:
    if np.issubdtype(dtype, np.integer):
        return np.rint(values).astype(dtype)
    return values.astype(dtype)


class FrameStack(ObservationWrapper):
    """The last n observations, oldest first; an episode starts with n times its first one.

    Images are stacked along their channels: `(H, W)` gives `(H, W, n)`, `(H, W, C)` gives `(H, W, n·C)` and
    channels first `(n·C, H, W)`. Anything else gets a new first axis, which an MLP flattens.
    """

    def __init__(self, env: Env, frames: int) -> None:
        super().__init__(env)
        self._frames = frames
        self._boxes = self._selected("env.frame_stack", lambda _: True)
        self._history: dict[str, list[Array]] = {}
        self._set_space({key: self._stacked_space(space) for key, space in self._boxes.items()})

    def _stacked_space(self, space: spaces.Box) -> spaces.Box:
        low, high = (self._join(space, [bound] * self._frames) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)

    def _join(self, space: spaces.Box, frames: list[Array]) -> Array:
        if not is_image(space):
            return np.stack(frames)
        if len(space.shape) == 2:
            return np.stack(frames, axis=2)
        return np.concatenate(frames, axis=channel_axis(space.shape))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Forget the last episode's frames."""
        self._history = {}
        return super().reset(**kwargs)

    def observation(self, observation: Any) -> Any:
        """The last frames including this one."""
        if not isinstance(observation, dict):
            return self._push("", observation)
        return {k: self._push(k, v) if k in self._boxes else v for k, v in observation.items()}

    def _push(self, key: str, value: Any) -> Array:
        frame = np.array(value)  # a copy: envs may reuse their array
        frames = [*self._history.get(key, [frame] * self._frames)[1:], frame]
        self._history[key] = frames
        return self._join(self._boxes[key], frames)


def is_nested(space: Space) -> bool:
    """Whether a Dict has Dicts inside."""
    return isinstance(space, spaces.Dict) and any(isinstance(inner, spaces.Dict) for inner in space.values())


class FlattenDict(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A nested Dict as a flat one: `{"a": {"b": x}}` becomes `{"a/b": x}`."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        flat = _flatten(env.observation_space)
        if len(flat) < _count_leaves(env.observation_space):
            raise EnvError(
                f"the nested observation space {env.observation_space} has two entries of one name"
            )
        self.observation_space = spaces.Dict(flat)

    def observation(self, observation: Any) -> dict[str, Any]:
        """The flat observation."""
        return _flatten(observation)


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict | spaces.Dict):
            flat.update(_flatten(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _count_leaves(space: Any) -> int:
    return sum(map(_count_leaves, space.values())) if isinstance(space, spaces.Dict) else 1


class MaskInObservation(Wrapper):
    """Moves `info["action_mask"]` into the observation, so that it is stored and exists for next states too.

    A step without a mask (at the end of an episode, say) allows every action.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.observation_space = with_action_mask(env.observation_space, env.action_space)
        self._everything = np.ones(mask_size(env.action_space) or 0, dtype=np.int8)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first observation, with its mask."""
        obs, info = self.env.reset(**kwargs)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The next observation, with its mask."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(ACTION_MASK)
        entries = obs if isinstance(obs, dict) else {"obs": obs}
        return {**entries, ACTION_MASK: self._everything if mask is None else flat_mask(mask)}
