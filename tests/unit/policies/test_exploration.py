"""Exploration that remembers: repeated random actions."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from rl_training.policies.exploration import EpsilonGreedy, RepeatedEpsilonGreedy

GREEDY = -1
"""What the policy would do; random actions count up from 0, so that one that is repeated can be told."""


def play(explorer: EpsilonGreedy, steps: int, num_envs: int, *, first: int = 0, seed: int = 0) -> Tensor:
    """The actions that were taken, `[steps, num_envs]`; at each step its number is the random action."""
    generator = Generator().manual_seed(seed)
    greedy = torch.full((num_envs,), GREEDY)
    return torch.stack(
        [explorer.explore(greedy, torch.full((num_envs,), first + step), generator) for step in range(steps)]
    )


def test_lengths_fall_off_with_their_square() -> None:
    taken = play(RepeatedEpsilonGreedy(1.0, 1.0, 1.0), steps=200, num_envs=500)
    assert (taken != GREEDY).all()  # with ε = 1 the next one begins where the last has ended
    begun = taken[:-50]  # what begins later may be cut off by the end
    starts = begun == torch.arange(len(begun)).unsqueeze(1)
    lengths = torch.stack([(taken == step).sum(0) for step in range(len(begun))])[starts]
    norm = sum(n**-2.0 for n in range(1, 1001))
    for n in (1, 2, 3, 5):
        share = float((lengths == n).float().mean())
        assert share == pytest.approx(n**-2.0 / norm, abs=0.01)
    assert float((lengths > 20).float().mean()) == pytest.approx(1 / 20.5 / norm, abs=0.01)


def test_epsilon_is_the_chance_that_a_free_env_begins() -> None:
    taken = play(RepeatedEpsilonGreedy(0.1, 0.1, 1.0), steps=300, num_envs=500)
    before = torch.cat([torch.full((1, 500), GREEDY), taken[:-1]])
    free = before == GREEDY
    begins = taken == torch.arange(300).unsqueeze(1)
    assert float(begins[free].float().mean()) == pytest.approx(0.1, abs=0.005)
    never = play(RepeatedEpsilonGreedy(0.0, 0.0, 1.0), steps=20, num_envs=10)
    assert (never == GREEDY).all()


def test_what_is_repeated_ends_with_its_episode() -> None:
    explorer = RepeatedEpsilonGreedy(1.0, 1.0, 1.0)
    play(explorer, steps=1, num_envs=2000)
    left = explorer.state_dict()["left"]
    assert (left > 0).sum() > 500
    explorer.reset(torch.arange(2000) < 1000)
    (taken,) = play(explorer, steps=1, num_envs=2000, first=7, seed=1)
    assert (taken[:1000] == 7).all()  # each begins something new
    assert torch.equal(taken[1000:] == 0, left[1000:] > 0)  # each goes on


def test_it_goes_on_where_it_was_saved() -> None:
    first, second = (RepeatedEpsilonGreedy(0.5, 0.5, 1.0) for _ in range(2))
    second.load_state_dict(first.state_dict())  # before it has been asked
    play(first, steps=5, num_envs=50)
    saved = first.state_dict()
    going = play(first, steps=20, num_envs=50, first=5, seed=3)
    second.load_state_dict(saved)
    assert torch.equal(play(second, steps=20, num_envs=50, first=5, seed=3), going)
    assert (going[0] < 5).logical_and(going[0] != GREEDY).any()  # some of it began before


def test_actions_of_several_numbers_are_repeated_as_a_whole() -> None:
    explorer, generator = RepeatedEpsilonGreedy(1.0, 1.0, 1.0), Generator().manual_seed(0)
    greedy = torch.full((300, 2), float(GREEDY))
    first = explorer.explore(greedy, torch.rand(300, 2), generator)
    goes_on = explorer.state_dict()["left"] > 0
    second = explorer.explore(greedy, torch.rand(300, 2), generator)
    assert torch.equal((second == first).all(1), goes_on)
