"""Envs are put back by replay, bit for bit, or it is said why not."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Diary, Settings, Unseeded, through_storage, walk

from rl_training.envs import EnvConfig, make_vector_env, snapshot
from rl_training.envs.snapshot import ActionLog, RollingHash


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(("first", "second"), [("sync", "sync"), ("async", "async"), ("sync", "async")])
def test_restored_envs_go_on_bit_for_bit(env_id: str, first: str, second: str) -> None:
    settings = Settings(env_id)
    with (
        make_vector_env(settings, 3, backend=first) as one,
        make_vector_env(settings, 3, seed=99, backend=second) as two,
    ):
        one.reset()
        walk(one, 137, seed=1)
        state = through_storage(one.state_dict())
        assert state["lengths"].min() >= 0
        assert state["lengths"].max() > 0
        assert two.load_state_dict(state) == ("exact", "every env is where it was")
        np.testing.assert_array_equal(one.observations(), two.observations())
        assert walk(one, 200, seed=2) == walk(two, 200, seed=2)
        assert through_storage(one.state_dict())["digests"] == through_storage(two.state_dict())["digests"]


def masked_dict() -> gymnasium.Env[Any, Any]:
    """A Dict observation and a mask in `info`, with MultiDiscrete actions."""
    env = gymnasium.make("axiom/MultiDiscrete-v0", masked=True, length=40)
    space = gymnasium.spaces.Dict({"numbers": env.observation_space})
    return gymnasium.wrappers.TransformObservation(env, lambda obs: {"numbers": obs}, space)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(
    ("settings", "make"),
    [
        pytest.param(Settings("Pendulum-v1", env=EnvConfig(frame_skip=3)), None, id="frame skip, Box"),
        pytest.param(Settings("Pendulum-v1", env=EnvConfig(frame_skip=2, frame_stack=3)), None, id="stack"),
        pytest.param(Settings(env=EnvConfig(max_episode_steps=13)), None, id="time limit"),
        pytest.param(Settings("axiom/Chain-v0", {"truncate": True}), None, id="own truncation"),
        pytest.param(Settings("axiom/Masked-v0"), None, id="mask"),
        pytest.param(Settings("axiom/DictObs-v0", {"size": 12}), None, id="Dict"),
        pytest.param(Settings(), masked_dict, id="Dict, mask, MultiDiscrete"),
        pytest.param(Settings("axiom/MultiBinary-v0"), None, id="MultiBinary"),
        pytest.param(Settings("axiom/IdentityBox-v0"), None, id="random Box"),
        pytest.param(Settings(env=EnvConfig(frame_skip=4, max_episode_steps=7)), None, id="skip and limit"),
    ],
)
def test_going_on_equals_never_having_stopped(settings: Settings, make: Any, backend: str) -> None:
    with (
        make_vector_env(settings, 3, env=make, backend=backend) as one,
        make_vector_env(settings, 3, env=make, seed=99, backend=backend) as two,
    ):
        one.reset()
        walk(one, 33, seed=1)
        state = through_storage(one.state_dict())
        assert state["direct"] == {}
        assert state["lengths"].max() > 0
        assert two.load_state_dict(state)[0] == "exact"
        trace = walk(one, 90, seed=2)
        assert any(episodes for _, episodes in trace)
        assert trace == walk(two, 90, seed=2)


def test_a_restored_state_can_be_saved_and_restored_again() -> None:
    with (
        make_vector_env(Settings("Pendulum-v1"), 2) as one,
        make_vector_env(Settings("Pendulum-v1"), 2) as two,
    ):
        one.reset()
        walk(one, 50, seed=1)
        two.load_state_dict(one.state_dict())
        walk(two, 50, seed=2)
        assert one.load_state_dict(two.state_dict())[0] == "exact"
        assert walk(one, 120, seed=3) == walk(two, 120, seed=3)


def test_a_mistake_in_the_past_is_noticed() -> None:
    with (
        make_vector_env(Settings("Pendulum-v1"), 2) as one,
        make_vector_env(Settings("Pendulum-v1"), 2) as two,
    ):
        one.reset()
        walk(one, 30, seed=1)
        state = one.state_dict()
        state["actions"][3, 1] += 1e-3
        seeds = one.episode_seeds
        grade, reason = two.load_state_dict(state)
        assert grade == "episode"
        assert "1 of 2 envs" in reason
        assert "env 1: its replayed episode differs" in reason
        assert two.episode_seeds[0] == seeds[0]
        np.testing.assert_array_equal(two.observations()[0], one.observations()[0])  # type: ignore[index]
        assert two.state_dict()["episodes"].tolist() == [0, 1]
        assert two.state_dict()["lengths"].tolist() == [30, 0]
        assert two.state_dict()["returns"][1] == 0.0


def test_an_env_that_ignores_its_seed_restarts_at_the_next_episode() -> None:
    with make_vector_env(Settings(), 2, env=Unseeded) as envs:
        envs.reset()
        walk(envs, 5, seed=0)
        grade, reason = envs.load_state_dict(envs.state_dict())
        assert grade == "episode"
        assert "not deterministic" in reason
        assert envs.state_dict()["episodes"].tolist() == [1, 1]


def test_an_episode_that_ends_early_in_replay_is_noticed() -> None:
    with (
        make_vector_env(Settings("axiom/Chain-v0", {"n": 9}), 1) as one,
        make_vector_env(Settings("axiom/Chain-v0", {"n": 4}), 1) as two,
    ):
        one.reset()
        for _ in range(6):
            one.step(np.ones(1, dtype=np.int64))
        grade, reason = two.load_state_dict(one.state_dict())
        assert (grade, "ended after 4 of 6 steps" in reason) == ("episode", True)
        assert two.step(np.ones(1, dtype=np.int64)).ended.tolist() == []


def test_too_long_an_episode_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "REPLAY_STEPS", 20)
    with make_vector_env(Settings(), 1, env=lambda: Diary(endless=True)) as envs:
        envs.reset()
        walk(envs, 15, seed=0)
        assert envs.resume_grade[0] == "exact"
        assert envs.load_state_dict(envs.state_dict())[0] == "exact"
        walk(envs, 60, seed=0)
        state = envs.state_dict()
        assert len(state["actions"]) == 20
        assert envs.resume_grade[0] == "episode"
        grade, reason = envs.load_state_dict(state)
        assert grade == "episode"
        assert "75 steps long" in reason


def test_another_number_of_envs_or_kind_of_backend_starts_new_episodes() -> None:
    with make_vector_env(Settings(), 2) as two, make_vector_env(Settings(), 3) as three:
        two.reset()
        state = two.state_dict()
        assert three.load_state_dict(state) == ("episode", "saved with 2 envs, restored with 3")
        assert three.state_dict()["episodes"].tolist() == [1, 1, 1]
        with make_vector_env(Settings(), 2, backend="native") as native:
            grade, reason = native.load_state_dict(state)
            assert (grade, "saved by the sync backend" in reason) == ("episode", True)
            native.step(np.zeros(2, dtype=np.int64))


def test_a_state_from_before_the_first_episode() -> None:
    with make_vector_env(Settings(), 2) as one, make_vector_env(Settings(), 2, seed=1) as two:
        assert two.load_state_dict(one.state_dict())[0] == "exact"
        np.testing.assert_array_equal(one.reset(), two.reset())


def test_action_log_keeps_what_episodes_need() -> None:
    log = ActionLog(2, gymnasium.spaces.Discrete(9))
    lengths = np.zeros(2, dtype=np.int64)
    for t in range(5000):
        log.append(np.array([t, -t]), lengths)
        lengths += 1
        if t % 700 == 699:
            lengths[:] = 0, min(int(lengths[1]), 1500)
    keep = int(lengths.max())
    assert log.tail(keep)[:, 0].tolist() == list(range(5000 - keep, 5000))
    assert len(log._rows) <= 8192


def test_rolling_hash_sees_every_observation_and_their_order() -> None:
    obs = np.zeros((1, 3), dtype=np.float32)

    def digest(values: list[float]) -> int:
        hashes = RollingHash(obs)
        obs[0, 1] = values[0]
        hashes.restart([0])
        for value in values[1:]:
            obs[0, 1] = value
            hashes.update()
        return hashes.digests(np.zeros(1), np.array([len(values)]))[0]

    assert digest([1, 2, 3, 4]) == digest([1, 2, 3, 4])
    assert len({digest([1, 2, 3, 4]), digest([1, 3, 2, 4]), digest([0, 2, 3, 4]), digest([1, 2, 3, 5])}) == 4
    assert digest([1.0, 0.0]) != digest([1.0, -0.0])
