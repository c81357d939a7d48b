"""Rewards for the learner: against the naive computation, in the documented order, across a save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.runtime.rewards import RewardSettings, RewardTransform


def naive_returns(rewards: Any, dones: Any, gamma: float) -> list[float]:
    """Discounted returns so far, at every step of every env, one number at a time."""
    seen = []
    for env in range(rewards.shape[1]):
        total = 0.0
        for t in range(len(rewards)):
            total = total * gamma + float(rewards[t, env])
            seen.append(total)
            if dones[t, env]:
                total = 0.0
    return seen


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from([0.0, 0.9, 1.0]))
def test_the_running_variance_is_that_of_all_returns_seen(seed: int, blocks: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    transform = RewardTransform(RewardSettings(normalize=True, gamma=gamma), 3)
    rewards = rng.normal(2.0, 5.0, (8 * blocks, 3)).astype(np.float32)
    dones = rng.random((8 * blocks, 3)) < 0.3
    for i in range(blocks):
        part = slice(8 * i, 8 * i + 8)
        given_, seen = rewards[part].copy(), naive_returns(rewards[: part.stop], dones, gamma)
        transform.apply(given_, dones[part])
        assert transform.variance == pytest.approx(np.var(seen), rel=1e-9)
        assert transform.mean == pytest.approx(np.mean(seen), rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(given_, rewards[part] / np.sqrt(np.var(seen) + 1e-8), rtol=1e-5)
    assert transform.count == rewards.size


def test_scale_comes_first_then_normalisation_then_the_clip() -> None:
    rewards = np.array([[3.0], [-3.0], [0.1]], np.float32)
    dones = np.zeros((3, 1))
    scaled = rewards.copy()
    RewardTransform(RewardSettings(scale=0.5, clip=1.0), 1).apply(scaled, dones)
    assert scaled[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.05])
    both, normal = rewards.copy(), rewards.copy()
    RewardTransform(RewardSettings(scale=100.0, normalize=True, clip=1.2), 1).apply(both, dones)
    RewardTransform(RewardSettings(normalize=True), 1).apply(normal, dones)
    np.testing.assert_allclose(both, np.clip(normal, -1.2, 1.2), rtol=1e-6)
    assert np.abs(normal).max() > 1.2


def test_identity_is_recognised_and_state_survives() -> None:
    assert RewardTransform(RewardSettings(), 2).is_identity
    for other in (RewardSettings(scale=2.0), RewardSettings(clip=1.0), RewardSettings(normalize=True)):
        assert not RewardTransform(other, 2).is_identity
    rng = np.random.default_rng(0)
    first, again = (RewardTransform(RewardSettings(normalize=True), 2) for _ in range(2))
    first.apply(rng.normal(size=(5, 2)), np.zeros((5, 2)))
    again.load_state_dict(first.state_dict())
    block = rng.normal(size=(5, 2))
    mine, theirs = block.copy(), block.copy()
    first.apply(mine, np.zeros((5, 2)))
    again.apply(theirs, np.zeros((5, 2)))
    np.testing.assert_array_equal(mine, theirs)
    assert (first.mean, first.variance, first.count) == (again.mean, again.variance, again.count)


def test_abandoned_episodes_leave_their_moments_and_nothing_else() -> None:
    """As many running returns as there are envs now, whatever was saved."""
    before, after = RewardTransform(RewardSettings(normalize=True), 2), RewardTransform(RewardSettings(), 3)
    before.apply(np.full((5, 2), 7.0), np.zeros((5, 2)))
    after.load_state_dict(before.state_dict())
    assert len(after.returns) == 2
    assert after.returns.all()
    after.abandon()
    assert after.returns.tolist() == [0.0, 0.0, 0.0]
    assert after.moments == before.moments
    assert after.moments[2] == 10.0
