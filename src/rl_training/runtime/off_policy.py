"""The off-policy family: transitions into a replay buffer, batches out of it."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm, OffPolicyHyperparams
from rl_training.data.frame_stacks import Stack, frame_stacks
from rl_training.data.her import HindsightSampler
from rl_training.data.layout import RolloutLayout, rollout_layout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import CapturableSampler, PrioritizedSampler, UniformSampler
from rl_training.data.storage import in_memory, on_disk, pinned, pinned_bytes, seen_by
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError
from rl_training.runtime.collector import Block
from rl_training.runtime.compilation import Update, Workload
from rl_training.runtime.memory import readable, require_disk, require_memory
from rl_training.runtime.rounds import CapturedRounds
from rl_training.runtime.trainer import LoopSettings, Trainer
from rl_training.types import Array, GoalTask, Spec, StepResult, TransitionBatch, UpdateResult


def replay_layout(
    spec: Spec, hyperparams: OffPolicyHyperparams, frames: int
) -> tuple[RolloutLayout, dict[str, Stack]]:
    """How experience of an env is stored, and which of its entries are stacks of `frames` frames."""
    # Hindsight counts slots, and new stacks take some that are no steps: there they are stored whole.
    stacks = frame_stacks(spec.observation_space, frames) if hyperparams.her == "none" else {}
    return rollout_layout(spec), stacks


class OffPolicyTrainer(Trainer):
    """Takes a few steps, then makes as many updates as they pay for."""

    family = "off-policy"
    algorithm: OffPolicyAlgorithm

    @classmethod
    def check(cls, algorithm: Algorithm, envs: VectorEnv, settings: LoopSettings) -> None:
        """Hindsight needs an env with goals, rewards must keep their meaning, and the buffer must fit."""
        hp: OffPolicyHyperparams = algorithm.hyperparams
        if settings.normalize_reward:
            raise ConfigError(
                "env.normalize_reward: replayed rewards must not change their meaning; use env.reward_scale"
            )
        if hp.learning_starts >= settings.total_timesteps:
            warnings.warn(
                f"hyperparams.learning_starts: {hp.learning_starts} is not below total_timesteps "
                f"({settings.total_timesteps}): all steps are random, no update will be made before the end",
                stacklevel=2,
            )
        if hp.her != "none":
            envs.goal_task()
        layout, stacks = replay_layout(envs.spec, hp, settings.frame_stack)
        taken = pinned_bytes if _pins(hp, algorithm.context.device, settings) else int
        needed = ReplayBuffer.predict_bytes(
            hp.buffer_size, layout, stacks, num_envs=envs.num_envs, taken=taken
        )
        if hp.buffer_storage == "disk":
            require_disk("hyperparams.buffer_size", needed, _scratch(settings))
        else:
            require_memory("hyperparams.buffer_size", needed, _storage_device(hp, algorithm.context.device))

    def build(self) -> None:
        """Allocate the replay buffer."""
        self.hyperparams: OffPolicyHyperparams = self.algorithm.hyperparams
        self.buffer = self._make_buffer()
        self.sampler = self._make_sampler()
        self.replay = self.streams.get("replay")
        self.exploring = self.streams.get("exploration", self.collector.generator.device)
        self.credit = 0
        self._rounds: CapturedRounds | None = None
        """Updates with the drawing of their batches as graphs, where that can be."""

    def _make_buffer(self) -> ReplayBuffer:
        """The replay buffer, where it is wanted."""
        hp = self.hyperparams
        layout, stacks = replay_layout(self.envs.spec, hp, self.settings.frame_stack)
        if hp.buffer_storage == "disk":
            allocate, where = on_disk(_scratch(self.settings)), "on disk"
        else:
            device = _storage_device(hp, self.device)
            allocate, where = in_memory(device), "in memory" if device.type == "cpu" else f"on {device}"
        how: dict[str, Any] = {"allocate": allocate}
        pins = _pins(hp, self.device, self.settings)
        if pins:
            how = {"allocate": pinned(), "view": seen_by(self.device)}
        buffer = ReplayBuffer(hp.buffer_size, self.envs.num_envs, layout, stacks=stacks, **how)
        size = hp.buffer_size * buffer.bytes_per_transition
        when = "when full"
        if pins:
            size = sum(pinned_bytes(tensor.nbytes) for tensor in buffer.tensors().values())
            when = "from the start, pinned"
        self.resources = {
            "replay_buffer": {
                "transitions": hp.buffer_size,
                "bytes_per_transition": buffer.bytes_per_transition,
                "bytes": size,
                "storage": hp.buffer_storage,
            }
        }
        self.announcement = (
            f"replay buffer: {hp.buffer_size:,} transitions of {buffer.bytes_per_transition:,} bytes, "
            f"{readable(size)} {where} {when}"
        )
        return buffer

    def _make_sampler(self) -> UniformSampler:
        hp, buffer = self.hyperparams, self.buffer
        if hp.prioritized:
            return PrioritizedSampler(
                buffer, gamma=hp.gamma, n_step=hp.n_step, alpha=hp.priority_alpha, beta=hp.priority_beta
            )
        if hp.her != "none":
            return HindsightSampler(
                buffer,
                self._goal_task(),
                gamma=hp.gamma,
                n_step=hp.n_step,
                strategy=hp.her,
                goals=hp.her_goals,
            )
        kind = CapturableSampler if self._in_graphs() else UniformSampler
        return kind(buffer, gamma=hp.gamma, n_step=hp.n_step)

    def _in_graphs(self) -> bool:
        """Whether batches are to be drawn on the GPU, as a part of updates that are captured."""
        return _in_graphs(self.hyperparams, self.device, self.settings)

    def _goal_task(self) -> GoalTask:
        """The env's judgement, with the rewards that the learner would have got for it."""
        task = self.envs.goal_task()

        def reward(achieved: Array, desired: Array) -> Array:
            rewards = np.array(task.reward(achieved, desired), np.float64)
            self.collector.rewards.apply(rewards[None], np.zeros((1, len(rewards))))
            return rewards

        return dataclasses.replace(task, reward=reward)

    def iterate(self) -> None:
        """Enough steps for one round of updates, then the rounds they pay for."""
        hp, num_envs = self.hyperparams, self.envs.num_envs
        if self.iteration == 0:
            self.buffer.begin(self.collector.obs)
        self._move_schedules()
        block = self._block(self.global_step, self.credit)
        step = self.global_step + block.steps * num_envs
        paid = self.credit + block.steps * num_envs if step >= hp.learning_starts else self.credit
        rounds, credit = divmod(paid, hp.train_every)
        self.collector.collect_transitions(
            self._store, block, self.algorithm.exploration, self.exploring, ahead=self._block(step, credit)
        )
        self.global_step, self.credit = step, credit
        self._each("on_collect")
        begin = perf_counter()
        count = rounds * hp.gradient_steps
        if self._rounds is not None:
            self.note(self._rounds(count))
        else:
            self.note([self._drawn_update(self.updates) for _ in range(count)])
        self.profiler.add("learn", perf_counter() - begin)

    def _block(self, step: int, credit: int) -> Block:
        """The steps from `step` on to the next round of updates, of which `credit` have been taken."""
        hp = self.hyperparams
        steps = max(1, -(-(hp.train_every - credit) // self.envs.num_envs))
        return Block(steps, step < hp.learning_starts, step / self.horizon)

    def _store(self, actions: Tensor, result: StepResult) -> None:
        self.sampler.written(self.buffer.add(actions, result))

    def episodes_abandoned(self) -> None:
        """Leave the last observations as they are and begin anew behind them."""
        self.buffer.begin(self.collector.obs)

    def batch(self) -> TransitionBatch:
        """Transitions drawn from the buffer, where the networks are."""
        batch = self.sampler.sample(self.hyperparams.batch_size, self.replay)
        return batch if self.buffer.device == self.device else self.move(batch)

    def move(self, batch: TransitionBatch) -> TransitionBatch:
        """A batch from where it is stored to where the networks are."""
        return _batch_to(batch, self.device)

    def prepare(self, *, in_parts: bool = False) -> None:
        """Where batches are drawn on the GPU, steps and rounds of updates can be captured as graphs."""
        self.compile_choices()
        inner = self.updates.within_graphs() if self._in_graphs() and not in_parts else None
        if inner is not None:
            self._rounds = CapturedRounds(self.updates, inner, self._drawn_update)
            self.collector.capture = self.updates.attempt

    def _drawn_update(self, update: Update) -> UpdateResult:
        """One update from a batch of its own."""
        batch = self.batch()
        result = update(batch)
        if result.priorities is not None:
            self.sampler.update_priorities(batch.index, result.priorities.to(self.buffer.device))
        return result

    def workload(self) -> Workload:
        """Some gradient steps for every few steps of the envs."""
        hp = self.hyperparams
        steps = max(0, self.settings.total_timesteps - hp.learning_starts)
        return Workload(steps // hp.train_every * hp.gradient_steps, hp.batch_size)

    def _move_schedules(self) -> None:
        progress = self.global_step / self.horizon
        self.sampler.set_progress(progress)
        if self.algorithm.exploration is not None:
            self.algorithm.exploration.set_progress(progress)

    def family_metrics(self) -> dict[str, float]:
        """How full the buffer is, how many updates there were, and how much is explored."""
        exploration = self.algorithm.exploration
        explored = {} if exploration is None else exploration.metrics()
        return {
            "rollout/buffer": float(len(self.buffer)),
            "train/updates": float(self.algorithm.num_updates),
            **{f"rollout/{name}": value for name, value in explored.items()},
        }

    def family_state(self) -> dict[str, Any]:
        """The replay buffer, the sampler's priorities and the exploration's memory."""
        exploration = self.algorithm.exploration
        return {
            "buffer": self.buffer.state_dict(),
            "sampler": {**self.sampler.state_dict(), "credit": self.credit},
            "exploration": {} if exploration is None else exploration.state_dict(),
        }

    def load_family_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the buffer as it was."""
        self.buffer.load_state_dict(state["buffer"])
        self.sampler.load_state_dict(state["sampler"])
        self.credit = int(state["sampler"]["credit"])
        if self.algorithm.exploration is not None:
            self.algorithm.exploration.load_state_dict(_to_device(state["exploration"], self.device))
        if self.collector.gap:
            self.episodes_abandoned()


def _batch_to(batch: TransitionBatch, device: torch.device) -> TransitionBatch:
    """A batch where the networks are; where its samples came from stays with the buffer."""
    moved = {
        f.name: _obs_to(getattr(batch, f.name), device)
        for f in dataclasses.fields(batch)
        if f.name != "index"
    }
    return dataclasses.replace(batch, **moved)


def _obs_to(values: Any, device: torch.device) -> Any:
    if isinstance(values, dict):
        return {key: value.to(device, non_blocking=True) for key, value in values.items()}
    return values.to(device, non_blocking=True)


def _to_device(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in state.items()
    }


def _in_graphs(hp: OffPolicyHyperparams, device: torch.device, settings: LoopSettings) -> bool:
    plain = hp.her == "none" and not hp.prioritized and hp.buffer_storage != "disk"
    return plain and device.type == "cuda" and settings.compile != "off"


def _pins(hp: OffPolicyHyperparams, device: torch.device, settings: LoopSettings) -> bool:
    """Whether the buffer is in main memory and a GPU reads it there."""
    return hp.buffer_storage == "memory" and _in_graphs(hp, device, settings)


def _storage_device(hp: OffPolicyHyperparams, device: torch.device) -> torch.device:
    return device if hp.buffer_storage == "device" else torch.device("cpu")


def _scratch(settings: LoopSettings) -> Path:
    return settings.scratch or Path(tempfile.gettempdir())
