"""What is particular to A2C and TRPO: RMSprop's form, the trust region, steps that are given up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.base import Context
from rl_training.algorithms.rmsprop import RMSprop
from rl_training.algorithms.trpo import TRPO, TRPOConfig
from rl_training.functional.flat import flat
from rl_training.policies.config import NetworkConfig
from rl_training.types import RolloutBatch, Spec

CPU = torch.device("cpu")
ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1.0, 1.0, (2,)),
}


def test_rmsprop_by_hand() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = RMSprop([weight], torch.tensor(0.1), alpha=0.9, eps=0.01)
    weight.grad = torch.tensor([2.0])
    optimizer.step()
    # mean square: 0.9 · 1 + 0.1 · 4 = 1.3; step: 0.1 · 2 / √1.31
    assert weight.item() == pytest.approx(1 - 0.2 / 1.31**0.5)
    optimizer.step()
    # 0.9 · 1.3 + 0.4 = 1.57
    assert weight.item() == pytest.approx(1 - 0.2 / 1.31**0.5 - 0.2 / 1.58**0.5)


def test_rmsprop_leaves_everything_alone_where_the_gradient_is_not_finite() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = RMSprop([weight], torch.tensor(0.1), alpha=0.9, eps=0.01)
    weight.grad = torch.tensor([1.0, 1.0])
    optimizer.step()
    before = weight.tolist(), optimizer.state[weight]["square_avg"].tolist()
    optimizer.apply([torch.tensor([float("nan"), 5.0])], None, torch.tensor(1.0))
    assert (weight.tolist(), optimizer.state[weight]["square_avg"].tolist()) == before


def build(space: spaces.Space, network: NetworkConfig | None = None, **hyperparams: object) -> TRPO:
    spec = Spec(spaces.Box(-1.0, 1.0, (4,), np.float32), space)
    return TRPO.from_context(
        Context(spec, TRPOConfig(**hyperparams), network or NetworkConfig(), CPU, seed=1)  # type: ignore[arg-type]
    )


def rollout(trpo: TRPO, size: int = 256) -> RolloutBatch:
    """Actions of the policy itself, of which one half was better than expected."""
    generator = torch.Generator().manual_seed(2)
    obs = torch.rand(size, 4, generator=generator) * 2 - 1
    with torch.no_grad():
        output = trpo.policy.act(obs, generator=generator)
    score = output.actions.reshape(size, -1).float().sum(1) * obs[:, 0]
    return RolloutBatch(obs, output.actions, output.logprobs, output.values, score, score)


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_step_improves_the_objective_and_fills_the_trust_region(kind: str) -> None:
    trpo = build(ACTIONS[kind])
    batch = rollout(trpo)
    critic = [parameter.detach().clone() for parameter in trpo.critic]
    metrics = trpo.before_epochs(batch).metrics
    assert metrics["line_search_success"] == 1
    assert metrics["policy_loss"] < -0.01  # it was 0: advantages are centred and all ratios 1
    assert 0.003 < metrics["kl"] <= 0.01
    assert all(torch.equal(before, after) for before, after in zip(critic, trpo.critic, strict=True))


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_step_is_the_natural_gradient(kind: str) -> None:
    """Against the dense Fisher matrix, solved directly: the direction, and ½ xᵀFx = δ."""
    trpo = build(ACTIONS[kind], NetworkConfig(hidden=(2,)), cg_damping=0.1, cg_steps=60)
    batch = rollout(trpo)
    from rl_training.functional.trust_region import hessian_vector_product
    from rl_training.policies.distributions import frozen

    with torch.no_grad():
        old = frozen(trpo.policy.distribution(batch.obs))
    objective, kl, _ = trpo.surrogate(batch, batch.advantages, old)
    gradient = flat(torch.autograd.grad(objective, trpo.actor, retain_graph=True))
    product = hessian_vector_product(kl, trpo.actor)
    fisher = torch.stack([product(row) for row in torch.eye(len(gradient))]) + 0.1 * torch.eye(len(gradient))
    direction = torch.linalg.solve(fisher, gradient)
    step = trpo.natural_step(gradient, kl)
    assert torch.cosine_similarity(step, direction, dim=0) > 0.9999
    assert (0.5 * step @ fisher @ step).item() == pytest.approx(0.01, rel=1e-3)


def test_a_step_that_cannot_improve_is_given_up_and_changes_nothing() -> None:
    trpo = build(ACTIONS["Discrete"])
    batch = rollout(trpo)
    flat_advantages = replace(batch, advantages=torch.ones(256))  # nothing to prefer
    before = flat(trpo.actor).detach()
    metrics = trpo.before_epochs(flat_advantages).metrics
    assert metrics["line_search_success"] == 0
    assert metrics["kl"] == 0
    assert torch.equal(flat(trpo.actor), before)
    assert all(value.isfinite() for value in metrics.values())


def test_broken_advantages_leave_the_policy_alone_and_are_reported() -> None:
    trpo = build(ACTIONS["Discrete"])
    batch = rollout(trpo)
    batch.advantages[3] = float("nan")
    before = flat(trpo.actor).detach()
    metrics = trpo.before_epochs(batch).metrics
    assert torch.equal(flat(trpo.actor), before)
    assert metrics["policy_grad_norm"].isnan()  # where the trainer sees it


def test_the_critic_never_moves_the_policy() -> None:
    """By default nothing is shared; where it is, the shared part learns from the policy's step alone."""
    for shared in (None, True):
        trpo = build(ACTIONS["Discrete"], NetworkConfig(shared=shared))
        batch = rollout(trpo)
        actor, critic = flat(trpo.actor).detach(), flat(trpo.critic).detach()
        for _ in range(3):
            trpo.update(batch)
        assert torch.equal(flat(trpo.actor), actor)
        assert not torch.equal(flat(trpo.critic), critic)
