"""Asks the policy, steps the envs, fills the buffer. Knows no loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.vector import VectorEnv
from rl_training.policies.exploration import Exploration
from rl_training.policies.obs import Staging, to_tensor
from rl_training.runtime.acting import CapturedActing, Choose, CompiledActing, Step
from rl_training.runtime.finite import finite, require_finite, require_finite_rollout, require_finite_step
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.rewards import RewardTransform
from rl_training.runtime.statistics import EpisodeStatistics
from rl_training.runtime.stepping import ended_mask, make_stepping
from rl_training.runtime.tracing import CompileRun
from rl_training.types import (
    Array,
    Averaging,
    Obs,
    PolicyOutput,
    PolicyState,
    StepResult,
    TensorObs,
    TensorStep,
)

__all__ = ["Block", "Collector", "OffPolicyPolicy", "Policy", "Store"]


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


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps of off-policy collection."""

    steps: int
    random: bool
    """Whether actions are drawn uniformly, as before learning starts."""
    progress: float
    """How far the run is when the block begins, for the schedules of exploration."""


Store: TypeAlias = Callable[[Tensor, StepResult], None]
"""Takes in the policy's actions and what came of them; what is kept must be copied."""


CompileChoices: TypeAlias = Callable[[Callable[[CompileRun], CompiledActing]], CompiledActing | None]
"""Tries to make the policy's choices with a compiler."""


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
        *,
        tensors: bool = False,
    ) -> None:
        self.envs, self.policy, self.rewards = envs, policy, rewards
        self.generator, self.device, self.profiler = generator, device, profiler
        self.statistics = EpisodeStatistics()
        self.stepping = make_stepping(envs, policy, device, self.statistics, tensors=tensors)
        self.state = policy.initial_state(envs.num_envs)
        self.obs: Any = {}
        """What every env shows now: arrays, or tensors where `stepping` has them."""
        self.started = False
        self.gap = False
        """Whether envs were restored that are further on than what was learned from."""
        self._env_seconds = 0.0
        self.averaging: Averaging | None = None
        """Where several learners train together: statistics of observations are of what all of them see."""
        self.capture: Callable[[str, Callable[[], CapturedActing]], CapturedActing | None] | None = None
        """Tries to make a graph of steps, if there is to be one."""
        self._acting: CapturedActing | None = None
        self.compiling: CompileChoices | None = None
        """Tries to compile the policy's choices, if they are to be."""
        self._choices: CompiledActing | None = None
        self.together: Step | None = None
        """`step_together`, compiled, where that is done."""
        self._staging: Staging | None = None

    def start(self) -> None:
        """Begin the first episode of every env, unless a restored run is already inside one."""
        if not self.started:
            self.obs = self.stepping.reset()
            self.started = True

    def abandon_episodes(self) -> None:
        """Forget what the policy and running returns remember of episodes that could not be restored."""
        self.state = self.policy.initial_state(self.envs.num_envs)
        self.rewards.abandon()

    def collect(self, buffer: RolloutBuffer) -> Tensor:
        """Fill an on-policy buffer and return the values of the observations after its last step."""
        begin = perf_counter()
        with torch.inference_mode():
            last_values = self.rollout(buffer, self.together)
            self.look_at(buffer)
            self.transform_rewards(buffer)
        self.profiler.add("inference", perf_counter() - begin - self._env_seconds)
        self.profiler.add("env", self._env_seconds)
        return last_values

    def look_at(self, buffer: RolloutBuffer) -> None:
        """Refuse a broken rollout, and take note of the episodes that ended in a good one."""
        require_finite_rollout(buffer)
        self.stepping.report(buffer)

    def transform_rewards(self, buffer: RolloutBuffer) -> None:
        """Turn the env's rewards into the learner's."""
        if not self.rewards.is_identity:
            self.rewards.apply(buffer.steps("rewards"), buffer.steps("dones"))

    def rollout(self, buffer: RolloutBuffer, together: Step | None = None) -> Tensor:
        """`collect` without a look at what came of it: of envs that are tensors, the host reads nothing."""
        stepping, self._env_seconds = self.stepping, 0.0
        buffer.reset(self.state)
        stepping.begin(buffer.num_steps)
        result: Any
        for step in range(buffer.num_steps):
            output, result = self._step(buffer) if together is None else together(buffer.observe(self.obs))
            assert output.logprobs is not None  # an on-policy policy gives both
            assert output.values is not None
            buffer.add(
                None, output.actions, output.logprobs, result.rewards, output.values, result.terminated,
                result.truncated, ended=result.ended,
            )  # fmt: skip
            self.obs, self.state = result.obs, stepping.ended(step, result, output.state)
        stepping.value_cuts(buffer)
        return self.policy.values(to_tensor(self.obs, self.device), self.state)

    def _step(self, buffer: RolloutBuffer) -> tuple[PolicyOutput, Any]:
        """One step of all envs, and what the policy said to it."""
        output, actions = self._decide(buffer)
        before = perf_counter()
        result = self.stepping.step(actions)
        self._env_seconds += perf_counter() - before
        return output, result

    def step_together(self, obs: TensorObs) -> tuple[PolicyOutput, TensorStep]:
        """The same for envs that are tensors and a policy without a state: operations on tensors alone."""
        output = self.policy.act(obs, generator=self.generator)
        result: TensorStep = self.stepping.step(self.policy.env_actions(output.actions))
        return output, result

    def _decide(self, buffer: RolloutBuffer) -> tuple[PolicyOutput, Tensor]:
        """What the policy says to the current observations, which the buffer keeps; and the env's actions."""
        if self.capture is not None:
            self._try_capture(self._decide_all, told=(False, False, False, True))
        if self._acting is not None:
            chosen, logprobs, values, actions = self._acting(self.obs)
            buffer.observe(self._acting.seen)
            return PolicyOutput(chosen, logprobs, values), actions
        policy, state = self.policy, self.state
        seen = buffer.observe(self.obs, state)
        self._try_compile(self._decide_all, seen)
        if self._choices is not None:
            chosen, logprobs, values, actions = self._choices(seen)
            return PolicyOutput(chosen, logprobs, values), actions
        output = policy.act(seen, state, generator=self.generator)
        actions = policy.env_actions(output.actions)
        # On the host actions are waited for here, which is no time of the envs.
        return output, actions if self.stepping.tensors else self.to_host(actions)

    def _decide_all(self, obs: TensorObs) -> tuple[Tensor, ...]:
        """A decision as the tensors that a graph hands out."""
        output = self.policy.act(obs, generator=self.generator)
        assert output.logprobs is not None
        assert output.values is not None
        return output.actions, output.logprobs, output.values, self.policy.env_actions(output.actions)

    def _try_capture(self, choose: Choose, *, told: Sequence[bool]) -> None:
        """Make a graph of steps, or never again try to."""
        if self.capture is not None:
            attempt, self.capture = self.capture, None
            self._acting = attempt(
                "the policy's choices", lambda: CapturedActing(choose, self.obs, self.device, told=told)
            )

    def _try_compile(self, choose: Choose, seen: TensorObs) -> None:
        """Compile the policy's choices, or never again try to."""
        if self.compiling is not None:
            attempt, self.compiling = self.compiling, None
            self._choices = attempt(lambda compiled: CompiledActing(choose, seen, compiled))

    def collect_transitions(
        self,
        store: Store,
        block: Block,
        exploration: Exploration | None,
        generator: torch.Generator,
        *,
        ahead: Block,
    ) -> None:
        """Take the steps of a block, at random or with the policy and `exploration`, and store each.

        `ahead` is the block that will be asked for next: what to do meanwhile, for those who can.
        """
        random = block.random
        exploration = None if random else exploration
        policy, envs = cast(OffPolicyPolicy, self.policy), self.envs
        env_seconds = 0.0
        begin = perf_counter()
        with torch.inference_mode():
            for _ in range(block.steps):
                actions, env_actions = self._act(policy, exploration, generator, random=random)
                if not finite(env_actions):
                    require_finite("action", env_actions[None], broken="policy")
                before = perf_counter()
                result = envs.step(env_actions)
                env_seconds += perf_counter() - before
                require_finite_step(result)
                if not self.rewards.is_identity:
                    self.rewards.apply(result.rewards[None], (result.terminated | result.truncated)[None])
                store(actions, result)
                self.obs = result.obs
                if len(result.ended):
                    self.statistics.add(result.episodes)
                    if exploration is not None:
                        exploration.reset(ended_mask(result.ended, envs.num_envs, self.device))
            if self.policy.normalizer is not None:
                self.policy.normalizer.update(to_tensor(self.obs, self.device))
        self.profiler.add("env", env_seconds)
        self.profiler.add("inference", perf_counter() - begin - env_seconds)

    def to_device(self, obs: Obs) -> TensorObs:
        """Observations where the policy is; on the host they last until the next call."""
        if self.device.type != "cpu":
            return to_tensor(obs, self.device)
        if self._staging is None:
            self._staging = Staging(obs)
        return self._staging.show(obs)

    def to_host(self, actions: Tensor) -> Tensor:
        """Actions where the envs are."""
        return actions.cpu()

    def learn_statistics(self, buffer: RolloutBuffer) -> None:
        """Show a finished rollout to the observation normaliser, which is frozen while one is in use."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(buffer.obs, self.averaging)

    def _act(
        self,
        policy: OffPolicyPolicy,
        exploration: Exploration | None,
        generator: torch.Generator,
        *,
        random: bool,
    ) -> tuple[Tensor, Array]:
        """The policy's actions, and what the envs are to be told."""
        if random:
            actions = policy.random_actions(self.to_device(self.obs), generator)
            return actions, self.to_host(policy.env_actions(actions)).numpy()

        def choose(obs: TensorObs) -> tuple[Tensor, Tensor]:
            actions = policy.act(obs, generator=self.generator).actions
            if exploration is not None:
                actions = exploration.explore(actions, policy.random_actions(obs, generator), generator)
            return actions, policy.env_actions(actions)

        if self.capture is not None:
            self._try_capture(choose, told=(True, True))
        if self._acting is not None:
            actions, env_actions = self._acting(self.obs)
            return actions, env_actions.numpy()
        seen = self.to_device(self.obs)
        self._try_compile(choose, seen)
        actions, env_actions = (self._choices or choose)(seen)
        return actions, self.to_host(env_actions).numpy()

    def park(self) -> None:
        """Come to rest before a checkpoint; a collector that is never ahead always is."""

    def metrics(self) -> dict[str, float]:
        """What a log line should say about collection."""
        return self.statistics.metrics()

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
        self.obs = self.stepping.observations()
        self.gap = "ahead" in state  # which a sampler had collected, and which is given up
        self.started = True
