"""The replay buffer and its samplers against a list of transitions kept by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_training.data.layout import RolloutLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import PrioritizedSampler, UniformSampler
from rl_training.data.sum_tree import SumTree
from rl_training.errors import ConfigError
from rl_training.types import StepResult

LAYOUT = RolloutLayout(obs_shape=(2,), obs_dtype=torch.float32, action_shape=(), action_dtype=torch.int64)
DICT_LAYOUT = RolloutLayout(
    obs_shape={"image": (2, 2), "vector": (3,)},
    obs_dtype={"image": torch.uint8, "vector": torch.float32},
    action_shape=(1,),
    action_dtype=torch.float32,
)


class Life:
    """Envs whose observation is (episode, step), so that any mix-up shows; it keeps notes."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs = num_envs
        self.episode = np.arange(num_envs) * 1000
        self.step = np.zeros(num_envs, int)
        self.columns: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]

    def obs(self) -> Any:
        return np.stack([self.episode, self.step], 1).astype(np.float32)

    def advance(self, ends: list[int]) -> tuple[torch.Tensor, StepResult]:
        """One step of all envs; `ends` says per env: 0 goes on, 1 terminates, 2 is truncated."""
        before, kinds = self.obs(), np.array(ends)
        actions, rewards = self.rng.integers(0, 5, self.num_envs), self.rng.normal(size=self.num_envs)
        self.step += 1
        after = self.obs()
        ended = np.flatnonzero(kinds)
        for i in range(self.num_envs):
            self.columns[i].append(
                {
                    "obs": before[i],
                    "action": actions[i],
                    "reward": np.float32(rewards[i]),
                    "next_obs": after[i],
                    "terminated": kinds[i] == 1,
                    "truncated": kinds[i] == 2,
                }
            )
        final = after[ended]
        self.episode[ended] += 1
        self.step[ended] = 0
        result = StepResult(self.obs(), rewards, kinds == 1, kinds == 2, ended, final if len(ended) else None)
        return torch.from_numpy(actions), result


def n_step_oracle(column: list[dict[str, Any]], start: int, n: int, gamma: float) -> tuple[float, Any, float]:
    """Return, last observation and discount of the transition `start`, by the definition."""
    total, discount = 0.0, 1.0
    for transition in column[start : start + n]:
        total += discount * float(transition["reward"])
        discount *= gamma
        last = transition["next_obs"]
        if transition["terminated"]:
            return total, last, 0.0
        if transition["truncated"]:
            break
    return total, last, discount


