"""Where envs are stepped. A backend fills arrays; resets, limits and statistics belong to `VectorEnv`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from rl_training.envs import direct_state
from rl_training.envs.kinds import BACKENDS, BackendKind
from rl_training.envs.spaces import Space, allocate
from rl_training.errors import EnvError, MissingExtraError
from rl_training.types import IS_SUCCESS

if TYPE_CHECKING:
    from rl_training.types import Array, Obs

Env: TypeAlias = gymnasium.Env[Any, Any]
EnvFn: TypeAlias = Callable[[], Env]


class Backend(Protocol):
    """Steps `num_envs` envs and leaves the outcome in its arrays, which it overwrites in place."""

    kind: ClassVar[BackendKind]
    direct: bool
    """Whether the state of its envs can also be read and written, so that `capture` and `restore` work."""
    restarts: int
    """How often a broken worker was replaced in this run."""
    obs: Obs
    rewards: Array
    terminated: Array
    truncated: Array
    life_lost: Array | None
    """Where the learner's episode ends though the env's goes on; None: nowhere, ever."""

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin a new episode in some envs, each from its own seed."""

    def step(self, actions: Array, indices: Sequence[int] | None = None) -> None:
        """Step all envs, or only some; `actions` has a row for every env in either case."""

    def capture(self, indices: Sequence[int]) -> list[Any]:
        """The state of some envs; None for one that could not be read."""

    def restore(self, indices: Sequence[int], states: Sequence[Any]) -> list[str | None]:
        """Write states into envs that were just reset; for each, why that failed, or None."""

    def success(self, i: int) -> bool | None:
        """Whether an env's last step reached its goal; None: it did not say."""

    def judge(self) -> Env:
        """An env whose own functions may be called, but which must not be stepped."""

    def render(self) -> list[Any]:
        """One frame an env."""

    def close(self) -> None:
        """Release everything; may be called twice."""


def strip_time_limit(env: Env) -> tuple[Env, int | None]:
    """Take off outer time limits: `VectorEnv` counts steps for all envs at once, which is cheaper."""
    limit: int | None = None
    while type(env) in (TimeLimit, OrderEnforcing):
        if isinstance(env, TimeLimit):
            own = int(env._max_episode_steps)
            limit = own if limit is None else min(limit, own)
        env = env.env  # type: ignore[attr-defined]
    return env, limit


def split_actions(actions: Array, space: Space) -> list[Any] | Array:
    """One action an env, in a form that the env may keep: the caller is free to reuse its array."""
    return list(actions) if isinstance(space, spaces.Discrete) else np.array(actions, dtype=space.dtype)


