"""Losses of action-value learning against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.functional.q_losses import (
    categorical_loss,
    entropy,
    munchausen_bonus,
    project_distribution,
    quantile_huber_loss,
    td_loss,
)

SUPPORT = torch.tensor([0.0, 1.0, 2.0])


def t(*values: float) -> Tensor:
    return torch.tensor(values)


def project(probs: list[float], reward: float, discount: float) -> list[float]:
    projected = project_distribution(torch.tensor([probs]), t(reward), t(discount), SUPPORT)
    return [round(p, 6) for p in projected[0].tolist()]


def test_td_loss_is_quadratic_near_and_linear_far() -> None:
    values, targets = t(1.0, 5.0), t(1.5, 2.0)  # errors 0.5 and 3
    loss, errors = td_loss(values, targets, t(1.0, 1.0))
    assert loss.item() == pytest.approx((0.125 + 2.5) / 2)
    np.testing.assert_allclose(errors.numpy(), [0.5, 3.0])
    loss, _ = td_loss(values, targets, t(1.0, 1.0), huber=False)
    assert loss.item() == pytest.approx((0.125 + 4.5) / 2)
    loss, _ = td_loss(values, targets, t(4.0, 0.5))
    assert loss.item() == pytest.approx((4.0 * 0.125 + 0.5 * 2.5) / 2)


@pytest.mark.parametrize(
    ("probs", "reward", "discount", "expected"),
    [
        ([0.2, 0.3, 0.5], 0.0, 1.0, [0.2, 0.3, 0.5]),  # lands on the atoms themselves: nothing is lost
        ([0.2, 0.3, 0.5], 0.25, 1.0, [0.15, 0.275, 0.575]),  # 0.25, 1.25, and 2.25 cut to 2
        ([1.0, 0.0, 0.0], -7.0, 1.0, [1.0, 0.0, 0.0]),  # below the support
        ([0.0, 0.0, 1.0], 9.0, 1.0, [0.0, 0.0, 1.0]),  # above it
        ([0.2, 0.3, 0.5], 0.75, 0.0, [0.25, 0.75, 0.0]),  # terminal: all of it at the reward
        ([0.2, 0.3, 0.5], 1.0, 0.0, [0.0, 1.0, 0.0]),  # … which is an atom
        ([0.0, 0.0, 1.0], 0.0, 0.5, [0.0, 1.0, 0.0]),
        ([0.0, 0.5, 0.5], 0.5, 0.5, [0.0, 0.75, 0.25]),  # 1 and 1.5
    ],
)
def test_projection(probs: list[float], reward: float, discount: float, expected: list[float]) -> None:
    assert project(probs, reward, discount) == pytest.approx(expected)


def test_projection_keeps_mass_and_mean_inside_the_support() -> None:
    generator = torch.Generator().manual_seed(0)
    support = torch.linspace(-10.0, 10.0, 51)
    probs = torch.rand(64, 51, generator=generator).softmax(1)
    rewards = torch.rand(64, generator=generator) * 2 - 1
    discount = torch.rand(64, generator=generator) * 0.9
    projected = project_distribution(probs, rewards, discount, support)
    torch.testing.assert_close(projected.sum(1), torch.ones(64))
    torch.testing.assert_close(
        projected @ support, rewards + discount * (probs @ support), atol=1e-5, rtol=1e-5
    )


def test_categorical_loss_is_cross_entropy_and_its_error_the_divergence() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    targets = torch.tensor([[0.0, 1.0, 0.0], [0.1, 0.2, 0.7]])
    loss, errors = categorical_loss(logits, targets, t(3.0, 1.0))
    own = -(0.1 * math.log(0.1) + 0.2 * math.log(0.2) + 0.7 * math.log(0.7))
    assert loss.item() == pytest.approx((3.0 * math.log(4.0) + own) / 2)
    np.testing.assert_allclose(errors.numpy(), [math.log(4.0), 0.0], atol=1e-6)


def test_quantile_huber_loss() -> None:
    quantiles = torch.tensor([[0.0, 2.0]])
    targets = torch.tensor([[0.5, 4.0]])
    # gaps of the first quantile (τ = 0.25): 0.5 and 4; of the second (τ = 0.75): -1.5 and 2
    first = 0.25 * (0.125 + 3.5) / 2
    second = (0.25 * 1.0 + 0.75 * 1.5) / 2
    loss, errors = quantile_huber_loss(quantiles, targets, t(0.25, 0.75), t(1.0))
    assert loss.item() == pytest.approx(first + second)
    assert errors.item() == pytest.approx(2.25 - 1.0)


def test_quantile_loss_with_fractions_of_their_own_and_weights() -> None:
    quantiles, targets = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [0.0]])
    taus = torch.tensor([[0.1], [0.8]])
    loss, _ = quantile_huber_loss(quantiles, targets, taus, t(2.0, 4.0))
    assert loss.item() == pytest.approx((2.0 * 0.1 * 0.125 + 4.0 * 0.2 * 0.5) / 2)


def test_quantile_regression_finds_the_quantiles() -> None:
    """With samples 0 … 9 the minimiser at τ = 0.25 and 0.75 lies where a quarter is below or above."""
    quantiles = torch.zeros(1, 2, requires_grad=True)
    samples = 10.0 * torch.arange(10.0)[None]  # far apart, so that the Huber part hardly matters
    optimizer = torch.optim.SGD([quantiles], lr=2.0)
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 20.0 if step < 300 else 0.5
        optimizer.zero_grad()
        quantile_huber_loss(quantiles, samples, t(0.25, 0.75), t(1.0))[0].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    low, high = quantiles[0].tolist()
    assert 19.0 <= low <= 21.0
    assert 69.0 <= high <= 71.0


def test_munchausen_bonus_and_entropy() -> None:
    log_probs = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    bonus = munchausen_bonus(log_probs, torch.tensor([0, 1]), alpha=0.9, tau=0.1, low=-0.2)
    np.testing.assert_allclose(bonus.numpy(), [0.9 * 0.1 * math.log(0.5), 0.9 * -0.2], rtol=1e-6)
    expected = [math.log(2.0), -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))]
    np.testing.assert_allclose(entropy(log_probs).numpy(), expected, rtol=1e-6)
    assert entropy(torch.tensor([[0.0, -1e9]])).item() == 0.0
