"""The toy problems pay what their documentation says."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Settings

from rl_training.envs import make_env, probe


def play(env_id: str, answer: Any, **kwargs: Any) -> tuple[float, bool, bool]:
    env = make_env(Settings(env_id, kwargs))
    obs, _ = env.reset(seed=3)
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, _ = env.step(answer(obs))
        total += float(reward)
    return total, terminated, truncated


def read_image(image: Any, n: int) -> int:
    return int(image[0, :, 0].argmax() * n // image.shape[1])


@pytest.mark.parametrize(
    ("name", "answer", "optimum"),
    [
        ("Identity", lambda obs: obs, 16),
        ("IdentityBox", lambda obs: obs, 0),
        ("MultiDiscrete", lambda obs: obs, 16),
        ("MultiBinary", lambda obs: obs, 16),
        ("Masked", lambda obs: obs["obs"], 16),
        ("Image", lambda obs: read_image(obs, 4), 16),
        ("DictObs", lambda obs: 2 * read_image(obs["image"], 2) + int(obs["vector"].argmax()), 16),
        ("Chain", lambda obs: 1, 5),
    ],
)
def test_optimal_return(name: str, answer: Any, optimum: float) -> None:
    assert play(f"axiom/{name}-v0", answer) == (optimum, True, False)


def test_guessing_is_worse() -> None:
    assert play("axiom/Identity-v0", lambda obs: 0)[0] < 12
    assert play("axiom/IdentityBox-v0", lambda obs: obs * 0)[0] < -2
    assert play("axiom/Masked-v0", lambda obs: int(np.argmin(obs["action_mask"])), length=50)[0] < 0


def test_chain_values_are_those_of_its_definition() -> None:
    gamma = 0.9
    env: Any = gymnasium.make("axiom/Chain-v0", n=5).unwrapped
    for place in range(5):
        assert env.optimal_value(place, gamma) == pytest.approx(sum(gamma**k for k in range(5 - place)))
    endless: Any = gymnasium.make("axiom/Chain-v0", n=5, truncate=True).unwrapped
    assert [endless.optimal_value(place, gamma) for place in (0, 4)] == pytest.approx([10.0, 10.0])
    assert play("axiom/Chain-v0", lambda obs: 1, n=5, truncate=True) == (10.0, False, True)


def test_image_sizes_are_configurable() -> None:
    assert probe(Settings("axiom/Image-v0", {"size": 20, "channels": 3})).observation_space.shape == (
        20,
        20,
        3,
    )