def describe_failure(where: str, error: BaseException) -> str:
    """One line on what went wrong and in which line of whose code: the last that is no library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_libraries())]
    place = "".join(f" ({f.filename}:{f.lineno} in {f.name})" for f in (own or frames)[-1:])
    return f"{where} raised {type(error).__name__}: {error}{place}"


def _libraries() -> tuple[str, ...]:
    """The folders of what envs are made with, and of this package."""
    modules = [sys.modules.get(name) for name in ("rl_training", "numpy", "torch")]
    return tuple(f"{Path(m.__file__).parent}{os.sep}" for m in modules if m is not None and m.__file__)


class SyncBackend:
    """All envs in this process, one after the other."""

    kind: ClassVar[BackendKind] = BACKENDS["sync"]

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        observation_space: Space,
        env_id: str,
        owns_envs: bool = True,
        episodic_life: bool = False,
    ) -> None:
        self.env_id = env_id
        self.num_envs = len(env_fns)
        self.envs = [make() for make in env_fns]
        if len({id(env.unwrapped) for env in self.envs}) < self.num_envs:
            raise EnvError(
                f"env {env_id}: the function that makes it returned the same env twice, which cannot serve "
                f"{self.num_envs} envs: let every call make a new one"
            )
        self.owns_envs = owns_envs
        self.action_space = self.envs[0].action_space
        self._cores = [strip_time_limit(env)[0] for env in self.envs]
        self._steps = [core.step for core in self._cores]
        self._resets = [core.reset for core in self._cores]
        self.direct = all(map(direct_state.is_known, self._cores))
        self.restarts = 0
        self._everyone = range(self.num_envs)
        self._seeds = [0] * self.num_envs
        self._infos: list[dict[str, Any]] = [{}] * self.num_envs
        self.obs = allocate(observation_space, self.num_envs)
        self.rewards = np.zeros(self.num_envs)
        self.terminated = np.zeros(self.num_envs, dtype=np.bool_)
        self.truncated = np.zeros(self.num_envs, dtype=np.bool_)
        self.life_lost = np.zeros(self.num_envs, dtype=np.bool_) if episodic_life else None

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin a new episode in some envs, each from its own seed."""
        for i, seed in zip(indices, seeds, strict=True):
            self._seeds[i] = seed
            try:
                obs, _ = self._resets[i](seed=seed)
                self._store(i, obs)
            except Exception as error:
                raise self._failed(i, "reset", error) from error

    def step(self, actions: Array, indices: Sequence[int] | None = None) -> None:
        """Step all envs, or only some."""
        steps, store = self._steps, self.obs
        rewards, terminated, truncated = self.rewards, self.terminated, self.truncated
        infos = self._infos
        own = split_actions(actions, self.action_space)
        i = 0
        try:
            if isinstance(store, dict):
                for i in self._everyone if indices is None else indices:
                    obs, rewards[i], terminated[i], truncated[i], infos[i] = steps[i](own[i])
                    for key, rows in store.items():
                        rows[i] = obs[key]
            else:
                for i in self._everyone if indices is None else indices:
                    store[i], rewards[i], terminated[i], truncated[i], infos[i] = steps[i](own[i])
        except Exception as error:
            raise self._failed(i, "step", error) from error
        if self.life_lost is not None:
            for i in self._everyone if indices is None else indices:
                self.life_lost[i] = self._cores[i].life_lost  # type: ignore[attr-defined]

    def _store(self, i: int, obs: Any) -> None:
        if isinstance(self.obs, dict):
            for key, rows in self.obs.items():
                rows[i] = obs[key]
        else:
            self.obs[i] = obs

    def _failed(self, i: int, call: str, error: BaseException) -> EnvError:
        where = f"env {i} ({self.env_id}, episode seed {self._seeds[i]}): {call}()"
        return EnvError(describe_failure(where, error))

    def capture(self, indices: Sequence[int]) -> list[Any]:
        """The state of some envs."""
        return [direct_state.capture(self._cores[i]) for i in indices]

    def restore(self, indices: Sequence[int], states: Sequence[Any]) -> list[str | None]:
        """Write states into envs."""
        return [direct_state.restore(self._cores[i], state) for i, state in zip(indices, states, strict=True)]

    def success(self, i: int) -> bool | None:
        """What the last `info` of an env says."""
        said = self._infos[i].get(IS_SUCCESS)
        return None if said is None else bool(said)

    def judge(self) -> Env:
        """The first env."""
        return self.envs[0]

    def render(self) -> list[Any]:
        """One frame an env."""
        return [render_env(core, self.env_id) for core in self._cores]

    def close(self) -> None:
        """Close the envs, unless they are the user's own."""
        envs, self.envs = self.envs, []
        if self.owns_envs:
            for env in envs:
                env.close()


def render_env(env: Env, env_id: str) -> Any:
    """One frame, or an error that names the extra to install."""
    try:
        return env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise missing_dependency(f"rendering {env_id}", env.spec, error) from error


_EXTRAS = {
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.toy_text": "classic",
    "ale_py": "atari",
}


def missing_dependency(what: str, spec: Any, error: Exception) -> MissingExtraError | EnvError:
    """The extra that brings what an env lacks, judged by where its code lives; else the env's own words."""
    home = str(getattr(spec, "entry_point", "") or "")
    for prefix, extra in _EXTRAS.items():
        if home.startswith(prefix):
            return MissingExtraError(what, extra)
    return EnvError(f"{what} needs something that is not installed: {error}")
