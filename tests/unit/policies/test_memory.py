"""Memories: pieces of sequences by hand, and whole sequences against one step after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rl_training.policies.build import build_actor_critic
from rl_training.policies.config import NetworkConfig
from rl_training.policies.memory import Memory, MemorySize, segment
from rl_training.policies.recurrent import RecurrentActorCritic
from rl_training.types import PolicyState, Spec

CPU = torch.device("cpu")
SIZES = [MemorySize("lstm", 5), MemorySize("gru", 5), MemorySize("lstm", 5, 2), MemorySize("gru", 5, 2)]


def flags(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def test_sequences_fall_into_pieces_at_the_starts_of_episodes() -> None:
    # Time goes down. The first row needs no cut; sequence 1 is cut before steps 1 and 3.
    pieces = segment(flags([1, 0], [0, 1], [0, 0], [0, 1]), CPU)
    assert pieces is not None
    # Flat indices are time * 2 + sequence; the pieces are sequence 0, then 1: [0], [1, 2], [3].
    assert pieces.table.tolist() == [[0, 1, 3, 7], [2, 0, 5, 0], [4, 0, 0, 0], [6, 0, 0, 0]]
    assert pieces.columns.tolist() == [0, 1, 1, 1]
    assert pieces.fresh.tolist() == [False, False, True, True]
    steps = torch.arange(8)
    assert torch.equal(pieces.table.flatten()[pieces.cells], steps)


def test_nothing_is_cut_where_no_episode_starts_after_the_first_step() -> None:
    assert segment(flags([1, 1], [0, 0], [0, 0]), CPU) is None


def random_state(memory: Memory, count: int) -> PolicyState:
    return {key: torch.randn_like(value) for key, value in memory.initial_state(count).items()}


@given(st.integers(0, 2**31), st.sampled_from(SIZES), st.integers(1, 9), st.integers(1, 4))
def test_a_whole_sequence_is_one_step_after_the_other(
    seed: int, size: MemorySize, length: int, count: int
) -> None:
    torch.manual_seed(seed)
    memory = Memory(size, 3)
    x, starts = torch.randn(length, count, 3), torch.rand(length, count) < 0.3
    state = random_state(memory, count)
    whole = memory.unroll(x, state, segment(starts, CPU))
    now, steps = state, []
    for t in range(length):
        if t:  # the given state is that of the first step, whether or not an episode starts there
            now = {key: value * ~starts[t, :, None, None] for key, value in now.items()}
        output, now = memory(x[t], now)
        steps.append(output)
    torch.testing.assert_close(whole, torch.stack(steps), atol=1e-6, rtol=1e-5)


def test_gradients_stop_at_the_start_of_an_episode_and_padding_has_none() -> None:
    torch.manual_seed(0)
    memory = Memory(SIZES[0], 3)
    x = torch.randn(4, 2, 3, requires_grad=True)
    starts = flags([0, 0], [0, 0], [1, 0], [0, 0])
    memory.unroll(x, memory.initial_state(2), segment(starts, CPU))[3].sum().backward()
    assert x.grad is not None
    reached = x.grad.abs().sum(-1) > 0
    assert reached.tolist() == [[False, True], [False, True], [True, True], [True, True]]


BOX, DISCRETE = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)


def policy_of(observations: Any = BOX, actions: Any = DISCRETE, **network: Any) -> RecurrentActorCritic:
    torch.manual_seed(0)
    spec, config = Spec(observations, actions), NetworkConfig(**network)
    policy = build_actor_critic(spec, config, memory=MemorySize("lstm", 8))
    assert isinstance(policy, RecurrentActorCritic)
    return policy


def test_actor_and_critic_remember_apart_unless_they_share() -> None:
    apart, shared = policy_of(), policy_of(shared=True)
    assert set(apart.initial_state(2)) == {"hidden", "cell", "critic_hidden", "critic_cell"}
    assert set(shared.initial_state(2)) == {"hidden", "cell"}
    obs = torch.randn(4, 3)
    for policy in (apart, shared):
        state = policy.act(torch.randn(4, 3)).state
        torch.testing.assert_close(policy.values(obs, state), policy.act(obs, state).values)
        assert not torch.allclose(policy.values(obs, state), policy.values(obs))


def test_no_state_is_the_beginning_of_an_episode_and_ended_rows_return_to_it() -> None:
    policy, obs = policy_of(), torch.randn(3, 3)
    first = policy.act(obs, deterministic=True)
    assert first.state is not None
    state = policy.reset_state(first.state, torch.tensor([True, False, True]))
    assert state is not None
    for key, value in state.items():
        assert not value[[0, 2]].any()
        assert torch.equal(value[1], first.state[key][1])
        assert value[1].any()
    again = policy.act(obs, state, deterministic=True)
    assert first.values is not None
    assert again.values is not None
    torch.testing.assert_close(again.values[[0, 2]], first.values[[0, 2]])
    assert again.values[1] != first.values[1]


def test_the_state_advances_whether_actions_are_drawn_or_not() -> None:
    policy, obs = policy_of(), torch.randn(3, 3)
    drawn, mode = policy.act(obs), policy.act(obs, deterministic=True)
    assert drawn.state is not None
    assert mode.state is not None
    for key, value in drawn.state.items():
        assert torch.equal(value, mode.state[key])


def test_noise_and_memories_travel_in_one_state() -> None:
    policy = policy_of(actions=spaces.Box(-1.0, 1.0, (2,)), distribution="state_dependent", sde_sample_freq=2)
    generator, obs = torch.Generator().manual_seed(0), torch.randn(3, 3)
    states = [policy.act(obs, generator=generator).state]
    for _ in range(2):
        states.append(policy.act(obs, states[-1], generator=generator).state)
    first, second, third = (state or {} for state in states)
    assert set(first) == set(policy.initial_state(3))
    assert torch.equal(first["noise"], second["noise"])
    assert not torch.equal(second["noise"], third["noise"])
    assert not torch.equal(first["hidden"], second["hidden"])
    fresh = policy.reset_state(second, torch.tensor([True, False, False])) or {}
    assert fresh["noise_left"].tolist()[0] == 0
    assert not fresh["hidden"][0].any()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (BOX, DISCRETE),
        (BOX, spaces.MultiDiscrete([[2, 3], [4, 2]])),
        (BOX, spaces.Box(-1.0, 1.0, (2, 2))),
        (spaces.Box(0, 255, (12, 12, 1), "uint8"), DISCRETE),
        (
            spaces.Dict(
                {
                    "image": spaces.Box(0, 255, (12, 12, 1), "uint8"),
                    "vector": BOX,
                    "action_mask": spaces.MultiBinary(2),
                }
            ),
            DISCRETE,
        ),
    ],
    ids=["vector", "multi_discrete", "box", "image", "dict"],
)
def test_sequences_are_judged_as_they_were_acted(observations: Any, actions: Any, shared: bool) -> None:
    policy = policy_of(observations, actions, shared=shared)
    space = spaces.Dict({"obs": observations})
    space.seed(0)
    length, count = 6, 3
    rows = [[space.sample()["obs"] for _ in range(count)] for _ in range(length)]

    def tensors(row: list[Any]) -> Any:
        if isinstance(row[0], dict):
            return {key: torch.stack([torch.as_tensor(part[key]) for part in row]) for key in row[0]}
        return torch.stack([torch.as_tensor(part) for part in row])

    obs = [tensors(row) for row in rows]
    starts = torch.rand(length, count, generator=torch.Generator().manual_seed(1)) < 0.4
    state = {key: torch.randn_like(value) for key, value in policy.initial_state(count).items()}
    outputs, now = [], state
    with torch.no_grad():
        for t in range(length):
            now = policy.reset_state(now, starts[t]) or {} if t else now
            outputs.append(policy.act(obs[t], now))
            now = outputs[-1].state or {}
    logprobs, values = (
        torch.stack([getattr(output, name) for output in outputs]) for name in ("logprobs", "values")
    )
    whole = (
        {key: torch.stack([step[key] for step in obs]) for key in obs[0]}
        if isinstance(obs[0], dict)
        else torch.stack(obs)
    )
    taken = torch.stack([output.actions for output in outputs])
    new_logprobs, entropy, new_values = policy.evaluate_actions(whole, taken, state, starts)
    torch.testing.assert_close(new_logprobs, logprobs, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(new_values, values, atol=1e-6, rtol=1e-5)
    assert entropy.shape == (length, count)
    (new_logprobs.sum() + new_values.sum() + entropy.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters())
