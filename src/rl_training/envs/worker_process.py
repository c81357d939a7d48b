"""The other side of `workers`: a process that plays one env, and what it shares with its parent."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.envs import direct_state
from rl_training.envs.backends import Env, EnvFn, render_env, strip_time_limit
from rl_training.envs.processes import SharedBlock, converse
from rl_training.envs.spaces import leaf_spaces
from rl_training.types import IS_SUCCESS, Spec

if TYPE_CHECKING:
    from rl_training.types import Array, Obs


class SharedArrays:
    """All that workers and parent exchange at every step; the same memory in every process."""

    def __init__(self, context: Any, spec: Spec, num_envs: int) -> None:
        actions = spec.action_space
        layout: dict[str, tuple[Any, Any]] = {
            "actions": (actions.shape, actions.dtype),
            "rewards": ((), np.float64),
            "terminated": ((), np.bool_),
            "truncated": ((), np.bool_),
            "success": ((), np.float32),
            "life_lost": ((), np.bool_),
        }
        self._obs_keys = list(leaf_spaces(spec.observation_space))
        for key, space in leaf_spaces(spec.observation_space).items():
            layout[f"obs/{key}"] = (space.shape, space.dtype)
        self._blocks = {
            name: SharedBlock(context, (num_envs, *(shape or ())), dtype)
            for name, (shape, dtype) in layout.items()
        }

    def array(self, name: str) -> Array:
        """One array, a row an env."""
        return self._blocks[name].array()

    def obs(self) -> Obs:
        """The observation, as the space has it."""
        if self._obs_keys == [""]:
            return self.array("obs/")
        return {key: self.array(f"obs/{key}") for key in self._obs_keys}


def work(pipe: Connection, index: int, make: EnvFn, shared: SharedArrays, env_id: str) -> None:
    """The life of a worker: make the env, say whether its state can be read, then answer commands."""

    def prepare() -> tuple[_Worker, bool]:
        worker = _Worker(make(), index, shared, env_id)
        return worker, direct_state.is_known(worker.env)

    converse(pipe, prepare)


class _Worker:
    """Executes commands on one env and leaves the outcome in its row of the shared arrays."""

    def __init__(self, env: Env, index: int, shared: SharedArrays, env_id: str) -> None:
        self.close = env.close
        self.env = strip_time_limit(env)[0]
        self._step, self._reset = self.env.step, self.env.reset
        self._render = partial(render_env, self.env, env_id)
        self._index = index
        self._obs, self._actions = shared.obs(), shared.array("actions")
        self._rewards = shared.array("rewards")
        self._terminated, self._truncated = shared.array("terminated"), shared.array("truncated")
        self._success = shared.array("success")
        self._life_lost = shared.array("life_lost") if hasattr(self.env, "life_lost") else None

    def answer(self, command: str, payload: Any) -> Any:
        """Do as told; only frames and states travel through the pipe."""
        i = self._index
        if command == "step":
            action = self._actions[i].copy()  # a scalar for Discrete; the env may keep it
            obs, self._rewards[i], self._terminated[i], self._truncated[i], info = self._step(action)
            self._success[i] = info.get(IS_SUCCESS, np.nan)
            self._store(obs)
            if self._life_lost is not None:
                self._life_lost[i] = self.env.life_lost  # type: ignore[attr-defined]
        elif command == "reset":
            self._store(self._reset(seed=payload)[0])
        elif command == "render":
            return self._render()
        elif command == "capture":
            return direct_state.capture(self.env)
        elif command == "restore":
            return direct_state.restore(self.env, payload)
        return None

    def _store(self, obs: Any) -> None:
        if isinstance(self._obs, dict):
            for key, rows in self._obs.items():
                rows[self._index] = obs[key]
        else:
            self._obs[self._index] = obs
