"""The collector: what is bootstrapped, what is counted, what the learner sees and what statistics see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runtime_helpers import Count, Reader, count_envs

from rl_training import TrainConfig
from rl_training.data.layout import rollout_layout
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs import make_vector_env
from rl_training.envs.seeding import episode_seed
from rl_training.envs.vector import VectorEnv
from rl_training.errors import NonFiniteError
from rl_training.runtime.collector import Collector
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.rewards import RewardSettings, RewardTransform
from rl_training.runtime.statistics import EpisodeStatistics
from rl_training.types import Episode


def collector(envs: VectorEnv, policy: Reader, settings: RewardSettings | None = None) -> Collector:
    rewards = RewardTransform(settings or RewardSettings(), envs.num_envs)
    made = Collector(envs, policy, rewards, torch.Generator().manual_seed(0), torch.device("cpu"), Profiler())
    made.start()
    return made


def filled(envs: VectorEnv, steps: int, policy: Reader | None = None, settings: Any = None) -> Any:
    buffer = RolloutBuffer(steps, envs.num_envs, **rollout_layout(envs.spec))
    made = collector(envs, policy or Reader(), settings)
    last = made.collect(buffer)
    return buffer, last, made


def test_a_truncated_episode_bootstraps_from_its_true_final_observation() -> None:
    with count_envs(1, length=3, ending="truncated") as envs:
        buffer, last, _ = filled(envs, 4)
        buffer.compute_returns_and_advantages(last, gamma=0.5, gae_lambda=1.0)
    # Observations 0 1 2 | 0 and rewards 1 2 3 | 1; the episode's last observation is 3, worth 30.
    assert buffer.obs[:, 0, 0].tolist() == [0, 1, 2, 0]
    assert buffer.final_values[2].item() == 30.0
    assert last.tolist() == [10.0]
    third = 3 + 0.5 * 30
    assert buffer.returns[:, 0].tolist() == [
        1 + 0.5 * (2 + 0.5 * third),
        2 + 0.5 * third,
        third,
        1 + 0.5 * 10,
    ]


def test_a_terminated_episode_does_not() -> None:
    with count_envs(1, length=3, ending="terminated") as envs:
        buffer, last, _ = filled(envs, 4)
        buffer.compute_returns_and_advantages(last, gamma=0.5, gae_lambda=1.0)
    assert buffer.final_values.isnan().all()
    assert buffer.returns[:, 0].tolist() == [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3.0, 1 + 0.5 * 10]


def test_the_policys_state_starts_anew_with_an_episode_and_goes_on_over_rollouts() -> None:
    policy = Reader(stateful=True)
    with count_envs(2, lengths=lambda seed: 2 + seed % 3) as envs:
        buffer = RolloutBuffer(6, 2, **rollout_layout(envs.spec))
        made = collector(envs, policy)
        made.collect(buffer)
        made.collect(buffer)
        ages = torch.stack(policy.seen)
    # The env's own count of steps is the first number of the observation: the state must agree with it.
    assert torch.equal(ages[6:], buffer.obs[:, :, 0])
    assert ages[6:].max() > 0


def test_statistics_are_raw_whatever_the_learner_sees() -> None:
    with count_envs(2, length=3) as envs:
        buffer, _, made = filled(envs, 6, settings=RewardSettings(scale=10.0, clip=1.0))
    assert set(buffer.rewards.flatten().tolist()) == {1.0}
    assert list(made.statistics.returns) == [6.0] * 4
    assert list(made.statistics.lengths) == [3] * 4
    assert made.statistics.metrics() == {
        "rollout/episodes": 4.0,
        "rollout/return_mean": 6.0,
        "rollout/length_mean": 3.0,
    }


def test_waiting_for_the_policy_is_no_time_of_the_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("rl_training.runtime.collector.perf_counter", lambda: clock[0])

    class Pending:
        """Actions that are still being computed: whoever wants them on the host waits."""

        def __init__(self, actions: torch.Tensor) -> None:
            self.actions = actions

        def cpu(self) -> torch.Tensor:
            clock[0] += 10.0
            return self.actions

    class Far(Reader):
        def env_actions(self, actions: Any) -> Any:
            return Pending(actions)

    with count_envs(2) as envs:
        step = envs.step

        def slow_step(actions: Any) -> Any:
            clock[0] += 1.0
            return step(actions)

        monkeypatch.setattr(envs, "step", slow_step)
        _, _, made = filled(envs, 4, Far())
    assert made.profiler.seconds["env"] == 4.0
    assert made.profiler.seconds["inference"] == 40.0


def test_the_window_of_statistics_slides_and_survives() -> None:
    statistics = EpisodeStatistics(window=3)
    assert statistics.metrics() == {"rollout/episodes": 0.0}
    for i in range(5):
        statistics.add((Episode(0, i, 0, float(i), i, True),))
    again = EpisodeStatistics(window=3)
    again.load_state_dict(statistics.state_dict())
    assert again.metrics() == {
        "rollout/episodes": 5.0,
        "rollout/return_mean": 3.0,
        "rollout/length_mean": 3.0,
    }


def test_the_success_rate_is_of_the_episodes_that_tell() -> None:
    statistics = EpisodeStatistics(window=4)
    for i, success in enumerate([True, None, False, True, True, False]):
        statistics.add((Episode(0, i, 0, 0.0, 1, True, success),))
    again = EpisodeStatistics(window=4)
    again.load_state_dict(statistics.state_dict())
    assert again.metrics()["rollout/success_rate"] == 0.5
    older = {key: value for key, value in statistics.state_dict().items() if key != "successes"}
    again.load_state_dict(older)  # a checkpoint from before there were success rates
    assert "rollout/success_rate" not in again.metrics()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("nan", "observation of env 1 at step 5"), ("nan_reward", "reward of env 1 at step 4")],
)
def test_a_broken_number_stops_collection_and_names_the_env(fault: str, message: str) -> None:
    kwargs = {"fault": fault, "at": 5, "seed": episode_seed(0, 1, 0)}
    config = TrainConfig(algo="ppo", env_id="axiom/Fragile-v0", env_kwargs=kwargs)
    with make_vector_env(config, 2) as envs, pytest.raises(NonFiniteError, match=f"the {message} "):
        filled(envs, 8)


class LastWord(Count):
    """Its last observation is no number."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return np.full_like(obs, np.inf) if truncated else obs, reward, terminated, truncated, info


