"""The memory tasks hide what they say they hide, and nothing else differs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Settings

from rl_training.envs import make_env, probe


@pytest.mark.parametrize(
    ("env_id", "full_id", "shown", "limit"),
    [
        ("axiom/CartPoleNoVelocity-v0", "CartPole-v1", [0, 2], 500),
        ("axiom/PendulumNoVelocity-v0", "Pendulum-v1", [0, 1], 200),
    ],
)
def test_velocities_are_all_that_is_hidden(env_id: str, full_id: str, shown: list[int], limit: int) -> None:
    hidden, full = make_env(Settings(env_id)), gymnasium.make(full_id)
    assert hidden.spec is not None
    assert hidden.spec.max_episode_steps == limit
    space: Any = probe(Settings(env_id)).observation_space
    full_space: Any = full.observation_space
    assert np.array_equal(space.high, full_space.high[shown])
    assert np.array_equal(space.low, full_space.low[shown])
    full.action_space.seed(0)
    for seed in range(3):
        obs, whole = hidden.reset(seed=seed)[0], full.reset(seed=seed)[0]
        ended = False
        while not ended:
            assert obs.tobytes() == whole[shown].tobytes()
            assert obs in space
            action = full.action_space.sample()
            obs, *outcome, _ = hidden.step(action)
            whole, *expected, _ = full.step(action)
            assert outcome == expected
            ended = outcome[1] or outcome[2]


def play(answer: Any, **kwargs: Any) -> float:
    env = make_env(Settings("axiom/Recall-v0", kwargs))
    total = 0.0
    for seed in range(200):
        seen, ended = [env.reset(seed=seed)[0]], False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(answer(seen))
            seen.append(obs)
            total, ended = total + float(reward), terminated or truncated
    return total / 200


def test_recall_pays_those_who_remember() -> None:
    assert play(lambda seen: seen[0]) == 8
    assert play(lambda seen: seen[0], n=2, length=20) == 20
    assert play(lambda seen: seen[-1] % 4) == pytest.approx(1 + 7 / 4, abs=0.5)  # 0 for all it has forgotten
