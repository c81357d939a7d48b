"""Hindsight replay against lists kept by hand: which goals may be set, and what they are worth."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_training.data.her import STRATEGIES, HindsightSampler
from rl_training.data.layout import RolloutLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.types import GoalTask, StepResult

KEYS = ("observation", "achieved_goal", "desired_goal")
LAYOUT = RolloutLayout(
    obs_shape=dict.fromkeys(KEYS, (2,)),
    obs_dtype=dict.fromkeys(KEYS, torch.float32),
    action_shape=(),
    action_dtype=torch.int64,
)
GAMMA = 0.9


def reward(achieved: Any, desired: Any) -> Any:
    """A number that shows which two goals it was computed from."""
    return 10.0 * achieved[..., 1] + desired[..., 1] + 100.0 * (achieved[..., 0] == desired[..., 0])


def reached(achieved: Any, desired: Any) -> Any:
    return (achieved == desired).all(-1)


class Life:
    """Envs that achieve (episode, step) and are asked for (-episode, -1); they keep notes."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs = num_envs
        self.episode = np.arange(num_envs) * 1000 + 1
        self.step = np.zeros(num_envs, int)
        self.columns: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
        self.seen: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]
        """Every observation of each env, in order: what a ring of slots holds is the end of that."""
        self.last: dict[int, int] = {}
        """How far each episode got."""

    def obs(self) -> dict[str, Any]:
        achieved = np.stack([self.episode, self.step], 1).astype(np.float32)
        desired = np.stack([-self.episode, np.full(self.num_envs, -1)], 1).astype(np.float32)
        return {"observation": achieved + 0.5, "achieved_goal": achieved, "desired_goal": desired}

    def begin(self) -> dict[str, Any]:
        for i in range(self.num_envs):
            self._note(i)
        return self.obs()

    def abandon(self) -> dict[str, Any]:
        for column in self.columns:
            column[-1]["cut"] = True
        self.episode += 1
        self.step[:] = 0
        return self.begin()

    def advance(self, ends: list[int]) -> tuple[torch.Tensor, StepResult]:
        """One step of all envs; `ends` says per env: 0 goes on, 1 terminates, 2 is truncated."""
        kinds, rewards = np.array(ends), self.rng.normal(size=self.num_envs)
        for i in range(self.num_envs):
            self.columns[i].append(
                {
                    "episode": int(self.episode[i]),
                    "step": int(self.step[i]),
                    "reward": float(np.float32(rewards[i])),
                    "terminated": kinds[i] == 1,
                    "cut": kinds[i] == 2,
                }
            )
        self.step += 1
        for i in range(self.num_envs):
            self._note(i)
        ended = np.flatnonzero(kinds)
        final = {key: part[ended] for key, part in self.obs().items()}
        self.episode[ended] += 1
        self.step[ended] = 0
        for i in ended:
            self._note(i)
        actions = torch.zeros(self.num_envs, dtype=torch.int64)
        return actions, StepResult(
            self.obs(), rewards, kinds == 1, kinds == 2, ended, final if len(ended) else None
        )

    def _note(self, i: int) -> None:
        self.seen[i].append((int(self.episode[i]), int(self.step[i])))
        self.last[int(self.episode[i])] = int(self.step[i])


def oracle(
    column: list[dict[str, Any]], start: int, n: int, goal: tuple[int, int] | None, ends: bool
) -> tuple[float, tuple[int, int], float]:
    """Return, last state and discount of a transition, for its own goal or another, by the definition."""
    total, discount = 0.0, 1.0
    for transition in column[start : start + n]:
        last = (transition["episode"], transition["step"] + 1)
        if goal is None:
            value, terminated = transition["reward"], transition["terminated"]
        else:
            value = float(reward(np.array(last), np.array(goal)))
            terminated = last == goal if ends else transition["terminated"]
        total += discount * value
        discount *= GAMMA
        if terminated:
            return total, last, 0.0
        if transition["cut"] or transition["terminated"]:
            break
    return total, last, discount


