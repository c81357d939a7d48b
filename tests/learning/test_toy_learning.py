"""Every algorithm learns with every kind of action and observation, on tasks of known optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training import registry

# env, the optimal return, and what counts as learned (a random policy is far below in each)
TASKS: dict[str, list[tuple[str, float]]] = {
    "Discrete": [
        ("axiom/Identity-v0", 15.5),
        ("axiom/Masked-v0", 15.5),
        ("axiom/DictObs-v0", 15.0),
        ("axiom/Image-v0", 15.0),
    ],
    "MultiDiscrete": [("axiom/MultiDiscrete-v0", 15.0)],
    "MultiBinary": [("axiom/MultiBinary-v0", 15.0)],
    "Box": [("axiom/IdentityBox-v0", -0.5)],
}
BUDGETS: dict[str, dict[str, Any]] = {
    "on-policy": {
        "num_envs": 8,
        "total_timesteps": 12_000,
        "hyperparams": {"num_steps": 32, "num_minibatches": 4, "learning_rate": 2e-3, "gamma": 0.5},
    },
    "off-policy": {
        "num_envs": 8,
        "total_timesteps": 3_000,
        "hyperparams": {
            "buffer_size": 5_000,
            "batch_size": 64,
            "learning_starts": 400,
            "train_every": 8,
            "gradient_steps": 2,
            "learning_rate": 2e-3,
            "gamma": 0.5,
        },
    },
}
OWN: dict[str, dict[str, Any]] = {
    "a2c": {
        "num_steps": 4,
        "learning_rate": 8e-3,
        "learning_rate_schedule": "linear",
        "ent_coef": 0.05,
        "ent_coef_schedule": "linear",
    },
    "a2c on axiom/DictObs-v0": {"learning_rate": 6e-3, "rmsprop_alpha": 0.95},
    # Once it is solved, advantages are next to nothing, and standardised they are noise. At a high rate one
    # step by it can unlearn an answer, which a policy without entropy does not try again.
    "ppo on axiom/DictObs-v0": {"learning_rate_schedule": "linear"},
    "recurrent_ppo on axiom/DictObs-v0": {"learning_rate_schedule": "linear"},
    "drqv2": {"gradient_steps": 4},
    "trpo": {"target_kl": 0.1, "update_epochs": 5, "cg_steps": 4},
    "trpo on axiom/DictObs-v0": {"update_epochs": 1, "num_minibatches": 1, "cg_steps": 2},
    "trpo on axiom/Image-v0": {"update_epochs": 1, "num_minibatches": 1, "cg_steps": 2},
    "recurrent_ppo": {"sequence_length": 8, "num_minibatches": 2},
    "recurrent_ppo on axiom/IdentityBox-v0": {"num_minibatches": 4},
    "sac": {"temperature": 0.05},
    "tqc": {"temperature": 0.05},
    "crossq": {"temperature": 0.05, "policy_delay": 1},
    "redq": {"temperature": 0.05, "policy_delay": 1, "num_critics": 4},
}
"""What an algorithm needs to learn so quickly beyond that."""
PIXELS = ("axiom/DictObs-v0", "axiom/Image-v0")


def cases() -> list[Any]:
    """Every id on every task; with pixels, which are slow, one id of each class unless `--full`."""
    by_variety = sorted(registry.algorithms().values(), key=lambda e: len(e.fixed) + len(e.defaults))
    plainest = {entry.cls: entry.id for entry in reversed(by_variety)}
    return [
        pytest.param(
            algo,
            env_id,
            threshold,
            marks=[pytest.mark.full] if env_id in PIXELS and plainest[entry.cls] != algo else [],
        )
        for algo, entry in registry.algorithms().items()
        for kind in entry.actions
        for env_id, threshold in TASKS[kind]
    ]


@pytest.mark.parametrize(("algo", "env_id", "threshold"), cases())
def test_learns_a_task_of_known_optimum(algo: str, env_id: str, threshold: float, tmp_path: Path) -> None:
    entry = registry.algorithm(algo)
    budget = BUDGETS[entry.family]
    hyperparams = {**budget["hyperparams"], **OWN.get(algo, {}), **OWN.get(f"{algo} on {env_id}", {})}
    config = {
        "algo": algo,
        "env_id": env_id,
        "output_dir": str(tmp_path),
        "evaluation": {"every_steps": 0},
        "logging": {"tensorboard": False},
        **budget,
        "hyperparams": {key: value for key, value in hyperparams.items() if key not in entry.fixed},
        "network": {"hidden": (64, 64)} if env_id == "axiom/IdentityBox-v0" else {},
    }
    agent = entry.cls(config)
    before = agent.evaluate(num_episodes=20, deterministic=False)["return_mean"]
    after = agent.learn().evaluate(num_episodes=20)["return_mean"]
    assert before < threshold <= after, f"{before} before, {after} after, {threshold} needed"
