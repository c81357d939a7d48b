"""Envs that Gymnasium implements for many at once. Only CartPole does, and only that one is adapted here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec

from rl_training.envs.kinds import BACKENDS, BackendKind
from rl_training.errors import EnvError

if TYPE_CHECKING:
    from rl_training.types import Array, Obs


class NativeBackend:
    """Gymnasium's vectorised CartPole without its autoreset, started from the states `sync` would start from.

    Its own autoreset ignores the action of the step after an end and draws from one generator for all envs.
    Here every ended env is reset at once, from its own seed, so that an episode is the same in every backend.
    """

    kind: ClassVar[BackendKind] = BACKENDS["native"]
    direct: bool = False  # its envs are saved all at once, by `state_dict`
    restarts: int = 0
    life_lost: Array | None = None

    def __init__(self, spec: EnvSpec, num_envs: int, **kwargs: Any) -> None:
        env = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        if not isinstance(env, CartPoleVectorEnv):
            env.close()
            raise EnvError(f"env.backend 'native' knows CartPole only, not {spec.id}: use sync or async")
        self.env: Any = env
        env.reset()  # sets up its arrays; the states are overwritten before the first step
        self._rows = np.zeros((num_envs, 4), dtype=np.float32)
        self.obs: Obs = self._rows
        self.rewards = np.zeros(num_envs)
        self.terminated = np.zeros(num_envs, dtype=np.bool_)
        self.truncated = np.zeros(num_envs, dtype=np.bool_)

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin a new episode in some envs, from the same states as `CartPoleEnv.reset(seed=…)`."""
        for i, seed in zip(indices, seeds, strict=True):
            self.env.state[:, i] = np.random.default_rng(seed).uniform(-0.05, 0.05, 4)
        rows = list(indices)
        self.env.steps[rows] = 0
        self._show()

    def step(self, actions: Array, indices: Sequence[int] | None = None) -> None:
        """Step all envs."""
        if indices is not None:
            raise EnvError("the native backend steps all envs or none")
        _, self.rewards[:], self.terminated[:], self.truncated[:], _ = self.env.step(actions)
        self.env.prev_done.fill(False)  # what ended is reset by us, now, and not by the env's next step
        self._show()

    def _show(self) -> None:
        np.copyto(self._rows, self.env.state.T, casting="same_kind")

    def capture(self, indices: Sequence[int]) -> list[Any]:
        """Nothing: see `state_dict`."""
        return [None for _ in indices]

    def restore(self, indices: Sequence[int], states: Sequence[Any]) -> list[str | None]:
        """Nothing: see `load_state_dict`."""
        return ["the native backend restores all envs at once" for _ in indices]

    def success(self, i: int) -> bool | None:
        """CartPole has no goal."""
        return None

    def judge(self) -> gymnasium.Env[Any, Any]:
        """There is no single env."""
        raise EnvError("env.backend 'native' has no goals: use sync or async")

    def render(self) -> list[Any]:
        """One frame an env."""
        return list(self.env.render() or [])

    def state_dict(self) -> dict[str, Array]:
        """The complete physical state."""
        return {"state": np.array(self.env.state), "steps": np.array(self.env.steps)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Put the envs back."""
        self.env.state = np.array(state["state"], dtype=np.float64)
        self.env.steps = np.array(state["steps"], dtype=np.int32)
        self.env.prev_done.fill(False)
        self._show()

    def close(self) -> None:
        """Release the env."""
        self.env.close()