class Hindsight(RuleBasedStateMachine):
    """Steps, saves, loads and breaks in any order; every goal set must be one that was achieved."""

    @initialize(
        num_envs=st.integers(1, 3),
        capacity=st.integers(8, 40),
        n=st.integers(1, 3),
        strategy=st.sampled_from(STRATEGIES),
        goals=st.integers(1, 4),
        ends=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(
        self, num_envs: int, capacity: int, n: int, strategy: Any, goals: int, ends: bool, seed: int
    ) -> None:
        self.life = Life(num_envs, seed)
        self.capacity, self.n, self.strategy, self.goals = capacity, n, strategy, goals
        self.ends = ends
        self.generator = torch.Generator().manual_seed(seed)
        self.make()
        self.buffer.begin(self.life.begin())

    def make(self) -> None:
        self.buffer = ReplayBuffer(self.capacity, self.life.num_envs, LAYOUT)
        self.sampler = HindsightSampler(
            self.buffer,
            GoalTask(reward, reached if self.ends else None),
            gamma=GAMMA,
            n_step=self.n,
            strategy=self.strategy,
            goals=self.goals,
        )

    @rule(ends=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=3, max_size=3))
    def step(self, ends: list[int]) -> None:
        self.sampler.written(self.buffer.add(*self.life.advance(ends[: self.life.num_envs])))

    @rule(broken=st.booleans())
    def save_and_load(self, broken: bool) -> None:
        saved = self.buffer.state_dict()
        segments = [
            {name: tensor.clone() for name, tensor in segment.tensors().items()}
            for segment in saved["segments"]
        ]
        state = self.sampler.state_dict()
        self.make()
        self.buffer.load_state_dict({**saved, "segments": segments})
        self.sampler.load_state_dict(state)
        if broken and self.buffer.total:  # a resume that could not bring the envs back
            self.buffer.begin(self.life.abandon())

    def allowed(self, env: int, transition: dict[str, Any]) -> set[tuple[int, int]]:
        """Every goal that the strategy may set for a transition."""
        episode, step = transition["episode"], transition["step"]
        last = self.life.last[episode]
        if self.strategy == "final":
            return {(episode, last)}
        if self.strategy == "future":
            return {(episode, t) for t in range(step + 1, last + 1)}
        return {(e, t) for e, t in self.life.seen[env][-self.buffer.slots :] if e == episode and t > 0}

    @invariant()
    def every_batch_is_true(self) -> None:
        if not hasattr(self, "life") or not len(self.buffer):
            return
        batch = self.sampler.sample(20, self.generator)
        relabelled = round(20 * self.goals / (self.goals + 1))
        where = {
            (t["episode"], t["step"]): (env, k)
            for env, column in enumerate(self.life.columns)
            for k, t in enumerate(column)
        }
        for i in range(20):
            state = tuple(int(x) for x in batch.obs["achieved_goal"][i])
            assert batch.obs["observation"][i].tolist() == [x + 0.5 for x in state]
            env, k = where[state]
            column = self.life.columns[env]
            goal = tuple(int(x) for x in batch.obs["desired_goal"][i])
            if i < relabelled:
                assert goal in self.allowed(env, column[k])
            else:
                assert goal == (-state[0], -1)
            total, last, discount = oracle(column, k, self.n, goal if i < relabelled else None, self.ends)
            np.testing.assert_allclose(float(batch.rewards[i]), total, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(float(batch.discount[i]), discount, rtol=1e-6)
            assert tuple(int(x) for x in batch.next_obs["achieved_goal"][i]) == last
            assert batch.next_obs["observation"][i].tolist() == [x + 0.5 for x in last]
            assert tuple(int(x) for x in batch.next_obs["desired_goal"][i]) == goal


TestHindsight = Hindsight.TestCase
TestHindsight.settings = settings(max_examples=40, stateful_step_count=40)


def filled(strategy: Any, **options: Any) -> tuple[Life, ReplayBuffer, HindsightSampler]:
    """One finished episode of 8 steps and 4 steps of the next."""
    life, buffer = Life(1, 0), ReplayBuffer(40, 1, LAYOUT)
    sampler = HindsightSampler(buffer, GoalTask(reward, None), gamma=GAMMA, strategy=strategy, **options)
    buffer.begin(life.begin())
    for t in range(12):
        sampler.written(buffer.add(*life.advance([2 * (t == 7)])))
    return life, buffer, sampler


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_drawn_evenly_from_all_that_the_strategy_allows(strategy: Any) -> None:
    *_, sampler = filled(strategy, goals=10**9)
    batch = sampler.sample(60_000, torch.Generator().manual_seed(0))
    counts: dict[tuple[int, int], Counter[int]] = {}
    states, goals = batch.obs["achieved_goal"].int().tolist(), batch.obs["desired_goal"].int().tolist()
    for (episode, step), (of, goal) in zip(states, goals, strict=True):
        assert of == episode
        counts.setdefault((episode, step), Counter())[goal] += 1
    assert set(counts) == {(1, t) for t in range(8)} | {(2, t) for t in range(4)}
    for (episode, step), drawn in counts.items():
        last = {1: 8, 2: 4}[episode]
        first = {"future": step + 1, "final": last, "episode": 1}[strategy]
        assert set(drawn) == set(range(first, last + 1))
        expected = drawn.total() / len(drawn)
        assert all(abs(n - expected) < 5 * expected**0.5 for n in drawn.values())


@pytest.mark.parametrize(("goals", "relabelled"), [(1, 50), (4, 80), (9, 90)])
def test_k_goals_are_set_for_every_one_that_is_kept(goals: int, relabelled: int) -> None:
    *_, sampler = filled("future", goals=goals)
    batch = sampler.sample(100, torch.Generator().manual_seed(0))
    assert int((batch.obs["desired_goal"][:, 0] > 0).sum()) == relabelled
    assert torch.equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])


def test_the_buffer_itself_keeps_its_goals_and_rewards() -> None:
    _, buffer, sampler = filled("future")
    before = {name: tensor.clone() for name, tensor in buffer.tensors().items()}
    sampler.sample(100, torch.Generator().manual_seed(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in buffer.tensors().items())


def test_an_episode_longer_than_the_buffer_is_used_as_far_as_it_is_there() -> None:
    life, buffer = Life(1, 0), ReplayBuffer(10, 1, LAYOUT)
    sampler = HindsightSampler(buffer, GoalTask(reward, None), gamma=GAMMA, strategy="episode", goals=10**9)
    buffer.begin(life.begin())
    for t in range(26):
        sampler.written(buffer.add(*life.advance([int(t == 24)])))
    batch = sampler.sample(2_000, torch.Generator().manual_seed(0))
    old = batch.obs["achieved_goal"][:, 0] == 1
    goals = batch.obs["desired_goal"][old].int()
    # 11 slots: s_17 … s_25 of the first episode and two of the second
    assert set(goals[:, 0].tolist()) == {1}
    assert set(goals[:, 1].tolist()) == set(range(17, 26))
