"""A `VectorEnv` whose envs are tensors: steps, resets, limits and statistics without a look at any value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from rl_training.envs.backends import describe_failure
from rl_training.envs.base import VectorEnv
from rl_training.envs.batched.env import BatchedEnv, State
from rl_training.envs.batched.random import env_keys
from rl_training.envs.kinds import BACKENDS
from rl_training.envs.snapshot import Grade
from rl_training.envs.spaces import take
from rl_training.errors import ConfigError, EnvError
from rl_training.types import Episode, GoalTask, Spec, StepResult, TensorStep

if TYPE_CHECKING:
    from rl_training.types import Array, Obs, TensorObs


class BatchedVectorEnv(VectorEnv):
    """Many copies of a `BatchedEnv`. `step_tensors` stays on the device, `step` tells the host about it.

    What goes on from step to step lives in tensors that are written in place, and shapes never depend on
    values: a step can be captured in a CUDA graph. Every row is reset at every step, which is kept where an
    episode ended. The seed of an episode is its env's key plus its number, and decides all that is random.
    """

    def __init__(
        self,
        env: BatchedEnv,
        num_envs: int,
        *,
        seed: int,
        time_limit: int | None = None,
        env_id: str | None = None,
    ) -> None:
        """`env_id` is what errors call the env, instead of the name of its class."""
        spec = Spec(env.observation_space, env.action_space)
        super().__init__(BACKENDS["batched"].name, spec, num_envs, seed=seed)
        self.env, self.device = env, env.device
        self.env_id = env_id or type(env).__name__
        self._limit = time_limit
        self._keys = env_keys(seed, num_envs, self.device)
        self._episodes = torch.full((num_envs,), -1, device=self.device)
        self._lengths = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._returns = torch.zeros(num_envs, dtype=torch.float64, device=self.device)
        self._state: State = {key: rows.clone() for key, rows in self._start(self._keys).items()}

    @property
    def episode_seeds(self) -> Array:
        """The seed each env's current episode started from."""
        return (self._keys + self._episodes).numpy(force=True)

    def observe(self) -> TensorObs:
        """What every env shows now, on the device."""
        return self._observe(self._state)

    def observations(self) -> Obs:
        """What every env shows now: what the last `reset` or `step` gave as `obs`."""
        return _host(self.observe())

    def reset_tensors(self, *, seed: int | None = None) -> TensorObs:
        """`reset`, for those who stay on the device."""
        self._check_open()
        if seed is not None:
            self.seed = seed
            self._keys.copy_(env_keys(seed, self.num_envs, self.device))
            self._episodes.fill_(-1)
        self._begin()
        return self.observe()

    def reset(self, *, seed: int | None = None) -> Obs:
        """Begin the next episode in every env, or with `seed` the first episode of another series."""
        return _host(self.reset_tensors(seed=seed))

    def _begin(self) -> None:
        """Start the next episode of every env."""
        self._episodes += 1
        for key, rows in self._start(self._keys + self._episodes).items():
            self._state[key].copy_(rows)
        self._lengths.zero_()
        self._returns.zero_()
        self._started = True

    def cap_episodes(self, steps: int) -> None:
        """Truncate episodes after so many steps if nothing else ends them."""
        self._limit = steps if self._limit is None else min(self._limit, steps)

    def step_tensors(self, actions: Tensor) -> TensorStep:
        """`step`, for those who stay on the device: no value is read, no shape depends on one."""
        self._check_step(actions.shape)
        before = {key: rows.clone() for key, rows in self._state.items()}  # results may share memory with it
        try:
            state, rewards, terminated = self.env.step(before, actions)
        except Exception as error:
            self._explain("step", error)
            raise
        lengths, returns = self._lengths + 1, self._returns + rewards
        if self._limit is None:
            ended, truncated = terminated, torch.zeros_like(terminated)
        else:
            over = lengths >= self._limit
            ended, truncated = terminated | over, over > terminated  # termination wins where both are set
        final_obs = self._observe(state)
        self._episodes += ended
        fresh, going = self._start(self._keys + self._episodes), ~ended
        for key, rows in state.items():
            torch.where(_as_rows(going, rows), rows, fresh[key], out=self._state[key])
        torch.mul(lengths, going, out=self._lengths)
        torch.mul(returns, going, out=self._returns)
        return TensorStep(self.observe(), rewards, terminated, truncated, ended, final_obs, returns, lengths)

    def _start(self, seeds: Tensor) -> State:
        try:
            return self.env.start(seeds)
        except Exception as error:
            self._explain("start", error)
            raise

    def _observe(self, state: State) -> TensorObs:
        try:
            return self.env.observe(state)
        except Exception as error:
            self._explain("observe", error)
            raise

    def _explain(self, call: str, error: Exception) -> None:
        """Say in which line of the user's an env failed. What stops a recording is for whoever records."""
        if not _recorded():
            where = f"the batched env {self.env_id}: {call}()"
            raise EnvError(describe_failure(where, error)) from error

    def step(self, actions: Array) -> StepResult:
        """Take one action in every env; envs whose episode ended already show their next one."""
        seeds, numbers = self._keys + self._episodes, self._episodes.clone()
        result = self.step_tensors(torch.as_tensor(actions).to(self.device))
        obs, rewards = _host(result.obs), result.rewards.numpy(force=True)
        terminated, truncated = result.terminated.numpy(force=True), result.truncated.numpy(force=True)
        ended: Array = result.ended.numpy(force=True).nonzero()[0]
        if not len(ended):
            return StepResult(obs, rewards, terminated, truncated, ended, None)
        rows = torch.from_numpy(ended).to(self.device)
        columns = (numbers, seeds, result.returns, result.lengths, result.terminated)
        lists = [ended.tolist(), *(column[rows].tolist() for column in columns)]
        episodes = tuple(Episode(*values) for values in zip(*lists, strict=True))
        final_obs = _host(take(result.final_obs, rows))
        return StepResult(obs, rewards, terminated, truncated, ended, final_obs, episodes)

    def goal_task(self) -> GoalTask:
        """Batched envs do not judge goals."""
        raise ConfigError("hyperparams.her: env.backend 'batched' has no goals: use sync or async")

    def render(self) -> list[Any]:
        """Tensors are not drawn."""
        raise EnvError("envs that are tensors cannot be rendered: use env.backend sync")

    @property
    def resume_grade(self) -> Grade:
        """Always exact: the state is all there is."""
        return "exact", "the state of the batched envs is saved"

    def state_dict(self) -> dict[str, Any]:
        """The complete state."""
        return {
            "backend": self.backend,
            "seed": self.seed,
            "episodes": _copy(self._episodes),
            "seeds": _copy(self._keys + self._episodes),
            "returns": _copy(self._returns),
            "lengths": _copy(self._lengths),
            "worker_restarts": 0,
            "batched": {key: _copy(rows) for key, rows in self._state.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Grade:
        """Put every env back; says whether that was `exact`, or why all began their next `episode`."""
        self._check_open()
        self.seed = int(state["seed"])
        self._keys.copy_(env_keys(self.seed, self.num_envs, self.device))
        episodes = torch.as_tensor(state["episodes"])
        problem = self._unfit(state)
        if problem is not None:
            self._episodes.fill_(int(episodes.max()))
            self._begin()
            return "episode", problem
        self._episodes.copy_(episodes)
        self._started = bool(episodes[0] >= 0)
        if not self._started:
            return "exact", "no episode had begun"
        self._lengths.copy_(torch.as_tensor(state["lengths"]))
        self._returns.copy_(torch.as_tensor(state["returns"]))
        for key, rows in self._state.items():
            rows.copy_(torch.as_tensor(state["batched"][key]))
        return "exact", "every env is where it was"

    def _unfit(self, state: Mapping[str, Any]) -> str | None:
        """Why envs cannot be put back into a saved state, if they cannot."""
        count = len(state["episodes"])
        if count != self.num_envs:
            return f"saved with {count} envs, restored with {self.num_envs}"
        if state["backend"] != self.backend:
            return f"saved by the {state['backend']} backend, restored with {self.backend}"
        saved = {key: tuple(rows.shape) for key, rows in state["batched"].items()}
        if saved != {key: tuple(rows.shape) for key, rows in self._state.items()}:
            return "the saved state of the batched envs is of another kind"
        return None


def _recorded() -> bool:
    """Whether operations are being recorded, traced or captured, and errors may be about that."""
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return is_in_torch_dispatch_mode() or (on_gpu and torch.cuda.is_current_stream_capturing())


def _as_rows(mask: Tensor, rows: Tensor) -> Tensor:
    """A flag an env, shaped so that it chooses whole rows."""
    return mask.reshape(-1, *[1] * (rows.dim() - 1))


def _host(obs: TensorObs) -> Obs:
    if isinstance(obs, dict):
        return {key: part.numpy(force=True) for key, part in obs.items()}
    return obs.numpy(force=True)


def _copy(tensor: Tensor) -> Array:
    copied: Array = tensor.numpy(force=True).copy()
    return copied
