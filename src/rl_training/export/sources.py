"""Where a dataset's transitions come from: a replay buffer that was saved, or episodes played for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.assembly import Session, make_test_envs
from rl_training.data.histories import episodes_of, in_order, saved_buffer
from rl_training.errors import ExportError
from rl_training.runtime.evaluator import evaluate
from rl_training.runtime.off_policy import replay_layout
from rl_training.runtime.recorder import Recorder
from rl_training.types import Array, Episode

PIECE = 4_096
"""Transitions of a replay buffer that are brought together at a time."""


class Source(Protocol):
    """Transitions in the order of time, episode after episode."""

    length: int
    about: dict[str, Any]
    """What the dataset's metadata say of it."""

    def observations(self, key: str, after: int) -> Iterator[Array]:
        """Pieces of the observations (of one key of a Dict); `after` 1: of those that came next."""

    def values(self, name: str) -> Iterator[Array]:
        """Pieces of any other column."""


class BufferSource:
    """All that a replay buffer holds. Rewards are the learner's, actions the env's."""

    def __init__(self, algorithm: Algorithm, session: Session) -> None:
        state, config = (session.state or {}).get("buffer"), session.config
        where = session.source or config.algo
        if state is None:
            raise ExportError(
                f"{where}: has no replay buffer to export; let the agent play instead, with --episodes N "
                "(in Python: episodes=N)"
            )
        layout, stacks = replay_layout(session.spec, config.hyperparams, config.env.frame_stack)
        self._policy, self._device = algorithm.policy, algorithm.context.device
        self._buffer = saved_buffer(state, layout, stacks)
        self._index = in_order(self._buffer)
        self.length = len(self._index)
        if not self.length:
            raise ExportError(f"{where}: its replay buffer is empty")
        self._ids, self._starts = episodes_of(self._buffer, self._index)
        self.about = {
            "source": "replay_buffer",
            "num_episodes": int(self._ids[-1]) + 1,
            "rewards": {"reward_scale": config.env.reward_scale, "clip_reward": config.env.clip_reward},
        }

    def observations(self, key: str, after: int) -> Iterator[Array]:
        """The next observation of an ended episode is its final one: the buffer keeps it apart."""
        for part in torch.split(self._index, PIECE):
            rows = self._buffer.take("obs", self._buffer.next_index(part, after))
            yield (rows[key] if key else rows).numpy()

    def values(self, name: str) -> Iterator[Array]:
        """Rows of the buffer; actions as the env was told them."""
        if name in ("episode_ids", "episode_starts"):
            yield (self._ids if name == "episode_ids" else self._starts).numpy()
            return
        field = {"terminations": "terminated", "truncations": "truncated"}.get(name, name)
        for part in torch.split(self._index, PIECE):
            rows = self._buffer.take(field, part)
            yield (self._told(rows) if name == "actions" else rows).numpy()

    @torch.inference_mode()
    def _told(self, actions: Tensor) -> Tensor:
        """The env's form of the policy's actions."""
        told: Tensor = self._policy.env_actions(actions.to(self._device))
        return told.cpu()


class EpisodesSource:
    """Full episodes, played as an evaluation would. Rewards are the env's own."""

    def __init__(
        self, algorithm: Algorithm, session: Session, count: int, seed: int | None, deterministic: bool
    ) -> None:
        with make_test_envs(session, count, seed=seed) as envs:
            recorder = Recorder(count, envs.num_envs)
            evaluate(
                algorithm.policy, envs, count, device=algorithm.context.device, deterministic=deterministic,
                seed=envs.seed, on_step=recorder, longest=session.config.evaluation.max_episode_steps,
                env_id=session.config.env_id,
            )  # fmt: skip
        self._played = [steps for _, steps in recorder.episodes]
        over = [np.logical_or(steps.terminations, steps.truncations) for steps in self._played]
        self._starts = np.concatenate([[True, *ends[:-1]] for ends in over])
        self.length = len(self._starts)
        self.about = {
            "source": "episodes",
            "deterministic": deterministic,
            "num_episodes": int(self._starts.sum()),
            "rewards": {"reward_scale": 1.0, "clip_reward": None},
            "episodes": [_summary(episode) for episode, _ in recorder.episodes],
        }

    def observations(self, key: str, after: int) -> Iterator[Array]:
        """An episode shows one observation more than it has transitions."""
        for steps in self._played:
            shown = steps.stacked()
            leaf = shown[key] if isinstance(shown, dict) else shown
            yield leaf[1:] if after else leaf[:-1]

    def values(self, name: str) -> Iterator[Array]:
        """An episode at a time."""
        if name in ("episode_ids", "episode_starts"):
            yield self._starts if name == "episode_starts" else np.cumsum(self._starts) - 1
            return
        for steps in self._played:
            yield np.asarray(getattr(steps, name))


def _summary(episode: Episode) -> dict[str, Any]:
    return {"return": episode.total_reward, "length": episode.length, "seed": episode.seed}