class Replay(RuleBasedStateMachine):
    """Steps, saves and loads in any order; whatever is drawn must be in the notes."""

    @initialize(
        num_envs=st.integers(1, 3),
        capacity=st.integers(8, 40),
        n=st.integers(1, 4),
        prioritized=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(self, num_envs: int, capacity: int, n: int, prioritized: bool, seed: int) -> None:
        self.life = Life(num_envs, seed)
        self.capacity, self.n, self.prioritized = max(capacity, 2 * num_envs), n, prioritized
        self.generator = torch.Generator().manual_seed(seed)
        self.make()
        self.buffer.begin(self.life.obs())

    def make(self) -> None:
        self.buffer = ReplayBuffer(self.capacity, self.life.num_envs, LAYOUT)
        kind = PrioritizedSampler if self.prioritized else UniformSampler
        self.sampler = kind(self.buffer, gamma=0.9, n_step=self.n)

    @rule(ends=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=3, max_size=3))
    def step(self, ends: list[int]) -> None:
        actions, result = self.life.advance(ends[: self.life.num_envs])
        self.sampler.written(self.buffer.add(actions, result))

    @rule()
    def save_and_load(self) -> None:
        saved = self.buffer.state_dict()
        segments = [
            {name: tensor.clone() for name, tensor in segment.tensors().items()}
            for segment in saved["segments"]
        ]
        priorities = self.sampler.state_dict()
        self.make()
        self.buffer.load_state_dict({**saved, "segments": segments})
        self.sampler.load_state_dict(priorities)

    @rule(values=st.lists(st.floats(0.0, 5.0), min_size=16, max_size=16))
    def learn(self, values: list[float]) -> None:
        if len(self.buffer):
            batch = self.sampler.sample(16, self.generator)
            self.sampler.update_priorities(batch.index, torch.tensor(values))

    @invariant()
    def what_is_stored_is_the_recent_past_of_every_env(self) -> None:
        if not hasattr(self, "life"):
            return
        starts = self.buffer.starts
        assert len(self.buffer) == int(starts.sum())
        for env in range(self.life.num_envs):
            stored = {tuple(o) for o in self.buffer.obs[starts[:, env], env].tolist()}
            column = self.life.columns[env]
            assert stored == {tuple(t["obs"].tolist()) for t in column[len(column) - len(stored) :]}
            # Only the slots of final observations and of the write head are lost to transitions.
            ends = sum(t["terminated"] or t["truncated"] for t in column[-self.buffer.slots :])
            assert len(stored) >= min(len(column), self.buffer.slots - 1 - ends - 1)

    @invariant()
    def batches_are_true(self) -> None:
        if not hasattr(self, "life") or not len(self.buffer):
            return
        batch = self.sampler.sample(32, self.generator)
        where = {
            tuple(t["obs"].tolist()): (column, k)
            for column in self.life.columns
            for k, t in enumerate(column)
        }
        for i, obs in enumerate(batch.obs.tolist()):
            column, k = where[tuple(obs)]
            total, last, discount = n_step_oracle(column, k, self.n, 0.9)
            assert int(batch.actions[i]) == column[k]["action"]
            np.testing.assert_allclose(float(batch.rewards[i]), total, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(float(batch.discount[i]), discount, rtol=1e-6)
            assert batch.next_obs[i].tolist() == last.tolist()

    @invariant()
    def only_stored_transitions_have_a_priority(self) -> None:
        if hasattr(self, "life") and self.prioritized:
            leaves = self.sampler.tree.leaves()
            assert ((leaves > 0) == self.buffer.starts.flatten().numpy()).all()


TestReplay = Replay.TestCase
TestReplay.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def filled(prioritized: bool, count: int = 200, **options: Any) -> tuple[ReplayBuffer, Any]:
    life, buffer = Life(2, 0), ReplayBuffer(400, 2, LAYOUT)
    sampler = (PrioritizedSampler if prioritized else UniformSampler)(buffer, gamma=0.9, **options)
    buffer.begin(life.obs())
    for t in range(count):
        actions, result = life.advance([int(t % 10 == 9), 0])
        sampler.written(buffer.add(actions, result))
    return buffer, sampler


def test_uniform_sampling_is_uniform() -> None:
    buffer, sampler = filled(prioritized=False)
    drawn = sampler.sample(80_000, torch.Generator().manual_seed(0)).index[0]
    counts = torch.bincount(drawn, minlength=buffer.size)[buffer.starts.flatten()].double()
    expected = 80_000 / len(buffer)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < len(buffer) + 5 * (2 * len(buffer)) ** 0.5


def test_priorities_decide_how_often_and_weights_undo_it() -> None:
    buffer, sampler = filled(prioritized=True, alpha=1.0, beta=1.0)
    starts = buffer.starts.flatten().nonzero().flatten()
    priorities = torch.arange(1.0, len(starts) + 1)
    index = torch.stack([starts, buffer.take("generation", starts).long()])
    sampler.update_priorities(index, priorities)
    batch = sampler.sample(100_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(batch.index[0], minlength=buffer.size)[starts].double()
    expected = priorities.double() / priorities.sum() * 100_000
    assert float(((counts - expected) ** 2 / expected).mean()) < 1.2
    weight = dict(zip(batch.index[0].tolist(), batch.weights.tolist(), strict=True))
    # With β = 1 the weight is inversely proportional to the priority, and the largest one is 1.
    assert weight[int(starts[99])] / weight[int(starts[199])] == pytest.approx(200 / 100, rel=1e-3)
    assert max(weight.values()) == 1.0


def test_a_late_priority_does_not_touch_the_transition_that_took_the_place() -> None:
    life, buffer = Life(1, 0), ReplayBuffer(4, 1, LAYOUT)
    sampler = PrioritizedSampler(buffer, gamma=0.9)
    buffer.begin(life.obs())
    for _ in range(4):
        sampler.written(buffer.add(*life.advance([0])))
    batch = sampler.sample(8, torch.Generator().manual_seed(0))
    for _ in range(5):
        sampler.written(buffer.add(*life.advance([0])))
    before = sampler.tree.leaves()
    sampler.update_priorities(batch.index, torch.full((8,), 100.0))
    np.testing.assert_array_equal(sampler.tree.leaves(), before)


def test_beta_grows_to_one_over_the_run() -> None:
    _, sampler = filled(prioritized=True, beta=0.4)
    sampler.set_progress(0.5)
    assert sampler.beta == pytest.approx(0.7)
    sampler.set_progress(2.0)
    assert sampler.beta == 1.0


def test_dict_observations_keep_their_dtypes_and_cost_what_they_must() -> None:
    buffer = ReplayBuffer(10, 1, DICT_LAYOUT)
    obs = {"image": np.full((1, 2, 2), 200, np.uint8), "vector": np.ones((1, 3), np.float32)}
    buffer.begin(obs)
    after = {"image": np.full((1, 2, 2), 7, np.uint8), "vector": np.zeros((1, 3), np.float32)}
    no_end = np.zeros(1, bool)
    buffer.add(torch.zeros(1, 1), StepResult(after, np.ones(1), no_end, no_end, np.array([], int), None))
    batch = UniformSampler(buffer, gamma=1.0).sample(3, torch.Generator().manual_seed(0))
    assert batch.obs["image"].dtype == torch.uint8
    assert batch.obs["image"].unique().tolist() == [200]
    assert batch.next_obs["image"].unique().tolist() == [7]
    # 4 bytes of image, 12 of vector, 4 of action, 4 of reward, 3 flags, 4 each of generation and age
    assert buffer.bytes_per_transition == 4 + 12 + 4 + 4 + 3 + 8
    assert ReplayBuffer.predict_bytes(1000, DICT_LAYOUT) == 1000 * buffer.bytes_per_transition


def test_segments_change_their_version_exactly_when_something_in_them_changed() -> None:
    life, buffer = Life(2, 0), ReplayBuffer(120, 2, LAYOUT)
    buffer.segment_slots = 8
    buffer.begin(life.obs())

    def look() -> dict[int, tuple[str, list[torch.Tensor]]]:
        segments = buffer.state_dict()["segments"]
        return {k: (s.version, [t.clone() for t in s.tensors().values()]) for k, s in enumerate(segments)}

    before = look()
    for t in range(200):
        buffer.add(*life.advance([int(t % 7 == 6), int(t % 11 == 10) * 2]))
        now = look()
        for k, (version, tensors) in now.items():
            if k in before:
                same = len(before[k][1][0]) == len(tensors[0]) and all(
                    torch.equal(a, b) for a, b in zip(before[k][1], tensors, strict=True)
                )
                assert (version == before[k][0]) == same, (t, k)
        before = now


def test_abandoned_episodes_are_not_joined_to_new_ones() -> None:
    life, buffer = Life(1, 0), ReplayBuffer(20, 1, LAYOUT)
    buffer.begin(life.obs())
    buffer.add(*life.advance([0]))
    life.episode += 1
    life.step[:] = 0
    buffer.begin(life.obs())
    buffer.add(*life.advance([0]))
    batch = UniformSampler(buffer, gamma=0.9, n_step=3).sample(32, torch.Generator().manual_seed(0))
    assert (batch.obs[:, 0] == batch.next_obs[:, 0]).all()
    assert len(buffer) == 2


def test_a_buffer_too_small_for_its_envs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hyperparams\.buffer_size: 3 is too small for 2 envs"):
        ReplayBuffer(3, 2, LAYOUT)


def test_sum_tree_against_cumulative_sums() -> None:
    rng = np.random.default_rng(0)
    tree, values = SumTree(37), np.zeros(37)
    for _ in range(50):
        index = rng.integers(0, 37, 9)
        new = rng.uniform(0, 3, 9) * rng.integers(0, 2, 9)
        tree.set(index, new)
        for i, v in zip(index, new, strict=True):
            values[i] = v
        np.testing.assert_array_equal(tree.leaves(), values)
        assert tree.total == pytest.approx(values.sum())
        prefixes = rng.uniform(0, tree.total, 20)
        found = tree.find(prefixes)
        assert (values[found] > 0).all()
        np.testing.assert_array_equal(found, np.searchsorted(np.cumsum(values), prefixes, side="right"))
    copy = SumTree(37)
    copy.load(tree.leaves())
    np.testing.assert_array_equal(copy._nodes, tree._nodes)
