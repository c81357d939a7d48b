"""All that a replay buffer holds, in order, against the notes that the envs kept of themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_life import Life, assert_same, name_of

from rl_training.data.histories import episodes_of, in_order, saved_buffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.types import Segment, StepResult


def loaded(life: Life, buffer: ReplayBuffer) -> ReplayBuffer:
    """The buffer as it comes back from a file."""
    state = buffer.state_dict()
    segments = [{k: v.clone() for k, v in part.tensors().items()} for part in state["segments"]]
    assert all(isinstance(part, Segment) for part in state["segments"])
    return saved_buffer({**state, "segments": segments}, life.layout, life.stack_layout)


@settings(max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    capacity=st.integers(8, 30),
    frames=st.sampled_from([1, 1, 3]),
    steps=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_everything_that_is_stored_in_the_order_of_time(
    num_envs: int, capacity: int, frames: int, steps: int, seed: int
) -> None:
    life, rng = Life(num_envs, seed, frames), np.random.default_rng(seed)
    buffer = life.buffer(max(capacity, 2 * num_envs))
    buffer.begin(life.obs())
    for _ in range(steps):
        if rng.random() < 0.03:
            life.abandon()
            buffer.begin(life.obs())
        ends = rng.choice(3, num_envs, p=[0.8, 0.1, 0.1]).tolist()
        buffer.add(*life.advance(ends, (rng.random(num_envs) < 0.05).tolist()))
    again = loaded(life, buffer)
    index = in_order(again)
    assert len(index) == len(buffer)
    ids, starts = episodes_of(again, index)
    assert sorted(set(ids.tolist())) == list(range(int(ids[-1]) + 1 if len(ids) else 0))

    at = 0
    for env in range(num_envs):
        noted = [note for note in life.columns[env] if note["kept"]]
        count = int((index % num_envs == env).sum())
        before = None
        for note in noted[len(noted) - count :]:
            flat = index[at : at + 1]
            assert_same(again.take("obs", flat)[0].numpy(), note["obs"])
            assert_same(again.take("obs", again.next_index(flat))[0].numpy(), note["next_obs"])
            assert int(again.take("actions", flat)[0]) == note["action"]
            assert float(again.take("rewards", flat)[0]) == note["reward"]
            assert bool(again.take("terminated", flat)[0]) == note["terminated"]
            episode, step = name_of(note["obs"])
            assert bool(starts[at]) == (step == 0)
            follows = before is not None and before == (episode, step - 1)
            assert (at > 0 and bool(ids[at] == ids[at - 1])) == follows
            before, at = (episode, step), at + 1
    assert at == len(index)


def test_a_lost_life_ends_an_episode_for_the_dataset() -> None:
    life = Life(1, 0)
    buffer = life.buffer(20)
    buffer.begin(life.obs())
    lost = [False, True, False, False, True, False]
    for died in lost:
        actions, result = life.advance([0])
        args: dict[str, Any] = {"terminated": np.array([died]), "truncated": result.truncated}
        buffer.add(
            actions, StepResult(result.obs, result.rewards, ended=result.ended, final_obs=None, **args)
        )
    ids, starts = episodes_of(buffer, in_order(buffer))
    assert ids.tolist() == [0, 0, 1, 1, 1, 2]
    assert starts.tolist() == [True, False, True, False, False, True]


def test_a_buffer_comes_back_no_larger_than_what_it_holds() -> None:
    life = Life(2, 0)
    buffer = life.buffer(100_000)
    buffer.begin(life.obs())
    for _ in range(10):
        buffer.add(*life.advance([0, 0]))
    again = loaded(life, buffer)
    assert again.slots == 11
    assert torch.equal(again.take("rewards", in_order(again)), buffer.take("rewards", in_order(buffer)))
