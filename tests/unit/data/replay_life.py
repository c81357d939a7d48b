"""Envs that keep notes of everything that happens to them: the naive list that replay is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.data.frame_stacks import Stack
from rl_training.data.layout import RolloutLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.storage import on_disk
from rl_training.types import StepResult

Transition = dict[str, Any]


class Life:
    """Envs whose frames are (episode, step), so that any mix-up shows.

    With `frames` > 1 an observation is a stack of them: a Dict of an image `(2, 1, frames)`, a vector
    `(frames, 2)` and a note that is no stack, or the vector alone. What lies before the first frame of an
    episode differs from episode to episode: copies of it, zeros, or frames of another life.
    """

    def __init__(self, num_envs: int, seed: int, frames: int = 1, as_dict: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.frames, self.as_dict = num_envs, frames, as_dict
        self.episode = np.arange(num_envs) * 1000
        self.step = np.zeros(num_envs, int)
        self.stacks = np.zeros((num_envs, frames, 2))
        self.columns: list[list[Transition]] = [[] for _ in range(num_envs)]
        self._start(np.arange(num_envs))

    @property
    def layout(self) -> RolloutLayout:
        """What an observation and an action look like."""
        plain = (self.frames, 2) if self.frames > 1 else (2,)
        shape: Any = {"image": (2, 1, self.frames), "vector": plain, "note": (1,)} if self.as_dict else plain
        dtype: Any = dict.fromkeys(shape, torch.float32) if self.as_dict else torch.float32
        return RolloutLayout(obs_shape=shape, obs_dtype=dtype, action_shape=(), action_dtype=torch.int64)

    @property
    def stack_layout(self) -> dict[str, Stack]:
        """Which entries of it are stacks."""
        if self.frames == 1:
            return {}
        vector = Stack(self.frames, 0, (self.frames, 2))
        return (
            {"image": Stack(self.frames, 2, (2, 1, self.frames)), "vector": vector}
            if self.as_dict
            else {"": vector}
        )

    def buffer(self, capacity: int, folder: Path | None = None) -> ReplayBuffer:
        """A buffer for this life, in memory or on disk."""
        return ReplayBuffer(
            capacity, self.num_envs, self.layout, stacks=self.stack_layout,
            allocate=None if folder is None else on_disk(folder),
        )  # fmt: skip

    def obs(self) -> Any:
        """What the envs show now."""
        stacks = self.stacks.astype(np.float32)
        vector = stacks if self.frames > 1 else stacks[:, 0]
        if not self.as_dict:
            return vector
        image = np.moveaxis(stacks, 1, 2)[:, :, None, :]
        return {"image": image, "vector": vector, "note": stacks[:, -1, :1] * 3}

    def advance(self, ends: list[int], jumps: list[bool] | None = None) -> tuple[torch.Tensor, StepResult]:
        """One step of all envs. `ends` says per env: 0 goes on, 1 terminates, 2 is truncated.

        Where an env `jumps`, its stack does not follow from the one before: nothing can be learned from that.
        """
        before, kinds = self.obs(), np.array(ends)
        actions, rewards = self.rng.integers(0, 5, self.num_envs), self.rng.normal(size=self.num_envs)
        self.step += 1
        new = np.stack([self.episode, self.step], 1)
        self.stacks = np.concatenate([self.stacks[:, 1:], new[:, None]], 1)
        jumped = np.array(jumps or [False] * self.num_envs) & (self.frames > 1)
        self.stacks[jumped, 0] -= 0.5
        after = self.obs()
        ended = np.flatnonzero(kinds)
        for i in range(self.num_envs):
            self.columns[i].append(
                {
                    "obs": row(before, i),
                    "action": actions[i],
                    "reward": np.float32(rewards[i]),
                    "next_obs": row(after, i),
                    "terminated": kinds[i] == 1,
                    "over": bool(kinds[i]),
                    "kept": not jumped[i],
                }
            )
        final = rows(after, ended) if len(ended) else None
        self._start(ended)
        result = StepResult(self.obs(), rewards, kinds == 1, kinds == 2, ended, final)
        return torch.from_numpy(actions), result

    def abandon(self) -> None:
        """Leave all episodes as they are and begin new ones."""
        for column in self.columns:
            if column:
                column[-1]["over"] = True
                column[-1]["abandoned"] = column[-1].get("abandoned", 0) + 1
        self._start(np.arange(self.num_envs))

    def _start(self, envs: Any) -> None:
        self.episode[envs] += 1
        self.step[envs] = 0
        for i in envs:
            first = np.array([self.episode[i], 0])
            past = self.rng.normal(size=(self.frames, 2))
            self.stacks[i] = (first, 0 * past, past)[self.rng.integers(3)]
            self.stacks[i, -1] = first


def row(obs: Any, i: int) -> Any:
    return {k: v[i].copy() for k, v in obs.items()} if isinstance(obs, dict) else obs[i].copy()


def rows(obs: Any, index: Any) -> Any:
    return {k: v[index] for k, v in obs.items()} if isinstance(obs, dict) else obs[index]


def name_of(obs: Any) -> tuple[float, float]:
    """Episode and step of an observation: its newest frame."""
    vector = np.asarray(obs["vector"] if isinstance(obs, dict) else obs)
    episode, step = vector.reshape(-1, 2)[-1].tolist()
    return episode, step


def assert_same(obs: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert obs.keys() == expected.keys()
        for key in expected:
            np.testing.assert_array_equal(obs[key], expected[key])
    else:
        np.testing.assert_array_equal(obs, expected)


def n_step(column: list[Transition], start: int, n: int, gamma: float) -> tuple[float, Any, float]:
    """Return, last observation and discount of the transition `start`, by the definition."""
    total, discount, last = 0.0, 1.0, None
    for transition in column[start : start + n]:
        if not transition["kept"]:
            break
        total += discount * float(transition["reward"])
        discount *= gamma
        last = transition["next_obs"]
        if transition["terminated"]:
            return total, last, 0.0
        if transition["over"]:
            break
    return total, last, discount


def sequence(
    column: list[Transition], stored: set[int], at: int, burn_in: int, length: int
) -> list[int | None]:
    """The steps around `at` that belong to its episode and are stored; None for those that are not."""
    first = at
    while first > at - burn_in and first - 1 in stored and not column[first - 1]["over"]:
        first -= 1
    last = at
    while last + 1 < at + length and last + 1 in stored and not column[last]["over"]:
        last += 1
    return [k if first <= k <= last else None for k in range(at - burn_in, at + length)]
