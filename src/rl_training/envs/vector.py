"""Many envs on the host as one, and the owner of their autoreset: of any backend, the same `StepResult`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.envs import snapshot
from rl_training.envs.backends import Backend
from rl_training.envs.base import VectorEnv
from rl_training.envs.goals import find_goal_task
from rl_training.envs.native import NativeBackend
from rl_training.envs.seeding import episode_seed
from rl_training.envs.snapshot import ActionLog, Grade, RollingHash
from rl_training.envs.spaces import take
from rl_training.types import Episode, GoalTask, Spec, StepResult

if TYPE_CHECKING:
    from rl_training.types import Array, Obs

__all__ = ["HostVectorEnv", "VectorEnv", "episode_seed"]

_NO_STATE = "the ale backend can neither save nor replay its games; env.backend sync or async can"


class HostVectorEnv(VectorEnv):
    """Envs of a backend, one reset at a time; limits, seeds and statistics are the same for all backends."""

    def __init__(
        self,
        backend: Backend,
        spec: Spec,
        num_envs: int,
        *,
        seed: int,
        time_limit: int | None = None,
        render_fps: float = 30.0,
    ) -> None:
        super().__init__(backend.kind.name, spec, num_envs, seed=seed, render_fps=render_fps)
        self._backend = backend
        self._replays = backend.kind.replays
        self._limit = time_limit
        self._free_steps = 0
        self._episodes = np.full(num_envs, -1, dtype=np.int64)
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        remembered = snapshot.DIRECT_STEPS if backend.direct else None
        self._log = ActionLog(num_envs, spec.action_space, remembered)
        self._hash = RollingHash(backend.obs)

    @property
    def episode_seeds(self) -> Array:
        """The seed each env's current episode started from."""
        return self._seeds.copy()

    def observations(self) -> Obs:
        """What every env shows now: what the last `reset` or `step` gave as `obs`."""
        return self._backend.obs

    def reset(self, *, seed: int | None = None) -> Obs:
        """Begin the next episode in every env, or with `seed` the first episode of another series."""
        self._check_open()
        if seed is not None:
            self.seed = seed
            self._episodes.fill(-1)
        self._begin(range(self.num_envs), seeded=True)
        return self._backend.obs

    def cap_episodes(self, steps: int) -> None:
        """Truncate episodes after so many steps if nothing else ends them; native backends know their own."""
        if self._replays:
            self._limit = steps if self._limit is None else min(self._limit, steps)
            self._free_steps = 0

    def step(self, actions: Array) -> StepResult:
        """Take one action in every env; envs whose episode ended already show their next one."""
        self._check_step(actions.shape)
        backend = self._backend
        backend.step(actions)
        if self._replays:
            self._log.append(actions, self._lengths)
            self._hash.update()
        rewards, terminated, truncated = backend.rewards, backend.terminated, backend.truncated
        self._returns += rewards
        self._lengths += 1
        self._free_steps -= 1
        if self._free_steps <= 0:
            self._apply_time_limit()
        ended: Array = (terminated | truncated).nonzero()[0]
        episodes = tuple(map(self._finished, ended.tolist())) if len(ended) else ()
        if backend.life_lost is not None:
            np.logical_or(terminated, backend.life_lost, out=terminated)
        if not episodes:
            return StepResult(backend.obs, rewards, terminated, truncated, ended, None)
        np.greater(truncated, terminated, out=truncated)  # termination wins where both are set
        final_obs = take(backend.obs, ended)
        self._begin(ended.tolist())
        return StepResult(backend.obs, rewards, terminated, truncated, ended, final_obs, episodes)

    def _apply_time_limit(self) -> None:
        """Truncate episodes that are over, and foresee for how many steps there is no need to look again."""
        if self._limit is None:
            self._free_steps = sys.maxsize
            return
        over = self._lengths >= self._limit
        np.logical_or(self._backend.truncated, over, out=self._backend.truncated)
        self._free_steps = self._limit - int(self._lengths.max(where=~over, initial=0))

    def _finished(self, i: int) -> Episode:
        return Episode(
            env_index=i,
            episode=int(self._episodes[i]),
            seed=int(self._seeds[i]) if self._seeds[i] >= 0 else None,
            total_reward=float(self._returns[i]),
            length=int(self._lengths[i]),
            terminated=bool(self._backend.terminated[i]),
            success=self._backend.success(i),
        )

    def _begin(self, indices: Sequence[int], seeded: bool = False) -> None:
        """Start the next episode of some envs, from a seed of its own if the backend can do that cheaply."""
        seeded = seeded or self._backend.kind.reseeds
        seeds = []
        for i in indices:
            episode = int(self._episodes[i]) + 1
            seed = episode_seed(self.seed, i, episode) if seeded else -1
            self._episodes[i], self._seeds[i] = episode, seed
            self._returns[i] = 0.0
            self._lengths[i] = 0
            seeds.append(seed)
        self._backend.reset(indices, seeds)
        self._hash.restart(indices)
        self._started = True

    def goal_task(self) -> GoalTask:
        """How the env judges goals; a ConfigError says why it does not."""
        self._check_open()
        return find_goal_task(self._backend.judge())

    def render(self) -> list[Any]:
        """One frame an env, in the render mode the envs were made with."""
        self._check_open()
        return self._backend.render()

    @property
    def resume_grade(self) -> Grade:
        """What `load_state_dict` can promise for the state as it is now, and why."""
        if isinstance(self._backend, NativeBackend):
            return "exact", "the state of the native envs is saved"
        if not self._replays:
            return "episode", _NO_STATE
        longest = int(self._lengths.max())
        direct = int((self._lengths > snapshot.DIRECT_STEPS).sum()) if self._backend.direct else 0
        restarts = self._backend.restarts
        cut = f"; {restarts} worker restarts cut episodes short before" if restarts else ""
        if not direct and longest > self._log.limit:
            return "episode", f"an episode of {longest} steps is too long to be replayed{cut}"
        if direct:
            how = f"the state of {direct} of {self.num_envs} envs (long episodes) is saved; other episodes"
        else:
            how = "current episodes"
        return "exact", f"{how} are replayed from their seeds and verified by a hash{cut}"

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to put every env back: seeds and the actions since, or the state itself."""
        state: dict[str, Any] = {
            "backend": self.backend,
            "seed": self.seed,
            "episodes": self._episodes.copy(),
            "seeds": self._seeds.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "worker_restarts": self._backend.restarts,
        }
        if isinstance(self._backend, NativeBackend):
            return {**state, "native": self._backend.state_dict()}
        if not self._replays:
            return state
        direct = snapshot.capture_long(self._backend, self._hash, self._lengths)
        replayed = [int(length) for i, length in enumerate(self._lengths) if str(i) not in direct]
        state["direct"] = direct
        state["actions"] = self._log.tail(max(replayed, default=0))
        state["digests"] = self._hash.digests(self._returns, self._lengths)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Grade:
        """Put every env back; says whether that was `exact`, or why some began their next `episode`."""
        self._check_open()
        self.seed = int(state["seed"])
        self._backend.restarts = int(state.get("worker_restarts", 0))
        episodes = np.asarray(state["episodes"], dtype=np.int64)
        if len(episodes) != self.num_envs:
            self._episodes.fill(int(episodes.max()))
            self._begin(range(self.num_envs), seeded=True)
            return "episode", f"saved with {len(episodes)} envs, restored with {self.num_envs}"
        self._episodes[:] = episodes
        self._started = bool(episodes[0] >= 0)
        if not self._started:
            return "exact", "no episode had begun"
        self._seeds[:] = state["seeds"]
        self._lengths[:] = state["lengths"]
        self._free_steps = 0
        failed = self._restore_envs(state)
        if failed:
            self._begin(sorted(failed), seeded=True)
            first = min(failed)
            return (
                "episode",
                f"{len(failed)} of {self.num_envs} envs began a new episode; env {first}: {failed[first]}",
            )
        direct = len(state.get("direct", {}))
        how = f": {direct} by their saved state, the others by replay" if direct else ""
        return "exact", f"every env is where it was{how}"

    def _restore_envs(self, state: Mapping[str, Any]) -> dict[int, str]:
        """Bring the backend back to the saved state; returns the envs where that failed, and why."""
        is_native, replays = isinstance(self._backend, NativeBackend), self._replays
        if is_native != (state["backend"] == NativeBackend.kind.name) or replays != ("actions" in state):
            reason = f"saved by the {state['backend']} backend, restored with {self.backend}"
            return dict.fromkeys(range(self.num_envs), reason)
        if not (is_native or replays):
            return dict.fromkeys(range(self.num_envs), _NO_STATE)
        if isinstance(self._backend, NativeBackend):
            self._backend.load_state_dict(state["native"])
            self._returns[:] = state["returns"]
            return {}
        self._returns[:], failed = snapshot.restore(self._backend, self._hash, self._limit, state)
        self._log.restore(np.asarray(state["actions"]))
        return failed

    def close(self) -> None:
        """Close the envs and end their processes; may be called twice."""
        if not self._closed:
            super().close()
            self._backend.close()
