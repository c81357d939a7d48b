"""On a chain of known values, learned action values are the analytic ones; a time limit ends nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.dqn import DQN
from rl_training.data.samplers import UniformSampler
from rl_training.envs.toy import Chain
from rl_training.types import TransitionBatch

GAMMA, PLACES = 0.8, 5


def learned(algo: str, truncate: bool, folder: Path) -> np.ndarray:
    """Values `[place, action]` after learning from random walks."""
    agent = DQN(
        algo=algo,
        env_id="axiom/Chain-v0",
        env_kwargs={"truncate": truncate},
        seed=1,
        total_timesteps=2_400,
        num_envs=8,
        output_dir=str(folder),
        network={"hidden": (32, 32)},
        evaluation={"every_steps": 0},
        logging={"tensorboard": False},
        hyperparams={
            "gamma": GAMMA,
            "learning_starts": 800,
            "train_every": 8,
            "gradient_steps": 6,
            "batch_size": 64,
            "learning_rate": 3e-3,
            "learning_rate_schedule": "linear",
            "target_update_every": 1,
            "tau": 0.05,
            "exploration_final": 1.0,
            "v_min": 0.0,
            "v_max": 8.0,
            "num_quantiles": 8,
        },
    ).learn()
    places = torch.arange(PLACES, dtype=torch.float32)[:, None] / PLACES
    with torch.no_grad():
        values: np.ndarray = agent.policy.action_values(places).numpy()
    return values


def analytic(truncate: bool) -> np.ndarray:
    """Q*: staying earns nothing and loses a step, walking earns 1."""
    chain = Chain(PLACES, truncate)
    values = [chain.optimal_value(place, GAMMA) for place in range(PLACES)]
    after = [*values[1:], values[-1] if truncate else 0.0]
    return np.array([[GAMMA * v, 1.0 + GAMMA * w] for v, w in zip(values, after, strict=True)])


@pytest.mark.parametrize("algo", ["dqn", "c51", "qr_dqn"])
@pytest.mark.parametrize("truncate", [False, True], ids=["terminates", "time limit"])
def test_values_are_the_analytic_ones(algo: str, truncate: bool, tmp_path: Path) -> None:
    np.testing.assert_allclose(learned(algo, truncate, tmp_path), analytic(truncate), atol=0.2)


@pytest.mark.parametrize("algo", ["dqn", "c51", "qr_dqn"])
def test_they_are_not_when_a_time_limit_counts_as_the_end(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = UniformSampler.gather

    def confused(self: UniformSampler, index: torch.Tensor, *rest: Any) -> TransitionBatch:
        batch = gather(self, index, *rest)
        return replace(batch, discount=batch.discount * ~self.buffer.take("truncated", index))

    monkeypatch.setattr(UniformSampler, "gather", confused)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(learned(algo, True, tmp_path), analytic(True), atol=0.7)
