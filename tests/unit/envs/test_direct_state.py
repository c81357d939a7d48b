"""Envs that are known exactly are put back without replay, bit for bit; all others are replayed."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Settings, through_storage, walk

from rl_training.envs import EnvConfig, direct_state, make_vector_env, snapshot
from rl_training.envs.backends import SyncBackend
from rl_training.envs.wrappers import wrap

CLASSIC = (
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
    "axiom/CartPoleNoVelocity-v0", "axiom/PendulumNoVelocity-v0",
)  # fmt: skip
MUJOCO = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5", "Ant-v4",
    "Humanoid-v4", "Reacher-v4",
)  # fmt: skip


def make(env_id: str, config: EnvConfig | None = None, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "out of date": v4
        return wrap(gymnasium.make(env_id, disable_env_checker=True, **kwargs), config or EnvConfig())


def play(env: Any, steps: int, seed: int) -> list[Any]:
    """Random actions, also beyond the end of an episode, and all that came back, as bytes."""
    space = env.action_space
    space.seed(seed)
    trace = []
    for _ in range(steps):
        obs, *rest = env.step(space.sample())
        trace.append((np.asarray(obs).tobytes(), np.float64(rest[0]).tobytes(), *map(bool, rest[1:3])))
    return trace


def assert_goes_on(one: Any, two: Any, before: int, after: int = 200) -> None:
    """Play one, move its state into the other, which has another past, and let both go on."""
    one.reset(seed=3)
    two.reset(seed=4)
    play(one, before, seed=1)
    play(two, 7, seed=2)
    two.reset(seed=5)
    state = direct_state.capture(one)
    assert state is not None
    assert direct_state.restore(two, through_storage(state)) is None
    assert play(two, after, seed=6) == play(one, after, seed=6)
    assert direct_state._same(direct_state.capture(one), direct_state.capture(two))  # to the last variable
    assert one.reset()[0].tobytes() == two.reset()[0].tobytes()  # the next, unseeded episode: the generator


@pytest.mark.filterwarnings("ignore:.*already returned terminated:UserWarning")
@pytest.mark.parametrize("before", [0, 1, 6, 60])
@pytest.mark.parametrize("env_id", CLASSIC)
def test_classic_control_goes_on_bit_for_bit(env_id: str, before: int) -> None:
    assert_goes_on(make(env_id), make(env_id), before)


def test_acrobot_noise_goes_on() -> None:
    one, two = make("Acrobot-v1"), make("Acrobot-v1")
    one.unwrapped.torque_noise_max = two.unwrapped.torque_noise_max = 0.5  # type: ignore[attr-defined]
    assert_goes_on(one, two, 20)


def test_states_of_wrappers_go_on() -> None:
    config = EnvConfig(frame_skip=2, frame_stack=3, max_episode_steps=70)
    assert_goes_on(make("Pendulum-v1", config), make("Pendulum-v1", config), 20, 80)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Reacher-v5", "Hopper-v5"])
def test_pictures_go_on(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A camera that follows the body, and stacks of what it saw."""
    if env_id != "Pendulum-v1":
        pytest.importorskip("mujoco", reason='pip install "axiomrl[mujoco]"')
    config = EnvConfig(pixels=True, grayscale=True, resize=(32, 32), frame_skip=2, frame_stack=3)
    kwargs = {} if env_id == "Pendulum-v1" else {"width": 32, "height": 32}
    settings = Settings(env_id, kwargs, config)
    monkeypatch.setattr(snapshot, "DIRECT_STEPS", 3)
    with make_vector_env(settings, 2) as one, make_vector_env(settings, 2, seed=99) as two:
        one.reset()
        walk(one, 12, seed=1)
        state = through_storage(one.state_dict())
        assert state["direct"]
        assert two.load_state_dict(state)[0] == "exact"
        assert walk(one, 20, seed=2) == walk(two, 20, seed=2)


@pytest.mark.parametrize("env_id", MUJOCO)
def test_mujoco_goes_on_bit_for_bit(env_id: str) -> None:
    pytest.importorskip("mujoco", reason='pip install "axiomrl[mujoco]"')
    assert_goes_on(make(env_id), make(env_id), before=60)


def test_mujoco_needs_more_than_the_integration_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ant's reward compares with the place of the torso that the last simulation step left behind."""
    pytest.importorskip("mujoco", reason='pip install "axiomrl[mujoco]"')
    monkeypatch.setattr(direct_state, "_MUJOCO_DERIVED", ())
    with pytest.raises(AssertionError):
        assert_goes_on(make("Ant-v5"), make("Ant-v5"), before=60)


def test_mujoco_in_a_vector_env(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason='pip install "axiomrl[mujoco]"')
    monkeypatch.setattr(snapshot, "DIRECT_STEPS", 20)
    settings = Settings("HalfCheetah-v5")
    with (
        make_vector_env(settings, 2, backend="async") as one,
        make_vector_env(settings, 2, seed=99) as two,
    ):
        one.reset()
        walk(one, 50, seed=1)
        state = through_storage(one.state_dict())
        assert sorted(state["direct"]) == ["0", "1"]
        assert two.load_state_dict(state)[0] == "exact"
        assert walk(one, 200, seed=2) == walk(two, 200, seed=2)


