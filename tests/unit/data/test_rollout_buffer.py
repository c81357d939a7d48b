"""The rollout buffer against naive loops: advantages, minibatches that cover, sequences that align."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.errors import AxiomError, ConfigError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(steps: int, envs: int, **kwargs: Any) -> RolloutBuffer:
    """A buffer in which every field says which transition it belongs to: `t * envs + env`."""
    buffer = RolloutBuffer(steps, envs, kwargs.pop("obs_shape", (2,)), (), **kwargs)
    ids = torch.arange(steps * envs, dtype=torch.float32).reshape(steps, envs)
    for obs in buffer.obs.values() if isinstance(buffer.obs, dict) else [buffer.obs]:
        obs[...] = ids.reshape(steps, envs, *[1] * (obs.dim() - 2))
    buffer.actions[...] = ids
    for i, name in enumerate(("logprobs", "values", "advantages", "returns")):
        getattr(buffer, name)[...] = ids + 1000 * (i + 1)
    return buffer


# --- GAE


def test_hand_filled_buffer_by_hand() -> None:
    buffer = RolloutBuffer(3, 1, (4,), ())
    buffer.rewards[:, 0] = torch.tensor([1.0, 2.0, 3.0])
    buffer.values[:, 0] = torch.tensor([0.5, 1.0, 1.5])
    buffer.dones[1, 0] = 1.0
    buffer.compute_returns_and_advantages(torch.tensor([2.0]), gamma=0.5, gae_lambda=0.5)
    # delta = [1 + 0.5*1 - 0.5, 2 - 1, 3 + 0.5*2 - 1.5] = [1, 1, 2.5]; A0 = 1 + 0.25*1
    assert buffer.advantages[:, 0].tolist() == [1.25, 1.0, 2.5]
    assert buffer.returns[:, 0].tolist() == [1.75, 2.0, 4.0]


def test_truncation_bootstraps_from_the_final_observation() -> None:
    buffer = RolloutBuffer(3, 1, (4,), ())
    buffer.rewards[:, 0] = torch.tensor([1.0, 2.0, 3.0])
    buffer.values[:, 0] = torch.tensor([0.5, 1.0, 1.5])
    buffer.dones[1, 0] = buffer.truncated[1, 0] = 1.0
    assert buffer.terminated.sum() == 0
    buffer.set_final_values(np.array([1]), np.array([0]), np.array([4.0]))
    buffer.compute_returns_and_advantages(np.array([2.0]), 0.5, 0.5)
    # delta1 = 2 + 0.5*4 - 1 = 3 and not 2 + 0.5*1.5 - 1; A0 = 1 + 0.25*3
    assert buffer.advantages[:, 0].tolist() == [1.75, 3.0, 2.5]


def test_a_truncation_without_final_value_is_not_taken_for_a_number() -> None:
    buffer = RolloutBuffer(2, 1, (4,), ())
    buffer.dones[0, 0] = buffer.truncated[0, 0] = 1.0
    buffer.compute_returns_and_advantages(torch.zeros(1), 0.5, 0.5)
    assert buffer.advantages[0, 0].isnan()
    assert not buffer.advantages[1, 0].isnan()


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.6]))
def test_added_rollouts_get_the_advantages_of_a_naive_loop(
    seed: int, steps: int, envs: int, rate: float
) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, final_values = rng.normal(size=(3, steps, envs)).astype(np.float32)
    terminated, truncated = rng.random((2, steps, envs)) < rate
    last_value, gamma, lam = rng.normal(size=envs).astype(np.float32), 0.9, 0.8
    buffer = RolloutBuffer(steps, envs, (2,), ())
    for t in range(steps):
        obs, zeros = np.zeros((envs, 2), np.float32), np.zeros(envs, np.float32)
        buffer.add(obs, zeros, zeros, rewards[t], values[t], terminated[t], truncated[t])
    where = np.nonzero(truncated & ~terminated)
    buffer.set_final_values(*where, final_values[where])
    buffer.compute_returns_and_advantages(last_value, gamma, lam)

    expected = np.zeros((steps, envs))
    for env in range(envs):
        advantage = 0.0
        for t in reversed(range(steps)):
            if terminated[t, env]:
                following, advantage = 0.0, 0.0
            elif truncated[t, env]:
                following, advantage = float(final_values[t, env]), 0.0
            else:
                following = float(values[t + 1, env] if t + 1 < steps else last_value[env])
            advantage = rewards[t, env] + gamma * following - values[t, env] + gamma * lam * advantage
            expected[t, env] = advantage
    np.testing.assert_allclose(buffer.advantages, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(buffer.returns, expected + values, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(buffer.dones, terminated | truncated)
    np.testing.assert_array_equal(buffer.terminated, terminated)


# --- filling


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_add_copies_each_field_into_its_step(convert: Any) -> None:
    buffer = RolloutBuffer(2, 2, (2,), (1,))
    obs = convert(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    row = convert(np.array([5.0, 6.0], np.float32))
    flags = convert(np.array([True, False])), convert(np.array([True, True]))
    buffer.add(obs, row[:, None], row + 1, row + 2, row + 3, *flags)
    obs[...] = 0  # the vector env overwrites its arrays
    assert buffer.obs[0].tolist() == [[1, 2], [3, 4]]
    assert buffer.obs[1].tolist() == [[0, 0], [0, 0]]
    assert buffer.actions[0].tolist() == [[5], [6]]
    assert buffer.logprobs[0].tolist() == [6, 7]
    assert buffer.rewards[0].tolist() == [7, 8]
    assert buffer.values[0].tolist() == [8, 9]
    assert buffer.dones[0].tolist() == [1, 1]
    assert buffer.truncated[0].tolist() == [0, 1]  # where both are set, termination counts
    assert buffer.terminated[0].tolist() == [1, 0]
    assert (buffer.position, buffer.full) == (1, False)


def add_step(buffer: RolloutBuffer, ended: list[bool]) -> None:
    zeros = np.zeros(buffer.num_envs, np.float32)
    buffer.add(zeros[:, None], zeros, zeros, zeros, zeros, np.array(ended), zeros > 0)


def test_a_full_buffer_refuses_more_until_it_is_reset() -> None:
    buffer = RolloutBuffer(1, 1, (1,), ())
    add_step(buffer, [False])
    assert buffer.full
    with pytest.raises(AxiomError, match=r"full \(1 steps\): call reset"):
        add_step(buffer, [False])
    with pytest.raises(AxiomError, match=r"full \(1 steps\): call reset"):
        buffer.observe(np.zeros((1, 1), np.float32))
    buffer.reset()
    assert not buffer.full
    add_step(buffer, [False])


def test_an_incomplete_rollout_has_no_advantages() -> None:
    buffer = RolloutBuffer(3, 1, (1,), ())
    add_step(buffer, [False])
    with pytest.raises(AxiomError, match="1 of 3 steps"):
        buffer.compute_returns_and_advantages(torch.zeros(1), 0.9, 0.9)


@pytest.mark.parametrize("names", [None, ("a", "b")], ids=["box", "dict"])
def test_observe_stores_the_observation_of_the_next_step_and_hands_back_the_row(names: Any) -> None:
    buffer = RolloutBuffer(2, 1, dict.fromkeys(names, (1,)) if names else (1,), ())
    zeros, no = np.zeros(1, np.float32), np.array([False])
    for t in range(2):
        array = np.array([[t + 3.0]], np.float32)
        row = buffer.observe(dict.fromkeys(names, array) if names else array)
        buffer.add(None, zeros, zeros, zeros, zeros, no, no)
        array[...] = -1
        for part in row.values() if isinstance(row, dict) else [row]:
            assert part.tolist() == [[t + 3.0]]
    for part in buffer.obs.values() if isinstance(buffer.obs, dict) else [buffer.obs]:
        assert part.flatten().tolist() == [3, 4]


class Remote(RolloutBuffer):
    """Behaves as if its tensors were on an accelerator: rewards and flags are staged and sent later."""

    on_host = False


@pytest.mark.parametrize("kind", [RolloutBuffer, Remote])
def test_rewards_and_flags_reach_the_tensors_wherever_they_live(kind: type[RolloutBuffer]) -> None:
    buffer = kind(2, 1, (1,), ())
    one, yes, no = np.ones(1, np.float32), np.array([True]), np.array([False])
    for t in range(2):
        buffer.add(one[:, None], one, one, one * (t + 1), one * 0.5, no, yes if t == 0 else no)
    buffer.set_final_values(np.array([0]), np.array([0]), np.array([4.0]))
    assert buffer.steps("dones")[:, 0].tolist() == [1, 0]
    buffer.steps("rewards")[1] -= 1  # as a reward normaliser does
    # delta = [1 + 0.5*4 - 0.5, 1 + 0.5*3 - 0.5], and the first episode was cut
    buffer.compute_returns_and_advantages(np.array([3.0]), 0.5, 0.5)
    assert buffer.advantages[:, 0].tolist() == [2.5, 2.0]
    buffer.rewards[1] = 4.0  # what is changed by hand afterwards is not overwritten
    buffer.compute_returns_and_advantages(np.array([3.0]), 0.5, 0.5)
    assert buffer.advantages[:, 0].tolist() == [2.5, 5.0]
    state = buffer.state_dict()
    buffer.reset()
    assert buffer.initial_episode_starts.tolist() == [0.0]
    buffer.load_state_dict(state)
    assert buffer.full
    assert buffer.rewards[:, 0].tolist() == [1.0, 4.0]


def test_reset_forgets_final_values() -> None:
    buffer = RolloutBuffer(1, 1, (1,), ())
    buffer.set_final_values(np.array([0]), np.array([0]), np.array([3.0]))
    buffer.reset()
    assert buffer.final_values.isnan().all()


def test_dtypes() -> None:
    buffer = RolloutBuffer(1, 1, (3,), (2,), obs_dtype=torch.uint8, action_dtype=torch.int64)
    assert isinstance(buffer.obs, torch.Tensor)
    assert buffer.obs.dtype == torch.uint8
    assert buffer.actions.dtype == torch.int64
    rest = ("logprobs", "rewards", "dones", "truncated", "values", "final_values", "advantages", "returns")
    assert {getattr(buffer, name).dtype for name in rest} == {torch.float32}


def test_dict_dtypes_need_dict_shapes() -> None:
    with pytest.raises(ConfigError, match="obs_dtype is a mapping but obs_shape is not"):
        RolloutBuffer(1, 1, (3,), (), obs_dtype={"a": torch.uint8})


def test_dict_observations() -> None:
    shapes = {"image": (2, 2), "speed": (1,)}
    buffer = RolloutBuffer(2, 1, shapes, (), obs_dtype={"image": torch.uint8, "speed": torch.float32})
    zeros = np.zeros(1, np.float32)
    for t in range(2):
        obs = {"speed": np.array([[t + 0.5]]), "image": np.full((1, 2, 2), t + 7)}
        buffer.add(obs, zeros, zeros, zeros, zeros, zeros > 0, zeros > 0)
    (batch,) = buffer.minibatches(1, generator())
    assert isinstance(batch.obs, dict)
    assert batch.obs["image"].dtype == torch.uint8
    assert sorted(batch.obs["speed"].flatten().tolist()) == [0.5, 1.5]
    assert torch.equal(batch.obs["image"][:, 0, 0] - 7, batch.obs["speed"][:, 0].to(torch.uint8))


# --- minibatches


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 5), st.data())
def test_minibatches_cover_every_transition_once_and_stay_aligned(
    seed: int, steps: int, envs: int, data: st.DataObject
) -> None:
    parts = data.draw(st.integers(1, steps * envs))
    batches = list(numbered(steps, envs).minibatches(parts, generator(seed)))
    assert len(batches) == parts
    seen: list[float] = []
    for batch in batches:
        ids = batch.actions
        assert isinstance(batch.obs, torch.Tensor)
        assert batch.obs.is_contiguous()
        assert torch.equal(batch.obs, ids[:, None].expand(-1, 2))
        for i, name in enumerate(("logprobs", "values", "advantages", "returns")):
            assert torch.equal(getattr(batch, name), ids + 1000 * (i + 1))
        seen += ids.tolist()
    assert sorted(seen) == list(range(steps * envs))
    assert max(len(b.actions) for b in batches) - min(len(b.actions) for b in batches) <= 1


def test_order_comes_from_the_generator_alone() -> None:
    def order(seed: int) -> list[float]:
        return torch.cat([b.actions for b in numbered(16, 4).minibatches(4, generator(seed))]).tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)
    both = generator(1)
    epochs = [[b.actions.tolist() for b in numbered(16, 4).minibatches(4, both)] for _ in range(2)]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("parts", [0, 7])
def test_impossible_numbers_of_minibatches_are_refused_at_once(parts: int) -> None:
    with pytest.raises(ConfigError, match=f"num_minibatches is {parts}.*6 transitions.*from 1 to 6"):
        numbered(3, 2).minibatches(parts, generator())


# --- sequences


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 6), st.data())
def test_sequences_are_whole_columns_in_order_of_time(
    seed: int, steps: int, envs: int, data: st.DataObject
) -> None:
    buffer = numbered(steps, envs)
    rng = np.random.default_rng(seed)
    buffer.dones[...] = torch.from_numpy(rng.random((steps, envs)) < 0.3)
    buffer.initial_episode_starts[...] = torch.from_numpy(rng.random(envs) < 0.5)
    buffer.states.begin({"hidden": torch.arange(envs)[:, None].expand(-1, 3) * 10.0})
    parts = data.draw(st.integers(1, envs))
    columns: list[int] = []
    for batch in buffer.sequences(parts, generator(seed)):
        assert batch.episode_starts is not None
        assert batch.state is not None
        for j, env in enumerate(batch.actions[0].int().tolist()):
            ids = torch.arange(steps) * envs + env
            assert torch.equal(batch.actions[:, j].long(), ids)
            assert torch.equal(batch.obs[:, j, 1].long(), ids)  # type: ignore[index]
            assert torch.equal(batch.returns[:, j].long(), ids + 4000)
            starts = [buffer.initial_episode_starts[env], *buffer.dones[:-1, env]]
            assert batch.episode_starts[:, j].tolist() == [bool(s) for s in starts]
            assert batch.state["hidden"][j].tolist() == [env * 10.0] * 3
            columns.append(env)
    assert sorted(columns) == list(range(envs))


def test_there_are_at_least_as_many_sequences_as_minibatches() -> None:
    with pytest.raises(ConfigError, match=r"num_minibatches is 3.*2 sequences of 8 steps"):
        numbered(8, 2).sequences(3, generator())


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_short_sequences_begin_in_the_state_of_their_first_step(
    seed: int, length: int, pieces: int, envs: int, data: st.DataObject
) -> None:
    """Step by step as a collector does it: state, observation and reward all count the steps of each env."""
    rng = np.random.default_rng(seed)
    buffer = RolloutBuffer(length * pieces, envs, (1,), (), sequence_length=length)
    numbers, ended = np.arange(envs) * 1000.0, np.ones(envs, bool)
    starts: dict[float, bool] = {}
    buffer.reset({"hidden": torch.from_numpy(numbers.copy())})
    for _ in range(length * pieces):
        starts |= dict(zip(numbers.tolist(), ended.tolist(), strict=True))
        with torch.inference_mode():
            state = {"hidden": torch.from_numpy(numbers.copy())}
            buffer.observe(numbers[:, None].astype(np.float32), state)
        ended = rng.random(envs) < 0.3
        lost_life = rng.random(envs) < 0.3
        done = ended | lost_life
        where = np.flatnonzero(ended)
        buffer.add(None, numbers, numbers, numbers, numbers, done, np.zeros(envs, bool), ended=where)
        numbers = numbers + 1
    saved = {name: tensor.clone() for name, tensor in buffer.state_dict().items()}
    buffer = RolloutBuffer(length * pieces, envs, (1,), (), sequence_length=length)
    buffer.load_state_dict(saved)
    assert buffer.steps("dones")[-1].tolist() == done.tolist()  # a lost life ends the return all the same
    seen: list[float] = []
    for batch in buffer.sequences(data.draw(st.integers(1, envs * pieces)), generator(seed)):
        assert batch.state is not None
        assert batch.episode_starts is not None
        assert batch.actions.shape[0] == length
        assert torch.equal(batch.state["hidden"].float(), batch.actions[0])
        assert torch.equal(batch.actions, batch.actions[0] + torch.arange(length)[:, None])
        assert torch.equal(batch.obs[..., 0], batch.actions)  # type: ignore[index]
        for number, start in zip(batch.actions.flatten(), batch.episode_starts.flatten(), strict=True):
            assert bool(start) == starts[float(number)]
        seen += batch.actions.flatten().tolist()
    assert sorted(seen) == sorted(starts)


def test_a_sequence_length_must_divide_the_rollout() -> None:
    with pytest.raises(ConfigError, match="sequence_length 3 does not divide num_steps 8"):
        RolloutBuffer(8, 2, (1,), (), sequence_length=3)


def test_episode_starts_carry_over_from_one_rollout_to_the_next() -> None:
    buffer = RolloutBuffer(2, 2, (1,), ())
    assert buffer.initial_episode_starts.tolist() == [1, 1]
    add_step(buffer, [True, True])
    add_step(buffer, [False, True])
    buffer.reset()
    assert buffer.initial_episode_starts.tolist() == [0, 1]


def test_reset_keeps_a_copy_of_the_recurrent_state_that_training_can_use() -> None:
    buffer = numbered(2, 2)
    with torch.inference_mode():
        state = {"hidden": torch.ones(2, 3)}
        buffer.reset(state)
        state["hidden"].zero_()
    (batch,) = buffer.sequences(1, generator())
    assert batch.state is not None
    weight = torch.ones(3, requires_grad=True)
    (batch.state["hidden"] * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]


# --- state


@pytest.mark.parametrize("obs_shape", [(2,), {"a": (2,), "b": (1,)}], ids=["box", "dict"])
def test_state_round_trip(obs_shape: Any) -> None:
    original = numbered(3, 2, obs_shape=obs_shape)
    original.truncated[1, 1] = original.dones[1, 1] = 1
    original.position = 2
    original.states.begin({"hidden": torch.ones(2, 4)})
    original.initial_episode_starts[0] = 0
    state = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    assert all(isinstance(tensor, torch.Tensor) and tensor.is_contiguous() for tensor in state.values())

    copy = RolloutBuffer(3, 2, obs_shape, ())
    copy.load_state_dict(state)
    restored = copy.state_dict()
    assert restored.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(restored[name], tensor, equal_nan=True)
    assert copy.position == 2
    row = np.full(2, 9.0, np.float32)
    obs = {"a": row[:, None], "b": row[:, None]} if isinstance(obs_shape, dict) else row[:, None]
    copy.add(obs, row, row, row, row, row > 0, row < 0)  # goes on where the original stopped
    assert copy.actions[:, 0].tolist() == [0, 2, 9]
    assert copy.full


def test_a_state_of_another_shape_is_refused_and_changes_nothing() -> None:
    buffer = numbered(3, 2)
    before = buffer.actions.clone()
    with pytest.raises(AxiomError, match=r"'obs' has shape \(4, 2, 2\), this one has \(3, 2, 2\)"):
        buffer.load_state_dict(RolloutBuffer(4, 2, (2,), ()).state_dict())
    state = RolloutBuffer(3, 2, (2,), ()).state_dict()
    del state["values"]
    with pytest.raises(AxiomError, match="has no 'values'"):
        buffer.load_state_dict(state)
    assert torch.equal(buffer.actions, before)