def test_a_final_observation_that_is_no_number_is_the_envs_fault() -> None:
    config = TrainConfig(algo="ppo", env_id="count")
    with make_vector_env(config, 2, env=lambda: LastWord(length=3, ending="truncated")) as envs:
        broken = "the final observation of env 0 at step 2 of the rollout is NaN or infinite: the env is"
        with pytest.raises(NonFiniteError, match=broken):
            filled(envs, 4)


def test_a_policy_without_numbers_is_not_the_envs_fault() -> None:
    class Lost(Reader):
        def values(self, obs: Any, state: Any = None) -> torch.Tensor:
            return torch.full((len(obs),), torch.nan)

    with count_envs(1, length=3, ending="truncated") as envs:
        buffer, _, _ = filled(envs, 4, Lost())  # what comes of it, the update says
    assert buffer.final_values[2].isnan()


def test_state_round_trip_continues_the_same_stream() -> None:
    settings = RewardSettings(normalize=True, gamma=0.9)
    with count_envs(2, length=5) as envs, count_envs(2, length=5) as others:
        buffer = RolloutBuffer(7, 2, **rollout_layout(envs.spec))
        made = collector(envs, Reader(stateful=True), settings)
        made.collect(buffer)
        saved, at = made.state_dict(), envs.state_dict()
        again = collector(others, Reader(stateful=True), settings)
        assert others.load_state_dict(at)[0] == "exact"
        again.load_state_dict(saved)
        copy = RolloutBuffer(7, 2, **rollout_layout(envs.spec))
        assert torch.equal(made.collect(buffer), again.collect(copy))
    assert torch.equal(buffer.obs, copy.obs)
    assert torch.equal(buffer.rewards, copy.rewards)
    np.testing.assert_array_equal(made.rewards.returns, again.rewards.returns)