def atari(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    ale_py = pytest.importorskip("ale_py", reason='pip install "axiomrl[atari]"')
    gymnasium.register_envs(ale_py)
    return make("ALE/Pong-v5", **kwargs)


@pytest.mark.parametrize("obs_type", ["rgb", "ram"])
def test_atari_goes_on_bit_for_bit(obs_type: str) -> None:
    kwargs = {"repeat_action_probability": 0.0, "frameskip": (2, 5), "obs_type": obs_type}
    for before in (1, 40, 333):
        assert_goes_on(atari(**kwargs), atari(**kwargs), before)


def test_atari_with_sticky_actions_is_replayed() -> None:
    """ALE's state lacks the action that it may repeat."""
    assert not direct_state.is_known(atari(repeat_action_probability=0.25))
    assert direct_state.capture(atari(repeat_action_probability=0.25)) is None


class Heavier(gymnasium.envs.classic_control.CartPoleEnv):
    """Not the class that is known."""


class Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a state of its own."""

    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + self.count, terminated, truncated, info

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        return super().reset(**kwargs)


@pytest.mark.parametrize(
    "unknown", [lambda: Counting(make("Pendulum-v1")), Heavier, lambda: make("axiom/Chain-v0")]
)
def test_whatever_is_not_known_exactly_is_replayed(unknown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not direct_state.is_known(unknown())
    assert direct_state.capture(unknown()) is None
    monkeypatch.setattr(snapshot, "DIRECT_STEPS", 5)
    with (
        make_vector_env(Settings(), 2, env=unknown) as one,
        make_vector_env(Settings(), 2, env=unknown) as two,
    ):
        one.reset()
        walk(one, 20, seed=1)
        state = through_storage(one.state_dict())
        assert state["direct"] == {}
        assert "replayed" in one.resume_grade[1]
        assert two.load_state_dict(state)[0] == "exact"
        assert walk(one, 50, seed=2) == walk(two, 50, seed=2)


@pytest.mark.parametrize(("first", "second"), [("sync", "sync"), ("async", "async"), ("async", "sync")])
def test_long_and_short_episodes_side_by_side(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CartPole's episodes differ in length: some are saved, some replayed, and all go on."""
    monkeypatch.setattr(snapshot, "DIRECT_STEPS", 12)
    settings = Settings(env=EnvConfig(frame_stack=2))
    with (
        make_vector_env(settings, 5, backend=first) as one,
        make_vector_env(settings, 5, seed=99, backend=second) as two,
    ):
        one.reset()
        mixed = 0
        for trial in range(12):
            walk(one, 17, seed=trial)
            state = through_storage(one.state_dict())
            long = [i for i, length in enumerate(state["lengths"]) if length > 12]
            assert sorted(state["direct"]) == [str(i) for i in long]
            mixed += 0 < len(long) < 5
            grade = ("exact", f"the state of {len(long)} of 5 envs (long episodes) is saved; other episodes")
            if long:
                assert (one.resume_grade[0], one.resume_grade[1].split(" are replayed")[0]) == grade
                assert len(state["actions"]) <= 12
            loaded, reason = two.load_state_dict(state)
            assert loaded == "exact"
            assert (f"{len(long)} by their saved state" in reason) == bool(long)
            assert two.state_dict()["digests"] == state["digests"]
            assert walk(one, 9, seed=100 + trial) == walk(two, 9, seed=100 + trial)
            assert one.state_dict()["digests"] == two.state_dict()["digests"]  # the hash went on, too
        assert mixed >= 3


def test_a_long_episode_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings("Pendulum-v1", env=EnvConfig(max_episode_steps=5000))
    with make_vector_env(settings, 2) as one, make_vector_env(settings, 2) as two:
        one.reset()
        walk(one, snapshot.DIRECT_STEPS, seed=1)
        assert len(one.state_dict()["actions"]) == snapshot.DIRECT_STEPS
        walk(one, 300, seed=2)
        state = through_storage(one.state_dict())
        assert (len(state["actions"]), len(state["direct"])) == (0, 2)
        assert one.resume_grade[0] == "exact"
        with monkeypatch.context() as patch:
            patch.setattr(SyncBackend, "step", None)
            assert two.load_state_dict(state)[0] == "exact"
        assert walk(one, 200, seed=3) == walk(two, 200, seed=3)
        again = through_storage(two.state_dict())  # saved, restored and saved again
        assert one.load_state_dict(again)[0] == "exact"
        assert walk(one, 3600, seed=4) == walk(two, 3600, seed=4)


def damage_observation_hash(direct: dict[str, Any]) -> None:
    direct["hash"][0][0] ^= 1


def damage_class(direct: dict[str, Any]) -> None:
    direct["env"]["classes"][-1] = "builtins:object"


def damage_random(direct: dict[str, Any]) -> None:
    direct["env"]["random"]["inc"] = "no number"


def damage_shape(direct: dict[str, Any]) -> None:
    direct["obs"][0] = np.zeros(9, dtype=np.float32)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_observation_hash, "its saved state is damaged"),
        (damage_class, "its state was saved from another kind of env"),
        (damage_random, "its saved state does not fit: ValueError"),
        (damage_shape, "its saved observation does not fit"),
    ],
)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_state_that_does_not_fit_restarts_that_env_and_says_so(
    backend: str, damage: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "DIRECT_STEPS", 10)
    settings = Settings("Pendulum-v1")
    with make_vector_env(settings, 3, backend=backend) as one, make_vector_env(settings, 3) as two:
        one.reset()
        walk(one, 30, seed=1)
        state = one.state_dict()
        damage(state["direct"]["1"])
        grade, reason = one.load_state_dict(state)
        assert grade == "episode"
        assert f"1 of 3 envs began a new episode; env 1: {words}" in reason
        assert one.state_dict()["lengths"].tolist() == [30, 0, 30]
        two.reset()
        walk(two, 30, seed=1)
        assert np.array(one.observations())[[0, 2]].tolist() == np.array(two.observations())[[0, 2]].tolist()
