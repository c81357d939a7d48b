"""Atari: both backends play the same games, and what the learner sees is not what is reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv as GymVectorEnv

from rl_training.envs import EnvConfig, VectorEnv, make_env, make_vector_env
from rl_training.envs.atari import AreaScaling
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.config import TrainConfig

pytest.importorskip("ale_py", reason="needs the extra: atari")

BREAKOUT = "ALE/Breakout-v5"


@dataclass(frozen=True)
class Settings:
    env_id: str = BREAKOUT
    env: EnvConfig = field(default_factory=EnvConfig)
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 3


def settings(env_id: str = BREAKOUT, **atari: Any) -> Settings:
    env = EnvConfig(frame_skip=4, frame_stack=4, atari={"preprocess": True, "threads": 1, **atari})
    return Settings(env_id, env)


def play(envs: VectorEnv, steps: int, seed: int = 0) -> list[Any]:
    """What a run of random actions shows, step by step."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = [envs.reset().copy()]  # type: ignore[union-attr]
    for _ in range(steps):
        result = envs.step(rng.integers(envs.spec.action_space.n, size=envs.num_envs))  # type: ignore[attr-defined]
        seen.append((
            result.obs.copy(), result.rewards.copy(), result.terminated.copy(), result.truncated.copy(),
            result.ended.copy(), None if result.final_obs is None else result.final_obs.copy(),
            result.episodes,
        ))  # fmt: skip
    return seen


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("Pong", {}),
        ("Breakout", {"episodic_life": True, "fire_reset": True}),
        ("SpaceInvaders", {"sticky_actions": 0.25, "episodic_life": True}),
        ("Seaquest", {"noop_max": 0, "full_action_space": True}),
        ("Qbert", {"max_pool": False, "screen_size": 64, "episodic_life": True}),
    ],
)
def test_both_backends_play_the_same_games_to_the_pixel(game: str, options: dict[str, Any]) -> None:
    cfg = settings(f"ALE/{game}-v5", **options)
    with make_vector_env(cfg, 2, backend="sync") as one, make_vector_env(cfg, 2, backend="ale") as many:
        assert one.spec == many.spec
        for step, (a, b) in enumerate(zip(play(one, 250), play(many, 250), strict=True)):
            ended = step > 0 and len(a[4]) > 0
            for x, y in zip(a[ended:], b[ended:], strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"step {step}")
            if ended:
                break  # from its second game on an env of the ale backend has no seed of its own
        assert step > 50


def test_a_new_game_is_shown_as_its_first_frame_repeated() -> None:
    for backend in ("sync", "ale"):
        with make_vector_env(settings(), 1, backend=backend) as envs:  # type: ignore[arg-type]
            obs = envs.reset().copy()  # type: ignore[union-attr]
            assert obs.shape == (1, 4, 84, 84)
            assert obs.dtype == np.uint8
            assert (obs[:, :1] == obs).all()
            result = envs.step(np.array([1]))
            np.testing.assert_array_equal(result.obs[:, :3], obs[:, 1:])  # type: ignore[call-overload,index]
            assert (result.obs[:, 3] != obs[:, 3]).any()  # type: ignore[call-overload,index]


@pytest.mark.parametrize("backend", ["sync", "async", "ale"])
def test_a_lost_life_terminates_for_the_learner_while_the_game_goes_on(backend: Any) -> None:
    with make_vector_env(settings(episodic_life=True, fire_reset=True), 1, backend=backend) as envs:
        envs.reset()
        actions = np.random.default_rng(0)
        before, lives_lost = np.zeros(1), 0
        for _ in range(2000):
            result = envs.step(actions.integers(4, size=1))
            if len(result.ended):
                break
            if result.terminated[0]:
                lives_lost += 1
                assert result.final_obs is None
                assert not result.truncated[0]
                np.testing.assert_array_equal(result.obs[:, 2], before)  # type: ignore[call-overload,index]
            before = result.obs[:, 3].copy()  # type: ignore[call-overload,index]
        (episode,) = result.episodes
        assert lives_lost == 4  # Breakout has five, and the fifth ends the game
        assert episode.terminated
        assert episode.length > 100


def test_without_episodic_life_nothing_ends_before_the_game() -> None:
    with make_vector_env(settings(fire_reset=True), 1, backend="ale") as envs:
        seen = play(envs, 150)
        terminated = np.concatenate([step[2] for step in seen[1:]])
        assert terminated.sum() == sum(len(step[6]) for step in seen[1:])


