"""The evaluator: exactly as many episodes as asked for, no favour for short ones, no trace in training."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from runtime_helpers import Reader, count_envs
from torch import nn

from rl_training.envs.seeding import episode_seed
from rl_training.runtime.evaluator import evaluate, evaluation_mode
from rl_training.types import Decision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("episodes", "num_envs"), [(1, 1), (1, 4), (7, 3), (10, 4), (12, 4)])
def test_the_number_of_episodes_is_exact(episodes: int, num_envs: int) -> None:
    with count_envs(num_envs, lengths=lambda seed: 1 + seed % 5) as envs:
        result = evaluate(Reader(), envs, episodes, device=CPU)
    assert len(result.returns) == len(result.lengths) == len(result.seeds) == episodes
    assert len(set(result.seeds)) == episodes
    for total, length, seed in zip(result.returns, result.lengths, result.seeds, strict=True):
        assert length == 1 + seed % 5
        assert total == length * (length + 1) / 2


def test_short_episodes_are_not_counted_more_often() -> None:
    """Every even seed is over at once and every odd one takes 60 steps: the first to finish are all short."""
    with count_envs(4, lengths=lambda seed: 60 if seed % 2 else 1) as envs:
        result = evaluate(Reader(), envs, 12, device=CPU, seed=5)
    owed = [episode_seed(5, env, episode) for env in range(4) for episode in range(3)]
    assert list(result.seeds) == owed
    assert list(result.lengths) == [60 if seed % 2 else 1 for seed in owed]
    assert {1, 60} == set(result.lengths)


def test_the_same_seed_plays_the_same_episodes_sampled_or_not() -> None:
    for deterministic in (True, False):
        with count_envs(2, lengths=lambda seed: 1 + seed % 9) as envs:
            first, again, other = (
                evaluate(Reader(), envs, 5, device=CPU, seed=s, deterministic=deterministic)
                for s in (3, 3, 4)
            )
        assert first == again
        assert first.seeds != other.seeds


def test_an_episode_that_never_ends_is_cut_and_said_so_once() -> None:
    with count_envs(2, lengths=lambda _: 10**9) as envs:
        with pytest.warns(
            UserWarning, match=r"env Endless-v0: .* did not end in 50 steps .*env\.max_episode"
        ):
            result = evaluate(Reader(), envs, 3, device=CPU, longest=50, env_id="Endless-v0")
        assert result.lengths == (50, 50, 50)
        assert len(set(result.seeds)) == 3  # each is an episode of its own
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert evaluate(Reader(), envs, 1, device=CPU, longest=50).lengths == (50,)


def test_no_word_where_the_env_ends_by_itself() -> None:
    with count_envs(1, length=7) as envs, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(Reader(), envs, 2, device=CPU, longest=50).lengths == (7, 7)


def test_a_policy_that_acts_in_a_way_of_its_own_is_evaluated_by_that() -> None:
    class Decides(Reader):
        def decide(self, obs: Any, state: Any = None) -> Decision:
            raise AssertionError("this is how its base decides")

        def act(self, *args: Any, **kwargs: Any) -> Any:
            return super().act(*args, **kwargs)

    class Own(Decides):
        def act(self, *args: Any, **kwargs: Any) -> Any:
            return super().act(*args, **kwargs)

    policy = Own()
    with count_envs(2, length=3) as envs:
        evaluate(policy, envs, 2, device=CPU)
        assert len(policy.modes) == 3
        with pytest.raises(AssertionError, match="how its base decides"):
            evaluate(Decides(), envs, 2, device=CPU)


@pytest.mark.parametrize("stateful", [False, True])
def test_nobody_is_asked_for_values_where_the_likeliest_actions_are_played(stateful: bool) -> None:
    class Decides(Reader):
        def decide(self, obs: Any, state: Any = None) -> Decision:
            decided.append(len(obs))
            return Decision(torch.zeros(len(obs), dtype=torch.int64), {})

    decided: list[int] = []
    policy = Decides(stateful=stateful)
    with count_envs(2, length=3) as envs:
        result = evaluate(policy, envs, 2, device=CPU)
        assert result == evaluate(Reader(stateful=stateful), envs, 2, device=CPU)
        asked = (decided.copy(), len(policy.modes))
        assert asked == (([], 3) if stateful else ([2] * 3, 0))
        evaluate(policy, envs, 2, device=CPU, deterministic=False)
        assert (decided, len(policy.modes)) == (asked[0], asked[1] + 3)


def test_global_generators_are_not_touched() -> None:
    before = torch.random.get_rng_state()
    with count_envs(2) as envs:
        evaluate(Reader(), envs, 4, device=CPU, deterministic=False)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_policys_state_is_reset_with_each_episode() -> None:
    policy = Reader(stateful=True)
    with count_envs(1, length=3) as envs:
        evaluate(policy, envs, 2, device=CPU)
    assert [age.item() for age in policy.seen] == [0, 1, 2, 0, 1, 2]


def test_the_policy_is_in_eval_mode_and_each_module_returns_to_its_own() -> None:
    policy = Reader()
    policy.thawed, policy.frozen = nn.Dropout(), nn.Dropout().eval()
    policy.train()
    policy.frozen.eval()
    with count_envs(1) as envs:
        evaluate(policy, envs, 1, device=CPU)
    assert set(policy.modes) == {False}
    assert policy.training
    assert policy.thawed.training
    assert not policy.frozen.training
    with pytest.raises(RuntimeError), evaluation_mode(policy):
        raise RuntimeError
    assert policy.training
