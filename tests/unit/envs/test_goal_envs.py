"""Envs with goals: our own two, what is asked of others, and whether success is seen everywhere."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Settings
from gymnasium import spaces

from rl_training.envs import EnvConfig, findings, make_env, make_vector_env
from rl_training.envs.goals import find_goal_task
from rl_training.errors import ConfigError


class Reach(gymnasium.Env[Any, Any]):
    """Like `FetchReach`: float64 observations, a goal that ends nothing, judged by distance."""

    def __init__(self) -> None:
        place = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = np.zeros(3), self.np_random.uniform(-0.1, 0.1, 3)
        return self._show(), {"is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = self.place + 0.05 * np.asarray(action, np.float64)
        reward = float(self.compute_reward(self.place, self.goal, {}))
        info = {"is_success": np.float32(reward == 0.0)}  # as Gymnasium-Robotics gives it
        return self._show(), reward, self.compute_terminated(self.place, self.goal, info), False, info

    def _show(self) -> dict[str, Any]:
        return {"observation": self.place.copy(), "achieved_goal": self.place, "desired_goal": self.goal}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        assert isinstance(info, dict)
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.05).astype(np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return False


class OneAtATime(Reach):
    """Judges single goals only, and reaching one is the end (as in Gymnasium-Robotics' mazes)."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        x, y, z = achieved_goal - desired_goal
        return 1.0 if x * x + y * y + z * z < 0.01 else 0.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return bool(np.linalg.norm(achieved_goal - desired_goal) < 0.1)


class Unjudged(gymnasium.Env[Any, Any]):
    """Goals, but no compute_reward."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Reach().observation_space, spaces.Discrete(2)


ROWS = np.array([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0], [0.0, 0.02, 0.0]])


def test_goals_are_judged_as_the_env_does_many_at_once_or_one_by_one() -> None:
    task = find_goal_task(Reach())
    assert task.reward(ROWS, np.zeros((3, 3))).tolist() == [0.0, -1.0, 0.0]
    assert task.terminated is not None
    assert task.terminated(ROWS, np.zeros((3, 3))).tolist() == [False, False, False]
    single = find_goal_task(gymnasium.wrappers.OrderEnforcing(OneAtATime()))
    assert single.reward(ROWS, np.zeros((3, 3))).tolist() == [1.0, 0.0, 1.0]
    assert single.terminated is not None
    assert single.terminated(ROWS, np.zeros((3, 3))).tolist() == [True, False, True]


def test_a_vectorised_judge_is_called_once() -> None:
    env, calls = Reach(), []
    whole = env.compute_reward
    env.compute_reward = lambda a, d, info: calls.append(len(a)) or whole(a, d, info)  # type: ignore[method-assign, func-returns-value, assignment]
    task = find_goal_task(env)
    calls.clear()
    task.reward(np.zeros((50, 3)), np.zeros((50, 3)))
    assert calls == [50]


def test_an_env_without_goals_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"her: env CartPole-v1 has no goals: .* a Box, and obs"):
        find_goal_task(gymnasium.make("CartPole-v1"))
    with pytest.raises(ConfigError, match=r"is a Dict of image, vector, and observation, achieved_goal"):
        find_goal_task(make_env(Settings("axiom/DictObs-v0")))
    with pytest.raises(ConfigError, match=r"env Unjudged has no compute_reward\(achieved_goal, desired_goal"):
        find_goal_task(Unjudged())


def test_an_env_that_says_nothing_about_ends_keeps_the_stored_ones() -> None:
    class Open(Reach):
        def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
            raise NotImplementedError

    class Silent(gymnasium.Env[Any, Any]):
        observation_space = Reach().observation_space
        compute_reward = Reach.compute_reward

    for env in (Open(), Silent()):
        task = find_goal_task(env)
        assert task.terminated is None
        assert task.reward(ROWS, np.zeros((3, 3))).tolist() == [0.0, -1.0, 0.0]


def test_an_env_that_cannot_judge_is_refused_in_words() -> None:
    env = Reach()
    env.compute_reward = lambda achieved, desired: 0.0  # type: ignore[method-assign, assignment, misc]
    with pytest.raises(ConfigError, match=r"hyperparams\.her: Reach: compute_reward\(\) raised TypeError"):
        find_goal_task(env)


@pytest.mark.parametrize("option", ["frame_skip", "frame_stack"])
def test_wrappers_that_change_goals_or_rewards_are_refused(option: str) -> None:
    settings = Settings("axiom/PointGoal-v0", env=EnvConfig(**{option: 2}))
    with make_vector_env(settings, 1) as envs, pytest.raises(ConfigError, match=rf"env\.{option}"):
        envs.goal_task()


@pytest.mark.parametrize("name", ["BitFlip", "PointGoal"])
def test_our_envs_are_sound_and_pay_what_they_judge(name: str) -> None:
    assert [f for f in findings(Settings(f"axiom/{name}-v0")) if "time limit" not in f] == []
    env = make_env(Settings(f"axiom/{name}-v0"))
    task = find_goal_task(env)
    assert task.terminated is not None
    env.action_space.seed(0)
    env.reset(seed=0)
    rows, seen = [], []
    ended = False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        rows.append((obs["achieved_goal"], obs["desired_goal"]))
        seen.append((reward, terminated))
        assert info["is_success"] == (reward == 0.0)
        ended = terminated or truncated
    achieved, desired = (np.stack(part) for part in zip(*rows, strict=True))
    judged = zip(task.reward(achieved, desired), task.terminated(achieved, desired), strict=True)
    assert seen == [(float(r), bool(t)) for r, t in judged]
    assert task.reward(desired, desired).tolist() == [0.0] * len(rows)


def test_flipping_each_wrong_bit_once_is_optimal() -> None:
    env = make_env(Settings("axiom/BitFlip-v0", {"n_bits": 9}))
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
        assert len(wrong) > 0
        total = 0.0
        for bit in wrong:
            obs, reward, terminated, _, info = env.step(bit)
            total += float(reward)
        assert (total, terminated, info) == (1.0 - len(wrong), True, {"is_success": True})


def test_bits_that_do_not_reach_the_goal_are_cut_off_after_as_many_steps() -> None:
    env = make_env(Settings("axiom/BitFlip-v0", {"n_bits": 6}))
    env.reset(seed=1)
    ends = [env.step(0)[2:4] for _ in range(6)]
    assert ends == [(False, False)] * 5 + [(False, True)]


def test_a_point_can_be_pushed_to_its_goal_and_kept_there() -> None:
    env = make_env(Settings("axiom/PointGoal-v0"))
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        rewards = []
        truncated = False
        while not truncated:
            velocity = obs["observation"][2:]
            push = np.clip(5.0 * (obs["desired_goal"] - obs["achieved_goal"]) - 5.0 * velocity, -1, 1)
            obs, reward, terminated, truncated, info = env.step(push.astype(np.float32))
            rewards.append(reward)
            assert not terminated
        assert len(rewards) == 50
        assert info["is_success"]
        assert rewards[-10:] == [0.0] * 10


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_every_backend_says_which_episodes_succeeded(backend: Any) -> None:
    with make_vector_env(Settings("axiom/BitFlip-v0", {"n_bits": 3}), 2, backend=backend) as envs:
        obs = envs.reset()
        assert isinstance(obs, dict)
        finished = []
        for _ in range(12):  # env 0 does what is right, env 1 flips one bit to and fro
            wrong = obs["achieved_goal"][0] != obs["desired_goal"][0]
            result = envs.step(np.array([int(wrong.argmax()), 0]))
            obs = result.obs
            finished += result.episodes
        assert {e.success for e in finished if e.env_index == 0} == {True}
        assert all(e.success == e.terminated for e in finished)
        assert any(e.success is False for e in finished)
        goals = np.eye(3, dtype=np.int8)
        assert envs.goal_task().reward(goals, goals[[0, 0, 2]]).tolist() == [0.0, -1.0, 0.0]


def test_an_env_that_does_not_say_has_no_success() -> None:
    for backend in ("sync", "native"):
        with make_vector_env(Settings(), 2, backend=backend) as envs:  # type: ignore[arg-type]
            envs.reset()
            episodes: tuple[Any, ...] = ()
            while not episodes:
                episodes = envs.step(np.zeros(2, np.int64)).episodes
        assert {e.success for e in episodes} == {None}