def test_the_time_limit_truncates_in_agent_steps_in_both_backends() -> None:
    cfg = Settings(
        env=EnvConfig(frame_skip=4, max_episode_steps=20, atari={"preprocess": True, "threads": 1})
    )
    for backend in ("sync", "ale"):
        with make_vector_env(cfg, 2, backend=backend) as envs:  # type: ignore[arg-type]
            seen = play(envs, 20)
            assert [list(step[4]) for step in seen[1:]] == [[]] * 19 + [[0, 1]]
            assert seen[-1][3].all()
            assert not seen[-1][2].any()
            assert [episode.length for episode in seen[-1][6]] == [20, 20]


def test_frames_are_the_limit_where_none_is_given() -> None:
    assert make_vector_env(settings(), 1, backend="sync").time_limit == 27_000


def test_the_ale_backend_starts_games_anew_and_says_so() -> None:
    cfg = settings()
    with make_vector_env(cfg, 2, backend="ale") as envs, make_vector_env(cfg, 2, backend="ale") as other:
        play(envs, 5)
        assert envs.resume_grade[0] == "episode"
        grade, reason = other.load_state_dict(envs.state_dict())
        assert grade == "episode"
        assert "ale backend" in reason
        assert (other.episode_seeds != envs.episode_seeds).all()
        other.step(np.array([0, 1]))


@pytest.mark.parametrize("options", [{"episodic_life": True}, {"sticky_actions": 0.5}])
def test_single_games_go_on_exactly_where_they_were(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.envs.snapshot.DIRECT_STEPS", 20)  # saved directly, unless sticky
    cfg = settings(fire_reset=True, **options)
    with make_vector_env(cfg, 2, backend="sync") as envs, make_vector_env(cfg, 2, backend="sync") as other:
        play(envs, 60)
        state = envs.state_dict()
        assert len(state["direct"]) == (0 if "sticky_actions" in options else 2)
        assert other.load_state_dict(state)[0] == "exact"
        np.testing.assert_array_equal(envs.observations(), other.observations())
        actions = np.random.default_rng(1)
        for _ in range(60):
            chosen = actions.integers(4, size=2)
            a, b = envs.step(chosen), other.step(chosen)
            for name in ("obs", "rewards", "terminated", "ended", "episodes"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_the_games_whose_saved_state_is_incomplete_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.snapshot.DIRECT_STEPS", 5)
    with make_vector_env(settings("ALE/Qbert-v5"), 1, backend="sync") as envs:
        play(envs, 10)
        assert envs.state_dict()["direct"] == {}


def test_the_metadata_that_vector_envs_share_is_left_alone() -> None:
    before = dict(GymVectorEnv.metadata)
    make_vector_env(settings(), 1, backend="ale").close()
    assert dict(GymVectorEnv.metadata) == before


def test_area_scaling_averages_over_what_a_pixel_covers() -> None:
    screen = np.array([[0, 10, 20, 30, 40, 50]] * 4, np.uint8)
    np.testing.assert_array_equal(AreaScaling((4, 6), (2, 3))(screen), [[5, 25, 45]] * 2)
    # A new pixel covers 1.5 old ones: (0 + 10/2) / 1.5 = 3.3, (10/2 + 20) / 1.5 = 16.7, …
    np.testing.assert_array_equal(AreaScaling((4, 6), (4, 4))(screen)[0], [3, 17, 33, 47])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"backend": "ale"}, "env.backend: 'ale' needs env.atari.preprocess"),
        ({"atari": {"preprocess": True}, "grayscale": True}, "env.grayscale: env.atari.preprocess does"),
        ({"atari": {"preproces": True}}, "atari.preproces: unknown key; did you mean 'preprocess'"),
    ],
)
def test_impossible_settings_are_config_errors(env: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(algo="ppo", env_id=BREAKOUT, env=EnvConfig(**env))


def test_only_ale_games_are_preprocessed() -> None:
    with pytest.raises(ConfigError, match="'CartPole-v1' is no ALE game"):
        TrainConfig(algo="ppo", env_id="CartPole-v1", env=EnvConfig(atari={"preprocess": True}))


def test_env_kwargs_that_the_protocol_decides_are_refused() -> None:
    cfg = Settings(env=settings().env, env_kwargs={"frameskip": 2})
    with pytest.raises(EnvError, match=r"env_kwargs.frameskip: .* env.frame_skip"):
        make_env(cfg)
