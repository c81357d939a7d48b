"""ALE games by the Atari protocol, one at a time: the twin of ALE's vector env, with a state that is saved.

Frame skip, max-pooling, scaling, no-op starts and sticky actions are those of ALE's own vector env, to the
pixel: an episode is the same in every backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_training.envs.backends import Env
from rl_training.envs.config import AtariConfig, EnvConfig
from rl_training.envs.registered import make_registered
from rl_training.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rl_training.types import Array

MAX_FRAMES = 108_000
"""Half an hour at 60 frames a second: the customary limit of a game."""
_OWN_KEYS = {
    "frameskip": "env.frame_skip",
    "repeat_action_probability": "env.atari.sticky_actions",
    "full_action_space": "env.atari.full_action_space",
    "max_num_frames_per_episode": "env.max_episode_steps",
    "obs_type": "env.atari.preprocess",
}


def make_atari(
    env_id: str, env_kwargs: Mapping[str, Any], settings: EnvConfig, render_mode: str | None = None
) -> Env:
    """One game as the `env` section describes it."""
    for key, ours in _OWN_KEYS.items():
        if key in env_kwargs:
            raise EnvError(f"env_kwargs.{key}: with env.atari.preprocess this is decided by {ours}")
    protocol = {
        "frameskip": 1,
        "repeat_action_probability": settings.atari.sticky_actions,
        "full_action_space": settings.atari.full_action_space,
        "max_num_frames_per_episode": None,
        "obs_type": "grayscale",
    }
    made = make_registered(env_id, {**env_kwargs, **protocol}, render_mode=render_mode)
    game = AtariGame(made.unwrapped, settings.atari, settings.frame_skip, settings.frame_stack)
    return TimeLimit(game, game_steps(settings))


def game_steps(settings: EnvConfig) -> int:
    """After how many agent steps a game is cut off."""
    return settings.max_episode_steps or MAX_FRAMES // settings.frame_skip


class AtariGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Drives the emulator of an `AtariEnv` directly; shows the last frames, oldest first.

    A game starts with its first frame repeated. Where it ends within a skip, the last frames are not taken
    in: nobody acts on them.
    """

    def __init__(self, env: Env, settings: AtariConfig, frame_skip: int, frame_stack: int) -> None:
        super().__init__(env)
        self._settings, self._frame_skip = settings, frame_skip
        game: Any = env
        self._game, self._ale = game, game.ale
        self._actions: list[Any] = list(game._action_set)
        ale_py = importlib.import_module("ale_py")
        self._noop, fire = ale_py.Action.NOOP, ale_py.Action.FIRE
        self._fire = fire if settings.fire_reset and fire in self._actions else None
        size = settings.screen_size
        self._resize = AreaScaling(self._ale.getScreenDims(), (size, size))
        self._frames = [np.zeros(self._ale.getScreenDims(), np.uint8) for _ in range(2)]
        self._stack = np.zeros((frame_stack, size, size), np.uint8)
        self._lives = 0
        self.life_lost = False
        """Whether the last step ended the episode for a learner who plays for a single life."""
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)
        self.metadata = {**env.metadata, "render_fps": 60 / frame_skip}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """A new game; `seed` decides its idle frames and sticky actions."""
        drawn = int(np.random.default_rng(seed).integers(2**31)) if seed is None else seed
        gymnasium.Env.reset(self._game, seed=drawn)
        self._ale.setInt("random_seed", drawn)
        self._game.load_game()
        self._ale.reset_game()
        self._start(drawn)
        self._ale.getScreenGrayscale(self._frames[0])
        self._frames[1].fill(0)
        self._stack[:] = self._resize(self._frames[0])
        self._lives = self._ale.lives()
        self.life_lost = False
        return self._stack.copy(), {"lives": self._lives}

    def _start(self, seed: int) -> None:
        idle = first_noops(seed, self._settings.noop_max)
        if self._fire is not None:
            self._ale.act(self._fire)
            idle -= 1
        for _ in range(idle):
            self._ale.act(self._noop)
            if self._ale.game_over():
                self._ale.reset_game()

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Hold an action for `frame_skip` frames."""
        ale, chosen, frames = self._ale, self._actions[action], self._frames
        reward, over = 0.0, False
        for left in range(self._frame_skip, 0, -1):
            reward += ale.act(chosen)
            if over := ale.game_over():
                break
            if left <= 2:
                ale.getScreenGrayscale(frames[left - 1])
        if self._settings.max_pool:
            np.maximum(frames[0], frames[1], out=frames[0])
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._resize(frames[0])
        lives = ale.lives()
        self.life_lost = not over and 0 < lives < self._lives
        self._lives = lives
        return self._stack.copy(), reward, over, False, {"lives": lives}


def first_noops(seed: int, limit: int) -> int:
    """The idle frames ALE's vector env draws for a seed: one uniform number below `limit`."""
    word = int.from_bytes(np.random.RandomState(seed).bytes(4), "little")  # std::mt19937's first
    return word * limit >> 32


class AreaScaling:
    """Scales a grey screen down as OpenCV's INTER_AREA does, to the bit: single precision, in its order."""

    def __init__(self, old: tuple[int, int], new: tuple[int, int]) -> None:
        (self._rows, self._row_weights), (self._columns, self._column_weights) = (
            _areas(*pair) for pair in zip(old, new, strict=True)
        )
        self._row_weights = self._row_weights[:, :, None]

    def __call__(self, screen: Array) -> Array:
        """`[height, width]` bytes at the new size."""
        if screen.shape == (self._rows.shape[1], self._columns.shape[1]):
            return screen
        narrow = screen[:, self._columns[0]] * self._column_weights[0]
        for columns, weights in zip(self._columns[1:], self._column_weights[1:], strict=True):
            narrow += screen[:, columns] * weights
        small = narrow[self._rows[0]] * self._row_weights[0]
        for rows, weights in zip(self._rows[1:], self._row_weights[1:], strict=True):
            small += narrow[rows] * weights
        scaled: Array = np.rint(small).astype(np.uint8)
        return scaled


def _areas(old: int, new: int) -> tuple[Array, Array]:
    """The old pixels that each new one covers, `[at most so many, new]`, and with what weights."""
    scale = old / new
    covered = []
    for pixel in range(new):
        begin, end = pixel * scale, pixel * scale + scale
        inside = range(int(np.floor(begin + 1e-3)), min(int(np.ceil(end - 1e-3)), old))
        covered.append([(i, min(end, i + 1) - max(begin, i)) for i in inside])
    most = max(map(len, covered))
    index, weights = np.zeros((most, new), np.intp), np.zeros((most, new), np.float32)
    for pixel, parts in enumerate(covered):
        width = min(scale, old - pixel * scale)
        for k, (i, part) in enumerate(parts):
            index[k, pixel], weights[k, pixel] = i, part / width
    return index, weights
