"""What all algorithms share: schedules that reach the optimiser, after a load too; NaN moves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.base import Context
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.errors import AxiomError
from rl_training.functional.schedules import scheduled
from rl_training.policies.config import NetworkConfig
from rl_training.types import Batch, RolloutBatch, Spec


def ppo(**hyperparams: Any) -> PPO:
    spec = Spec(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
    network = NetworkConfig(hidden=(8,))
    return PPO.from_context(Context(spec, PPOConfig(**hyperparams), network, torch.device("cpu"), seed=1))


def batch(value: float = 1.0) -> RolloutBatch:
    generator = torch.Generator().manual_seed(0)
    columns = {name: torch.randn(8, generator=generator) for name in ("values", "advantages", "returns")}
    columns["returns"] *= value
    obs = torch.randn(8, 3, generator=generator)
    return RolloutBatch(obs, torch.zeros(8, dtype=torch.int64), logprobs=torch.full((8,), -0.7), **columns)


def weights(algorithm: PPO) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in algorithm.policy.state_dict().items()}


def test_schedules() -> None:
    assert scheduled(2.0, "constant", 0.5) == 2.0
    assert scheduled(2.0, "linear", 0.25) == 1.5
    assert scheduled(2.0, "cosine", 0.5) == pytest.approx(1.0)
    assert scheduled(2.0, "linear", 7.0) == 0.0


@pytest.mark.parametrize("loaded", [False, True])
def test_a_scheduled_learning_rate_reaches_the_optimiser(loaded: bool) -> None:
    """At the end of a linear schedule nothing moves: also in an agent whose optimiser was restored."""
    algorithm = ppo(learning_rate_schedule="linear")
    algorithm.update(batch())
    if loaded:
        again = ppo(learning_rate_schedule="linear")
        again.load_state_dict(algorithm.state_dict())
        algorithm = again
    algorithm.set_progress(0.5)
    assert float(algorithm.optimizer.param_groups[0]["lr"]) == pytest.approx(1.5e-4)
    before = weights(algorithm)
    algorithm.update(batch())
    assert any(not torch.equal(before[name], value) for name, value in weights(algorithm).items())
    algorithm.set_progress(1.0)
    before = weights(algorithm)
    algorithm.update(batch())
    assert all(torch.equal(before[name], value) for name, value in weights(algorithm).items())


def test_a_restored_optimiser_makes_the_same_steps() -> None:
    first, second = ppo(), ppo()
    for _ in range(3):
        first.update(batch())
    second.load_state_dict(first.state_dict())
    for algorithm in (first, second):
        algorithm.update(batch())
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(first).items())
    fresh = ppo()
    fresh.load_state_dict(first.state_dict(), weights_only=True)
    assert all(torch.equal(value, weights(fresh)[name]) for name, value in weights(first).items())
    assert fresh.state_dict()["optimizers"]["adam"] == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_touches_neither_weights_nor_optimiser(bad: float) -> None:
    algorithm = ppo()
    algorithm.update(batch())
    before, moments = weights(algorithm), algorithm.state_dict()["optimizers"]["adam"]
    moments = {k: {n: v.clone() for n, v in state.items()} for k, state in moments.items()}
    result = algorithm.update(batch(bad))
    assert not result.metrics["grad_norm"].isfinite()
    assert all(torch.equal(before[name], value) for name, value in weights(algorithm).items())
    for index, state in algorithm.state_dict()["optimizers"]["adam"].items():
        assert all(torch.equal(value, moments[index][name]) for name, value in state.items())
    algorithm.update(batch())
    assert any(not torch.equal(before[name], value) for name, value in weights(algorithm).items())


def test_weights_depend_on_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first = weights(ppo())
    torch.manual_seed(5)
    assert all(torch.equal(value, weights(ppo())[name]) for name, value in first.items())
    torch.random.set_rng_state(state)
    ppo()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_bare_algorithm_says_what_it_cannot_do() -> None:
    with pytest.raises(AxiomError, match="no env or config"):
        ppo().learn()
    with pytest.raises(TypeError, match="needs a RolloutBatch"):
        ppo().update(Batch(torch.zeros(1, 3), torch.zeros(1)))
