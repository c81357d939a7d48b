"""Settings, envs and ways of comparing that the tests of `envs/` share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.envs import EnvConfig, VectorEnv


@dataclass(frozen=True)
class Settings:
    env_id: str = "CartPole-v1"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    seed: int = 7


class Diary(gymnasium.Env[Any, Any]):
    """Shows (episode seed, step of the episode, last action): whatever is mixed up can be seen.

    The seed decides when the episode ends and whether it terminates or is truncated.
    """

    def __init__(self, both: bool = False, endless: bool = False) -> None:
        self.observation_space = spaces.Box(-1.0, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(5)
        self.both, self.endless = both, endless

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self.seed, self.t = seed, 0
        self.length = 10**9 if self.endless else 3 + seed % 5
        return self._show(-1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.t < self.length, "stepped after its end"
        self.t += 1
        ended = self.t == self.length
        terminated = ended and (self.both or self.seed % 2 == 0)
        truncated = ended and (self.both or self.seed % 2 == 1)
        return self._show(action), float(self.t), terminated, truncated, {}

    def _show(self, action: Any) -> Any:
        return np.array([self.seed, self.t, action], dtype=np.float64)


class Unseeded(gymnasium.Env[Any, Any]):
    """Ignores its seed: every episode is another one."""

    _draws = np.random.default_rng(0)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._draws.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draws.random(2, dtype=np.float32), 0.0, False, False, {}


def walk(envs: VectorEnv, steps: int, seed: int) -> list[Any]:
    """Random actions, the same for the same seed; everything that came back."""
    rng = np.random.default_rng(seed)
    trace = []
    for _ in range(steps):
        result = envs.step(random_actions(envs, rng))
        obs = result.obs if isinstance(result.obs, dict) else {"": result.obs}
        final = result.final_obs if isinstance(result.final_obs, dict) else {"": result.final_obs}
        arrays = [*obs.values(), *final.values(), result.rewards, result.terminated, result.truncated]
        trace.append(([np.array(array).tobytes() for array in arrays], result.episodes))
    return trace


def random_actions(envs: VectorEnv, rng: np.random.Generator) -> Any:
    space, n = envs.spec.action_space, envs.num_envs
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, n)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (n, len(space.nvec)))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (n, *space.shape)).astype(np.int8)
    assert isinstance(space, spaces.Box)
    return rng.uniform(space.low, space.high, (n, *space.shape)).astype(space.dtype)


def through_storage(state: Any) -> Any:
    """What a checkpoint does to a state: arrays stay arrays, the rest becomes JSON and comes back."""
    if isinstance(state, np.ndarray):
        assert state.dtype.kind in "biuf"
        return state.copy()
    if isinstance(state, dict):
        assert all(isinstance(key, str) for key in state)
        return {key: through_storage(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [through_storage(value) for value in state]
    assert type(state) in (int, float, str, bool, type(None))
    return json.loads(json.dumps(state))
