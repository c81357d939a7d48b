"""The on-policy family: a fresh rollout an iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import OnPolicyAlgorithm, OnPolicyHyperparams
from rl_training.data.layout import rollout_layout
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.functional.returns import explained_variance
from rl_training.runtime.acting import CompiledStep, Step
from rl_training.runtime.averaging import Seat
from rl_training.runtime.compilation import Updates, Workload
from rl_training.runtime.intrinsic import IntrinsicReward
from rl_training.runtime.recorded import RecordedRound
from rl_training.runtime.tracing import results_of, row_of
from rl_training.runtime.trainer import Trainer
from rl_training.types import Batch, RolloutBatch, UpdateResult


class OnPolicyTrainer(Trainer):
    """Collects a rollout with the current policy, learns from it for some epochs, throws it away."""

    family = "on-policy"
    takes_tensors = True
    algorithm: OnPolicyAlgorithm

    def build(self) -> None:
        """Preallocate the rollout."""
        self.hyperparams: OnPolicyHyperparams = self.algorithm.hyperparams
        self.buffer = RolloutBuffer(
            self.hyperparams.num_steps,
            self.envs.num_envs,
            device=self.device,
            sequence_length=self.algorithm.sequence_length,
            tensor_steps=self.collector.stepping.tensors,
            **rollout_layout(self.envs.spec),
        )
        flat = self.algorithm.sequence_length is None
        self.minibatches = self.buffer.minibatches if flat else self.buffer.sequences
        self.shuffling = self.streams.get("minibatches")
        self.intrinsic: IntrinsicReward | None = None
        if self.settings.intrinsic.kind != "none":
            self.collector.stepping.endings = []
            self.intrinsic = IntrinsicReward(
                self.envs.spec,
                self.settings.intrinsic,
                num_envs=self.envs.num_envs,
                device=self.device,
                seed=self.settings.seed,
                gamma=self.hyperparams.gamma,
            )
        self._inner: Updates | None = None
        """Updates that may be part of a larger graph: until there is one, if there is to be one."""
        self._whole: RecordedRound | None = None
        """An iteration as one graph."""

    def prepare(self, *, in_parts: bool = False) -> None:
        """Steps are compiled or captured too; with envs on the GPU whole iterations, from the second on."""
        collector, updates, tensors = self.collector, self.updates, self.collector.stepping.tensors
        if collector.state is not None:
            return
        if not tensors:
            self.compile_choices()
        if in_parts:
            return
        inner = updates.within_graphs()
        if updates.compiles and tensors:
            collector.together = self._compiled_step()
        if inner is not None and not tensors:
            collector.capture = updates.attempt
        elif inner is not None and self.intrinsic is None:
            self._inner = inner

    def _compiled_step(self) -> Step | None:
        """Policy and envs that are tensors in one piece."""
        with torch.inference_mode():
            obs = self.buffer.observe(self.collector.stepping.observations())
        return self.updates.compile(
            "steps of the envs", lambda compiled: CompiledStep(self.collector.step_together, obs, compiled)
        )

    def iterate(self) -> None:
        """One rollout and the epochs over it."""
        if self._inner is not None and self.buffer.full:
            self._record_whole(self._inner)
        if self._whole is not None:
            self._iterate_whole(self._whole)
            return
        last_values = self.collector.collect(self.buffer)
        self._collected()
        begin = perf_counter()
        results = self._learn(last_values, self.updates if self._inner is None else self._inner)
        self.note(results)
        self.check_finite()
        self.collector.learn_statistics(self.buffer)
        self.profiler.add("learn", perf_counter() - begin)

    def _learn(self, last_values: Tensor, update: Callable[[Batch], UpdateResult]) -> list[UpdateResult]:
        """Advantages, and some epochs of minibatches."""
        hp, buffer = self.hyperparams, self.buffer
        results: list[UpdateResult] = []
        if self.intrinsic is not None:
            results += self.intrinsic.add_to(buffer, self.collector)
        buffer.compute_returns_and_advantages(last_values, hp.gamma, hp.gae_lambda)
        first = self.algorithm.before_epochs(buffer.whole())
        results += [] if first is None else [first]
        for _ in range(hp.update_epochs):
            epoch = [update(batch) for batch in self.minibatches(hp.num_minibatches, self.shuffling)]
            results.extend(epoch if self.seat is None else self._of_all(epoch, self.seat))
            if not self.algorithm.after_epoch(results[-1]):
                break
        return results

    def _of_all(self, results: list[UpdateResult], seat: Seat) -> list[UpdateResult]:
        """The means of what all learners have to report, so that all see the same and decide alike."""
        return results_of(seat(row_of(results)), [list(result.metrics) for result in results])

    def _collected(self) -> None:
        self.global_step += self.hyperparams.num_steps * self.envs.num_envs * self.learners
        self._each("on_collect")

    def _record_whole(self, inner: Updates) -> None:
        """Capture what an iteration does, now that everything it needs has been allocated by one."""
        self._inner = None
        self.collector.rewards.watch_on(self.device)
        self._whole = self.updates.record_round(
            plain=lambda: self._round(self.algorithm.update),
            quick=lambda: self._round(inner, self.collector.together),
        )
        if self._whole is None:  # the envs are where they were, and that is what the policy must see
            with torch.inference_mode():
                self.collector.obs = self.collector.stepping.observations()

    def _round(
        self, update: Callable[[Batch], UpdateResult], together: Step | None = None
    ) -> list[UpdateResult]:
        """A whole iteration without a look at any value; the envs know where the last one has left them."""
        collector = self.collector
        with torch.inference_mode():
            collector.obs = collector.stepping.observations()
            last_values = collector.rollout(self.buffer, together)
            collector.rewards.watch(self.buffer.steps("rewards"))
            collector.transform_rewards(self.buffer)
        results = self._learn(last_values, update)
        collector.learn_statistics(self.buffer)
        return results

    def _iterate_whole(self, whole: RecordedRound) -> None:
        """One iteration as one graph; what the host wants to know, it reads when all is done."""
        begin = perf_counter()
        results = whole()
        self.collector.rewards.require_finite()
        self.collector.look_at(self.buffer)
        self.note(results)
        self.check_finite()
        self.profiler.add("learn", perf_counter() - begin)
        self._collected()

    def batch(self) -> RolloutBatch:
        """A minibatch of the last rollout."""
        return next(iter(self.minibatches(self.hyperparams.num_minibatches, self.shuffling)))

    def workload(self) -> Workload:
        """Some epochs of minibatches for each rollout."""
        hp, rollout = self.hyperparams, self.hyperparams.num_steps * self.envs.num_envs
        rollouts = -(-self.settings.total_timesteps // (rollout * self.learners))
        return Workload(rollouts * hp.update_epochs * hp.num_minibatches, rollout // hp.num_minibatches)

    def family_state(self) -> dict[str, Any]:
        """The novelty reward, where there is one."""
        return {} if self.intrinsic is None else {"intrinsic": self.intrinsic.state_dict()}

    def load_family_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `family_state` gave; a reward that was not there before begins anew."""
        if self.intrinsic is not None and "intrinsic" in state:
            self.intrinsic.load_state_dict(state["intrinsic"])

    def episodes_abandoned(self) -> None:
        """Begin the returns of the novelty reward anew, one for each env that there is now."""
        if self.intrinsic is not None:
            self.intrinsic.scale.abandon()

    def family_metrics(self) -> dict[str, float]:
        """How much of the returns' variance the critic explains."""
        explained = explained_variance(self.buffer.values, self.buffer.returns)
        return {"train/explained_variance": float(explained)}
