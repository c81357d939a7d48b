"""Asks the policy, steps the envs, fills the buffer. Knows no loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.samplers import UniformSampler
from rl_training.envs.vector import VectorEnv
from rl_training.errors import NonFiniteError
from rl_training.policies.exploration import Exploration
from rl_training.policies.obs import to_tensor
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.rewards import RewardTransform
from rl_training.types import Array, Episode, Obs, PolicyOutput, PolicyState, StepResult, TensorObs


class Policy(Protocol):
    """What a collector needs of a policy."""

    normalizer: Any

    def act(
        self,
        obs: TensorObs,
        state: PolicyState | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> PolicyOutput: ...
    def values(self, obs: TensorObs, state: PolicyState | None = None) -> Tensor: ...
    def env_actions(self, actions: Tensor) -> Tensor: ...
    def initial_state(self, num_envs: int) -> PolicyState | None: ...
    def reset_state(self, state: PolicyState | None, ended: Tensor) -> PolicyState | None: ...


class OffPolicyPolicy(Policy, Protocol):
    """What off-policy collection needs besides: actions drawn uniformly, respecting masks."""

    def random_actions(self, obs: TensorObs, generator: torch.Generator) -> Tensor: ...


class Truncation(NamedTuple):
    """Episodes that a time limit cut off at one step, and what their last observations were."""

    step: int
    envs: Array
    final_obs: Obs
    state: PolicyState | None


class Ending(NamedTuple):
    """Episodes that ended at one step, however they did, and what their last observations were."""

    step: int
    envs: Array
    final_obs: Obs


class EpisodeStatistics:
    """Returns, lengths and successes of the last hundred finished episodes, and how many there were."""

    def __init__(self, window: int = 100) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.successes: deque[bool] = deque(maxlen=window)
        self.count = 0

    def add(self, episodes: tuple[Episode, ...]) -> None:
        """Book finished episodes."""
        for episode in episodes:
            self.returns.append(episode.total_reward)
            self.lengths.append(episode.length)
            if episode.success is not None:
                self.successes.append(episode.success)
        self.count += len(episodes)

    def metrics(self) -> dict[str, float]:
        """Means over the window; nothing before the first episode has ended."""
        metrics = {"rollout/episodes": float(self.count)}
        if self.returns:
            metrics["rollout/return_mean"] = float(np.mean(self.returns))
            metrics["rollout/length_mean"] = float(np.mean(self.lengths))
        if self.successes:
            metrics["rollout/success_rate"] = float(np.mean(self.successes))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The window and the count."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "successes": list(self.successes),
            "count": self.count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.returns.clear()
        self.returns.extend(state["returns"])
        self.lengths.clear()
        self.lengths.extend(state["lengths"])
        self.successes.clear()
        self.successes.extend(state.get("successes", ()))  # older checkpoints have none
        self.count = state["count"]


class Collector:
    """Steps the envs with a policy and keeps what belongs to the stream of experience."""

    def __init__(
        self,
        envs: VectorEnv,
        policy: Policy,
        rewards: RewardTransform,
        generator: torch.Generator,
        device: torch.device,
        profiler: Profiler,
    ) -> None:
        self.envs, self.policy, self.rewards = envs, policy, rewards
        self.generator, self.device, self.profiler = generator, device, profiler
        self.statistics = EpisodeStatistics()
        self.state = policy.initial_state(envs.num_envs)
        self.obs: Obs = {}
        self.started = False
        self.endings: list[Ending] | None = None
        """The last rollout's ends of episodes, if somebody has asked for them by putting a list here."""

    def start(self) -> None:
        """Begin the first episode of every env, unless a restored run is already inside one."""
        if not self.started:
            self.obs = self.envs.reset()
            self.started = True

    def abandon_episodes(self) -> None:
        """Forget what the policy remembers of episodes that could not be restored."""
        self.state = self.policy.initial_state(self.envs.num_envs)

    def collect(self, buffer: RolloutBuffer) -> Tensor:
        """Fill an on-policy buffer and return the values of the observations after its last step."""
        with torch.inference_mode():
            return self._collect(buffer)

    def _collect(self, buffer: RolloutBuffer) -> Tensor:
        policy, envs, profiler = self.policy, self.envs, self.profiler
        truncations: list[Truncation] = []
        if self.endings is not None:
            self.endings.clear()
        env_seconds = 0.0
        begin = perf_counter()
        buffer.reset(self.state)
        for step in range(buffer.num_steps):
            output = policy.act(buffer.observe(self.obs, self.state), self.state, generator=self.generator)
            actions = policy.env_actions(output.actions).cpu().numpy()
            before = perf_counter()
            result = envs.step(actions)
            env_seconds += perf_counter() - before
            assert output.logprobs is not None  # an on-policy policy gives both
            assert output.values is not None
            buffer.add(
                None, output.actions, output.logprobs, result.rewards, output.values, result.terminated,
                result.truncated, ended=result.ended,
            )  # fmt: skip
            self.obs, self.state = result.obs, output.state
            if len(result.ended):
                if self.endings is not None and result.final_obs is not None:
                    rows = np.ones(len(result.ended), bool)
                    self.endings.append(Ending(step, result.ended.copy(), _rows(result.final_obs, rows)))
                cut = result.truncated[result.ended]
                if cut.any() and result.final_obs is not None:
                    truncations.append(
                        Truncation(step, result.ended[cut], _rows(result.final_obs, cut), output.state)
                    )
                self._end_episodes(result.ended, result.episodes)
        if buffer.actions.is_floating_point():
            _require_finite("action", buffer.actions.numpy(force=True), broken="policy")
        _require_finite_obs(buffer.obs)
        self._bootstrap_truncated(buffer, truncations)
        last_values = policy.values(to_tensor(self.obs, self.device), self.state)
        self._transform_rewards(buffer)
        profiler.add("env", env_seconds)
        profiler.add("inference", perf_counter() - begin - env_seconds)
        return last_values

    def collect_transitions(
        self,
        buffer: ReplayBuffer,
        sampler: UniformSampler,
        steps: int,
        exploration: Exploration | None,
        *,
        random: bool,
        generator: torch.Generator,
    ) -> None:
        """Put some steps into a replay buffer, acting at random or with the policy and `exploration`."""
        policy, envs = cast(OffPolicyPolicy, self.policy), self.envs
        env_seconds = 0.0
        begin = perf_counter()
        with torch.inference_mode():
            for _ in range(steps):
                obs = to_tensor(self.obs, self.device)
                if random:
                    actions, state = policy.random_actions(obs, generator), self.state
                else:
                    output = policy.act(obs, self.state, generator=self.generator)
                    actions, state = output.actions, output.state
                    if exploration is not None:
                        actions = exploration.explore(
                            actions, policy.random_actions(obs, generator), generator
                        )
                env_actions = policy.env_actions(actions).cpu().numpy()
                if env_actions.dtype.kind == "f":
                    _require_finite("action", env_actions[None], broken="policy")
                before = perf_counter()
                result = envs.step(env_actions)
                env_seconds += perf_counter() - before
                _require_finite_step(result)
                if not self.rewards.is_identity:
                    self.rewards.apply(result.rewards[None], (result.terminated | result.truncated)[None])
                sampler.written(buffer.add(actions, result))
                self.obs, self.state = result.obs, state
                if len(result.ended):
                    self._end_episodes(result.ended, result.episodes)
                    if exploration is not None:
                        exploration.reset(self._ended_mask(result.ended))
            if self.policy.normalizer is not None:
                self.policy.normalizer.update(to_tensor(self.obs, self.device))
        self.profiler.add("env", env_seconds)
        self.profiler.add("inference", perf_counter() - begin - env_seconds)

    def learn_statistics(self, buffer: RolloutBuffer) -> None:
        """Show a finished rollout to the observation normaliser, which is frozen while one is in use."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(buffer.obs)

    def _end_episodes(self, ended: Array, episodes: tuple[Episode, ...]) -> None:
        self.statistics.add(episodes)
        if self.state is not None:
            self.state = self.policy.reset_state(self.state, self._ended_mask(ended))

    def _ended_mask(self, ended: Array) -> Tensor:
        mask = torch.zeros(self.envs.num_envs, dtype=torch.bool, device=self.device)
        mask[torch.from_numpy(ended).to(self.device)] = True
        return mask

    def _bootstrap_truncated(self, buffer: RolloutBuffer, truncations: list[Truncation]) -> None:
        """Value every cut-off episode's true final observation, all in one batch."""
        if not truncations:
            return
        steps = np.concatenate([np.full(len(cut.envs), cut.step) for cut in truncations])
        envs = np.concatenate([cut.envs for cut in truncations])
        final = to_tensor(_concatenate([cut.final_obs for cut in truncations]), self.device)
        buffer.set_final_values(steps, envs, self.policy.values(final, _state_rows(truncations)))

    def _transform_rewards(self, buffer: RolloutBuffer) -> None:
        rewards = buffer.host("rewards")
        _require_finite("reward", rewards)
        if not self.rewards.is_identity:
            self.rewards.apply(rewards, buffer.host("dones"))

    def state_dict(self) -> dict[str, Any]:
        """Everything that belongs to the stream of experience, apart from the envs themselves."""
        return {
            "rewards": self.rewards.state_dict(),
            "statistics": self.statistics.state_dict(),
            "policy_state": self.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the stream; the envs must have been restored before."""
        self.rewards.load_state_dict(state["rewards"])
        self.statistics.load_state_dict(state["statistics"])
        saved: PolicyState | None = state["policy_state"]
        self.state = (
            None if saved is None else {key: value.to(self.device, copy=True) for key, value in saved.items()}
        )  # aligned
        self.obs = self.envs.observations()
        self.started = True


def _rows(obs: Obs, mask: Array) -> Obs:
    if isinstance(obs, dict):
        return {key: value[mask].copy() for key, value in obs.items()}
    return obs[mask].copy()


def _concatenate(parts: list[Obs]) -> Obs:
    first = parts[0]
    if isinstance(first, dict):
        return {key: np.concatenate([p[key] for p in parts if isinstance(p, dict)]) for key in first}
    return np.concatenate([p for p in parts if not isinstance(p, dict)])


def _state_rows(truncations: list[Truncation]) -> PolicyState | None:
    """The policy state each cut-off env was in, in the order of the batch of final observations."""
    rows = [
        {key: value[torch.from_numpy(cut.envs).to(value.device)] for key, value in cut.state.items()}
        for cut in truncations
        if cut.state is not None
    ]
    return {key: torch.cat([row[key] for row in rows]) for key in rows[0]} if rows else None


def _require_finite_obs(obs: TensorObs) -> None:
    """Refuse a rollout with broken observations before anything learns from it, the normaliser included."""
    for key, values in obs.items() if isinstance(obs, dict) else [("", obs)]:
        if values.is_floating_point() and not bool(values.isfinite().all()):
            _require_finite(f"observation {key}".strip(), values.numpy(force=True))


def _require_finite_step(result: StepResult) -> None:
    """Refuse a broken step before it is stored."""
    for what, values in [("reward", result.rewards), *_named("observation", result.obs)]:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            _require_finite(what, values[None])
    if result.final_obs is not None:
        for what, values in _named("final observation", result.final_obs):
            if values.dtype.kind == "f":
                _require_finite(what, values[None], result.ended)


def _named(what: str, obs: Obs) -> list[tuple[str, Array]]:
    return (
        [(f"{what} {key}", value) for key, value in obs.items()] if isinstance(obs, dict) else [(what, obs)]
    )


def _require_finite(what: str, values: Array, envs: Array | None = None, broken: str = "env") -> None:
    """Refuse what is not a number, naming its place in `[step, env, …]`; `envs` says whose the rows are."""
    if not np.isfinite(values).all():
        step, row, *_ = np.argwhere(~np.isfinite(values))[0]
        env = row if envs is None else envs[row]
        where = f"the {what} of env {env} at step {step} of the rollout"
        raise NonFiniteError(f"{where} is NaN or infinite: the {broken} is broken")
