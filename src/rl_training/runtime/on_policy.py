"""The on-policy family: a fresh rollout an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from rl_training.algorithms.base import OnPolicyAlgorithm, OnPolicyHyperparams
from rl_training.data.layout import rollout_layout
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.functional.returns import explained_variance
from rl_training.runtime.compilation import Workload
from rl_training.runtime.intrinsic import IntrinsicReward
from rl_training.runtime.trainer import Trainer
from rl_training.types import RolloutBatch, UpdateResult


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

    def iterate(self) -> None:
        """One rollout and the epochs over it."""
        hp, buffer = self.hyperparams, self.buffer
        last_values = self.collector.collect(buffer)
        self.global_step += hp.num_steps * self.envs.num_envs
        self._each("on_collect")

        begin = perf_counter()
        results: list[UpdateResult] = []
        if self.intrinsic is not None:
            results += self.intrinsic.add_to(buffer, self.collector)
        buffer.compute_returns_and_advantages(last_values, hp.gamma, hp.gae_lambda)
        first = self.algorithm.before_epochs(buffer.whole())
        results += [] if first is None else [first]
        for _ in range(hp.update_epochs):
            minibatches = self.minibatches(hp.num_minibatches, self.shuffling)
            results.extend(map(self.updates, minibatches))
            if not self.algorithm.after_epoch(results[-1]):
                break
        self.note(results)
        self.check_finite()
        self.collector.learn_statistics(buffer)
        self.profiler.add("learn", perf_counter() - begin)

    def batch(self) -> RolloutBatch:
        """A minibatch of the last rollout."""
        return next(iter(self.minibatches(self.hyperparams.num_minibatches, self.shuffling)))

    def workload(self) -> Workload:
        """Some epochs of minibatches for each rollout."""
        hp, rollout = self.hyperparams, self.hyperparams.num_steps * self.envs.num_envs
        rollouts = -(-self.settings.total_timesteps // rollout)
        return Workload(rollouts * hp.update_epochs * hp.num_minibatches, rollout // hp.num_minibatches)

    def family_state(self) -> dict[str, Any]:
        """The novelty reward, where there is one."""
        return {} if self.intrinsic is None else {"intrinsic": self.intrinsic.state_dict()}

    def load_family_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `family_state` gave; a reward that was not there before begins anew."""
        if self.intrinsic is not None and "intrinsic" in state:
            self.intrinsic.load_state_dict(state["intrinsic"])

    def family_metrics(self) -> dict[str, float]:
        """How much of the returns' variance the critic explains."""
        explained = explained_variance(self.buffer.values, self.buffer.returns)
        return {"train/explained_variance": float(explained)}
