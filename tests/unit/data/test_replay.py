"""The replay buffer and its samplers against a list of transitions kept by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_life import Life, assert_same, n_step, name_of, row, sequence

from rl_training.data.layout import RolloutLayout
from rl_training.data.mixed import MixedSampler
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import PrioritizedSampler, UniformSampler
from rl_training.data.sequences import SequenceSampler
from rl_training.data.storage import DeviceRows, pinned, pinned_bytes
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


class Replay(RuleBasedStateMachine):
    """Steps, saves and loads in any order; whatever is drawn must be in the notes."""

    @initialize(
        num_envs=st.integers(1, 3),
        capacity=st.integers(8, 40),
        n=st.integers(1, 4),
        frames=st.sampled_from([1, 1, 2, 4]),
        as_dict=st.booleans(),
        prioritized=st.booleans(),
        disk=st.booleans(),
        by_tensors=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(
        self, num_envs: int, capacity: int, n: int, frames: int, as_dict: bool, prioritized: bool,
        disk: bool, by_tensors: bool, seed: int,
    ) -> None:  # fmt: skip
        self.by_tensors = by_tensors
        self.life = Life(num_envs, seed, frames, as_dict)
        self.capacity, self.n, self.prioritized = max(capacity, 2 * num_envs), n, prioritized
        self.folder = Path(tempfile.gettempdir()) if disk else None
        self.generator = torch.Generator().manual_seed(seed)
        self.make()
        self.buffer.begin(self.life.obs())

    def make(self) -> None:
        self.buffer = self.life.buffer(self.capacity, self.folder)
        if self.by_tensors:  # rows are written as they are on a GPU, without NumPy's views
            self.buffer._fields = {k: DeviceRows(t.flatten(0, 1)) for k, t in self.buffer.tensors().items()}
        kind = PrioritizedSampler if self.prioritized else UniformSampler
        self.sampler = kind(self.buffer, gamma=0.9, n_step=self.n)

    @rule(
        ends=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=3, max_size=3),
        jumps=st.lists(st.sampled_from([False] * 9 + [True]), min_size=3, max_size=3),
    )
    def step(self, ends: list[int], jumps: list[bool]) -> None:
        actions, result = self.life.advance(ends[: self.life.num_envs], jumps[: self.life.num_envs])
        self.sampler.written(self.buffer.add(actions, result))

    @rule(ends=st.integers(0, 2))
    def several_steps(self, ends: int) -> None:
        for t in range(7):
            actions, result = self.life.advance([ends * (t == 5)] * self.life.num_envs)
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

    @precondition(lambda self: self.buffer.total and not self.prioritized)
    @rule()
    def abandon(self) -> None:
        self.life.abandon()
        self.buffer.begin(self.life.obs())

    @rule(values=st.lists(st.floats(0.0, 5.0), min_size=16, max_size=16))
    def learn(self, values: list[float]) -> None:
        if len(self.buffer):
            batch = self.sampler.sample(16, self.generator)
            self.sampler.update_priorities(batch.index, torch.tensor(values))

    def find_stored(self) -> list[set[int]]:
        """Which of each env's transitions the buffer can give."""
        starts = self.buffer.starts.flatten().nonzero().flatten()
        obs = host(self.buffer.take("obs", starts))
        known = [{name_of(t["obs"]): k for k, t in enumerate(column)} for column in self.life.columns]
        stored: list[set[int]] = [set() for _ in known]
        for i, env in enumerate((starts % self.life.num_envs).tolist()):
            stored[env].add(known[env][name_of(row(obs, i))])
        return stored

    @invariant()
    def everything_is_true(self) -> None:
        if hasattr(self, "life"):
            self.stored = self.find_stored()
            self.what_is_stored_is_the_recent_past_of_every_env()
            if len(self.buffer):
                self.batches_are_true()
                self.sequences_are_true()
            if self.prioritized:
                self.only_stored_transitions_have_a_priority()

    def what_is_stored_is_the_recent_past_of_every_env(self) -> None:
        assert len(self.buffer) == int(self.buffer.starts.sum())
        more = self.life.frames - 1
        for env, column in enumerate(self.life.columns):
            stored, kept = self.stored[env], [k for k, t in enumerate(column) if t["kept"]]
            assert stored == set(kept[len(kept) - len(stored) :])
            # Lost to transitions are only slots of final observations, of new stacks and of the write head.
            recent = column[-self.buffer.slots :]
            ends = sum(t["over"] + t.get("abandoned", 0) for t in recent)  # may be abandoned again and again
            lost = (1 + more) * ends + more * sum(not t["kept"] for t in recent) + more + 1
            assert len(stored) >= min(len(kept), self.capacity // self.life.num_envs - lost)

    def batches_are_true(self) -> None:
        batch = self.sampler.sample(12, self.generator)
        where = {name_of(t["obs"]): (c, k) for c in self.life.columns for k, t in enumerate(c)}
        obs, next_obs = host(batch.obs), host(batch.next_obs)
        for i in range(12):
            column, k = where[name_of(row(obs, i))]
            total, last, discount = n_step(column, k, self.n, 0.9)
            assert_same(row(obs, i), column[k]["obs"])
            assert int(batch.actions[i]) == column[k]["action"]
            np.testing.assert_allclose(float(batch.rewards[i]), total, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(float(batch.discount[i]), discount, rtol=1e-6)
            assert_same(row(next_obs, i), last)

    def sequences_are_true(self) -> None:
        burn_in, length = 2, 3
        sampler = SequenceSampler(self.buffer, gamma=0.9, length=length, burn_in=burn_in)
        batch = sampler.sample(4, self.generator)
        obs, next_obs = host(batch.obs), host(batch.next_obs)
        for i in range(4):
            env = int(batch.index[0, i]) % self.life.num_envs
            column, stored = self.life.columns[env], self.stored[env]
            known = {name_of(t["obs"]): k for k, t in enumerate(column)}
            drawn = known[name_of(row(row(obs, burn_in), i))]
            expected = sequence(column, stored, drawn, burn_in, length)
            assert batch.mask[:, i].tolist() == [k is not None for k in expected]
            first = next(t for t, k in enumerate(expected) if k is not None)
            assert batch.episode_starts[:, i].nonzero().flatten().tolist() == [first]
            for t, k in enumerate(expected):
                assert bool(batch.burn_in[t, i]) == (t < burn_in and k is not None)
                transition = column[drawn if k is None else k]
                assert_same(row(row(obs, t), i), transition["obs"])
                assert_same(row(row(next_obs, t), i), transition["next_obs"])
                assert int(batch.actions[t, i]) == transition["action"]
                there = k is not None
                assert float(batch.rewards[t, i]) == (transition["reward"] if there else 0.0)
                discount = 0.9 if there and not transition["terminated"] else 0.0
                np.testing.assert_allclose(float(batch.discount[t, i]), discount, rtol=1e-6)

    def only_stored_transitions_have_a_priority(self) -> None:
        leaves = self.sampler.tree.leaves()
        assert ((leaves > 0) == self.buffer.starts.flatten().numpy()).all()


def host(obs: Any) -> Any:
    return {k: v.numpy() for k, v in obs.items()} if isinstance(obs, dict) else obs.numpy()


TestReplay = Replay.TestCase
TestReplay.settings = settings(max_examples=30, stateful_step_count=20)


def filled(prioritized: bool, count: int = 200, **options: Any) -> tuple[ReplayBuffer, Any]:
    life = Life(2, 0)
    buffer = life.buffer(400)
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
    life = Life(1, 0)
    buffer = life.buffer(4)
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
    held = sum(tensor.nbytes for tensor in ReplayBuffer(1000, 3, DICT_LAYOUT).tensors().values())
    assert ReplayBuffer.predict_bytes(1000, DICT_LAYOUT, num_envs=3) == held


@pytest.mark.parametrize(("size", "taken"), [(1, 1), (4, 4), (5, 8), (2**33, 2**33), (2**33 + 1, 2**34)])
def test_pinned_blocks_are_powers_of_two(size: int, taken: int) -> None:
    assert pinned_bytes(size) == taken


def test_pinned_tensors_are_zeros_of_the_asked_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros, asked = torch.zeros, []

    def without_a_gpu(*args: Any, pin_memory: bool, **kwargs: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return zeros(*args, **kwargs)

    monkeypatch.setattr(torch, "zeros", without_a_gpu)
    rows = pinned()((4, 3), torch.uint8)
    assert (rows.shape, rows.dtype, asked) == ((4, 3), torch.uint8, [True])


@pytest.mark.parametrize("frames", [1, 3])
def test_segments_change_their_version_exactly_when_something_in_them_changed(frames: int) -> None:
    life = Life(2, 0, frames)
    buffer = life.buffer(120)
    buffer.segment_slots = 8
    buffer.begin(life.obs())

    def look() -> dict[int, tuple[str, list[torch.Tensor]]]:
        segments = buffer.state_dict()["segments"]
        return {k: (s.version, [t.clone() for t in s.tensors().values()]) for k, s in enumerate(segments)}

    before, needless, needed = look(), 0, 0
    for t in range(200):
        buffer.add(*life.advance([int(t % 7 == 6), int(t % 11 == 10) * 2]))
        now = look()
        for k, (version, tensors) in now.items():
            if k in before:
                same = len(before[k][1][0]) == len(tensors[0]) and all(
                    torch.equal(a, b) for a, b in zip(before[k][1], tensors, strict=True)
                )
                assert same or version != before[k][0], (t, k)
                needed += not same
                needless += same and version != before[k][0]
        before = now
    # A slot that started nothing anyway is marked as gone ahead of the head of a stack.
    assert needless <= (0.2 * needed if frames > 1 else 0)


def test_abandoned_episodes_are_not_joined_to_new_ones() -> None:
    life = Life(1, 0)
    buffer = life.buffer(20)
    buffer.begin(life.obs())
    buffer.add(*life.advance([0]))
    life.abandon()
    buffer.begin(life.obs())
    buffer.add(*life.advance([0]))
    batch = UniformSampler(buffer, gamma=0.9, n_step=3).sample(32, torch.Generator().manual_seed(0))
    assert (batch.obs[:, 0] == batch.next_obs[:, 0]).all()
    assert len(buffer) == 2


def test_two_buffers_are_mixed_by_ratio_and_priorities_find_their_way_back() -> None:
    lives = Life(2, 0), Life(1, 1, as_dict=False)
    lives[1].episode += 500_000
    lives[1].abandon()
    samplers = []
    for life in lives:
        sampler = PrioritizedSampler(life.buffer(30), gamma=0.9, n_step=2)
        sampler.buffer.begin(life.obs())
        samplers.append(sampler)
    mixed, generator = MixedSampler(*samplers, ratio=0.25), torch.Generator().manual_seed(0)
    samplers[1].written(samplers[1].buffer.add(*lives[1].advance([0])))
    assert (mixed.sample(8, generator).obs[:, 0] > 400_000).all()  # the other one is empty
    for t in range(10):
        mixed.written(samplers[0].buffer.add(*lives[0].advance([int(t == 4), 0])))
        samplers[1].written(samplers[1].buffer.add(*lives[1].advance([2 * int(t == 7)])))
    batch = mixed.sample(16, generator)
    own = batch.obs[:, 0] < 400_000
    assert own.tolist() == [True] * 4 + [False] * 12
    where = {name_of(t["obs"]): (c, k) for life in lives for c in life.columns for k, t in enumerate(c)}
    for i in range(16):
        column, k = where[name_of(batch.obs[i])]
        total, last, discount = n_step(column, k, 2, 0.9)
        np.testing.assert_allclose(float(batch.rewards[i]), total, rtol=1e-5)
        np.testing.assert_allclose(float(batch.discount[i]), discount, rtol=1e-6)
        assert batch.next_obs[i].tolist() == last.tolist()
    before = [sampler.tree.leaves() for sampler in samplers]
    mixed.update_priorities(batch.index, torch.arange(1.0, 17.0))
    for sampler, old, mine in zip(samplers, before, (own, ~own), strict=True):
        changed = dict(
            zip(batch.index[0, mine].tolist(), torch.arange(1.0, 17.0)[mine].tolist(), strict=True)
        )
        expected = old.copy()
        for place, value in changed.items():
            expected[place] = (value + sampler.eps) ** sampler.alpha
        np.testing.assert_allclose(sampler.tree.leaves(), expected)
    copy = MixedSampler(*(PrioritizedSampler(s.buffer, gamma=0.9) for s in samplers))
    copy.load_state_dict(mixed.state_dict())
    for mine, theirs in zip(samplers, (copy.first, copy.second), strict=True):
        np.testing.assert_array_equal(theirs.tree.leaves(), mine.tree.leaves())


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
