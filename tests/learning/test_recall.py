"""A task that needs a memory is learned with one, and is not without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training import registry


def learned(algo: str, output_dir: Path, **hyperparams: Any) -> float:
    """The mean return on `Recall` after a few seconds of learning; 8 is optimal, 2.75 without a memory."""
    config = {
        "algo": algo,
        "env_id": "axiom/Recall-v0",
        "output_dir": str(output_dir),
        "num_envs": 8,
        "total_timesteps": 16_000,
        "hyperparams": {"num_steps": 64, "learning_rate": 2.5e-3, "gamma": 0.5, **hyperparams},
        "evaluation": {"every_steps": 0},
        "logging": {"tensorboard": False},
    }
    agent = registry.algorithm(algo).cls(config).learn()
    return float(agent.evaluate(num_episodes=100)["return_mean"])


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_cue_of_the_first_step_is_remembered(core: str, tmp_path: Path) -> None:
    # Sequences of 4 steps, shorter than an episode: what came before is in the state they begin with.
    assert learned("recurrent_ppo", tmp_path, core=core, sequence_length=4) >= 7.5


def test_without_a_memory_it_is_not(tmp_path: Path) -> None:
    assert learned("ppo", tmp_path) <= 3.5
