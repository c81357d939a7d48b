"""Returns against numbers worked out by hand and against loops that follow the definitions word by word."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.functional.returns import (
    explained_variance,
    gae,
    n_step_returns,
    returns_to_go,
    vtrace,
)


class Data(NamedTuple):
    """Experience of `[T, N]`, in the order in which the functions take it."""

    rewards: Any
    values: Any
    next_values: Any
    terminated: Any
    dones: Any


def column(*numbers: float) -> np.ndarray:
    """One env's column `[T, 1]`, in float32."""
    return np.array(numbers, np.float32)[:, None]


def as_torch(data: Data) -> Data:
    return Data(*(torch.from_numpy(x) for x in data))


def same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


# Three steps, the second of which ends an episode. next_values[1] is the value of its final observation,
# which counts only if the episode was truncated.
REWARDS, VALUES, NEXT = column(1, 2, 3), column(0.5, 1, 1.5), column(1, 4, 2)
NO, SECOND = column(0, 0, 0), column(0, 1, 0)
TERMINATED = Data(REWARDS, VALUES, NEXT, SECOND, SECOND)
TRUNCATED = Data(REWARDS, VALUES, NEXT, NO, SECOND)
UNBROKEN = Data(REWARDS, VALUES, NEXT, NO, NO)


@st.composite
def experiences(draw: st.DrawFn) -> Data:
    """Random experience, terminations and truncations, in float64 so that oracles agree closely."""
    steps, envs = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rewards, values, next_values = rng.normal(size=(3, steps, envs))
    terminated, truncated = rng.random((2, steps, envs)) < draw(st.sampled_from([0.0, 0.2, 0.5]))
    return Data(rewards, values, next_values, terminated, terminated | truncated)


# --- GAE


@pytest.mark.parametrize("convert", [Data._make, as_torch], ids=["numpy", "torch"])
class TestGaeByHand:
    """gamma 0.5, lambda 0.5, so that a trace shrinks by 0.25 a step."""

    def test_termination_cuts_bootstrap_and_trace(self, convert: Any) -> None:
        # delta = [1 + 0.5*1 - 0.5, 2 - 1, 3 + 0.5*2 - 1.5] = [1, 1, 2.5]
        # A2 = 2.5; A1 = 1 (cut); A0 = 1 + 0.25*1 = 1.25
        same(gae(*convert(TERMINATED), 0.5, 0.5), column(1.25, 1, 2.5))

    def test_truncation_bootstraps_but_cuts_the_trace(self, convert: Any) -> None:
        # delta1 = 2 + 0.5*4 - 1 = 3; A2 = 2.5; A1 = 3 (cut); A0 = 1 + 0.25*3 = 1.75
        same(gae(*convert(TRUNCATED), 0.5, 0.5), column(1.75, 3, 2.5))

    def test_nothing_is_cut_within_an_episode(self, convert: Any) -> None:
        # A2 = 2.5; A1 = 3 + 0.25*2.5 = 3.625; A0 = 1 + 0.25*3.625 = 1.90625
        same(gae(*convert(UNBROKEN), 0.5, 0.5), column(1.90625, 3.625, 2.5))

    def test_inputs_are_left_alone(self, convert: Any) -> None:
        data = convert(Data(*(x.copy() for x in TERMINATED)))
        gae(*data, 0.5, 0.5)
        for after, before in zip(data, TERMINATED, strict=True):
            same(after, before)


def test_gae_keeps_single_precision_and_accepts_boolean_flags() -> None:
    flags = TERMINATED._replace(terminated=SECOND != 0, dones=SECOND != 0)
    for data in (flags, as_torch(flags)):
        advantages = gae(*data, 0.5, 0.5)
        assert str(advantages.dtype).endswith("float32")
        same(advantages, column(1.25, 1, 2.5))


def test_gae_carries_no_gradient() -> None:
    data = as_torch(UNBROKEN)
    advantages = gae(data.rewards, data.values.requires_grad_(), *data[2:], 0.5, 0.5)
    assert not advantages.requires_grad


def naive_gae(data: Data, gamma: float, lam: float) -> np.ndarray:
    """Sum of (gamma*lambda)^k delta_{t+k}, forward from every step to the end of its episode."""
    steps, envs = data.rewards.shape
    out = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if data.terminated[k, env] else gamma * data.next_values[k, env]
                out[t, env] += weight * (data.rewards[k, env] + bootstrap - data.values[k, env])
                if data.dones[k, env]:
                    break
                weight *= gamma * lam
    return out


@given(experiences(), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition(data: Data, gamma: float, lam: float) -> None:
    expected = naive_gae(data, gamma, lam)
    same(gae(*data, gamma, lam), expected, 1e-9)
    same(gae(*as_torch(data), gamma, lam), expected, 1e-9)


@given(experiences(), st.floats(0, 1))
def test_gae_with_lambda_one_is_monte_carlo(data: Data, gamma: float) -> None:
    """With every episode ended by termination, A + V is the discounted sum of rewards."""
    dones = data.dones.copy()
    dones[-1] = True
    next_values = np.roll(data.values, -1, axis=0)
    advantages = gae(data.rewards, data.values, next_values, dones, dones, gamma, 1.0)
    same(advantages + data.values, returns_to_go(data.rewards, dones, gamma), 1e-9)


@given(experiences(), st.floats(0, 1))
def test_gae_with_lambda_zero_is_the_td_error(data: Data, gamma: float) -> None:
    errors = n_step_returns(data.rewards, *data[2:], gamma, 1) - data.values
    same(gae(*data, gamma, 0.0), errors, 1e-9)


# --- returns to go


@pytest.mark.parametrize("convert", [Data._make, as_torch], ids=["numpy", "torch"])
def test_returns_to_go_by_hand(convert: Any) -> None:
    data = convert(TERMINATED)
    # gamma 0.5: R2 = 3; R1 = 2 (its episode ends); R0 = 1 + 0.5*2 = 2
    same(returns_to_go(data.rewards, data.dones, 0.5), column(2, 2, 3))
    # undivided: R1 = 2 + 0.5*3 = 3.5; R0 = 1 + 0.5*3.5 = 2.75
    same(returns_to_go(data.rewards, data.dones * 0, 0.5), column(2.75, 3.5, 3))
    same(data.rewards, REWARDS)


# --- n-step


@pytest.mark.parametrize("convert", [Data._make, as_torch], ids=["numpy", "torch"])
def test_n_step_returns_by_hand(convert: Any) -> None:
    def returns(data: Data, n: int) -> Any:
        rewards, _, next_values, terminated, dones = convert(data)
        return n_step_returns(rewards, next_values, terminated, dones, 0.5, n)

    # One step: r + 0.5*V' = [1 + 0.5, 2 + 2, 3 + 1]
    same(returns(UNBROKEN, 1), column(1.5, 4, 4))
    # Two: G0 = 1 + 0.5*2 + 0.25*4 = 3; G1 = 2 + 0.5*3 + 0.25*2 = 4; G2 has one step: 4
    same(returns(UNBROKEN, 2), column(3, 4, 4))
    # Three: G0 = 1 + 1 + 0.25*3 + 0.125*2 = 3
    same(returns(UNBROKEN, 3), column(3, 4, 4))
    # Terminated after the second step: G0 = 1 + 0.5*2 = 2; G1 = 2
    same(returns(TERMINATED, 3), column(2, 2, 4))
    # Truncated there: G0 = 1 + 1 + 0.25*4 = 3; G1 = 2 + 0.5*4 = 4
    same(returns(TRUNCATED, 3), column(3, 4, 4))


def test_n_step_returns_refuses_less_than_one_step() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        n_step_returns(REWARDS, NEXT, NO, NO, 0.5, 0)


def naive_n_step(data: Data, gamma: float, n: int) -> np.ndarray:
    steps, envs = data.rewards.shape
    out = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(steps):
            last = t
            while last < min(t + n, steps) - 1 and not data.dones[last, env]:
                last += 1
            out[t, env] = sum(gamma ** (k - t) * data.rewards[k, env] for k in range(t, last + 1))
            if not data.terminated[last, env]:
                out[t, env] += gamma ** (last + 1 - t) * data.next_values[last, env]
    return out


@given(experiences(), st.floats(0, 1), st.integers(1, 15))
def test_n_step_returns_equal_their_definition(data: Data, gamma: float, n: int) -> None:
    expected = naive_n_step(data, gamma, n)
    same(n_step_returns(data.rewards, *data[2:], gamma, n), expected, 1e-9)
    tensors = as_torch(data)
    same(n_step_returns(tensors.rewards, *tensors[2:], gamma, n), expected, 1e-9)


# --- V-trace


@pytest.mark.parametrize("convert", [Data._make, as_torch], ids=["numpy", "torch"])
def test_vtrace_by_hand(convert: Any) -> None:
    # Ratios pi/mu = [2, 0.5, 1]; rho clipped at 1, c at 0.8: rho = [1, 0.5, 1], c = [0.8, 0.5, 0.8].
    log_ratios = np.log(column(2, 0.5, 1))
    data = convert(UNBROKEN)
    if isinstance(data.rewards, torch.Tensor):
        log_ratios = torch.from_numpy(log_ratios)
    targets, advantages = vtrace(log_ratios, *data, 0.5, clip_rho=1.0, clip_c=0.8)
    # rho*delta = [1*1, 0.5*3, 1*2.5] = [1, 1.5, 2.5]; with gamma = 0.5:
    # v2 - V2 = 2.5; v1 - V1 = 1.5 + 0.5*0.5*2.5 = 2.125; v0 - V0 = 1 + 0.5*0.8*2.125 = 1.85
    same(targets, column(0.5 + 1.85, 1 + 2.125, 1.5 + 2.5))
    # rho*(r + 0.5*v' - V): v' = [v1, v2, NEXT2] = [3.125, 4, 2]
    # [1 + 1.5625 - 0.5, 0.5*(2 + 2 - 1), 3 + 1 - 1.5] = [2.0625, 1.5, 2.5]
    same(advantages, column(2.0625, 1.5, 2.5))


def test_vtrace_is_cut_where_an_episode_ends() -> None:
    log_ratios = np.log(column(2, 0.5, 1))
    # Truncated: rho*delta = [1, 1.5, 2.5]; v1 - V1 = 1.5; v0 - V0 = 1 + 0.5*1.5 = 1.75
    # v' = [v1, V(final), NEXT2] = [2.5, 4, 2]: [1 + 1.25 - 0.5, 0.5*(2 + 2 - 1), 2.5]
    targets, advantages = vtrace(log_ratios, *TRUNCATED, 0.5)
    same(targets, column(2.25, 2.5, 4))
    same(advantages, column(1.75, 1.5, 2.5))
    # Terminated: rho*delta = [1, 0.5*1, 2.5]; v1 - V1 = 0.5; v0 - V0 = 1.25; v' = [1.5, 0, 2]
    targets, advantages = vtrace(log_ratios, *TERMINATED, 0.5)
    same(targets, column(1.75, 1.5, 4))
    same(advantages, column(1 + 0.75 - 0.5, 0.5 * (2 - 1), 2.5))


@given(experiences(), st.floats(0, 1))
def test_on_policy_vtrace_targets_are_the_longest_n_step_returns(data: Data, gamma: float) -> None:
    """With V consistent between steps, TD(1): everything that was paid, then the value where it stops."""
    consistent = data.next_values.copy()
    consistent[:-1] = np.where(data.dones[:-1], consistent[:-1], data.values[1:])
    data = data._replace(next_values=consistent)
    targets, advantages = vtrace(np.zeros_like(data.rewards), *data, gamma)
    longest = n_step_returns(data.rewards, *data[2:], gamma, len(data.rewards))
    same(targets, longest, 1e-9)
    same(advantages, longest - data.values, 1e-9)


@given(experiences(), st.floats(0, 1), st.floats(0, 1), st.floats(0.3, 2), st.floats(0.3, 2))
def test_vtrace_equals_its_definition(
    data: Data, gamma: float, lam: float, clip_rho: float, clip_c: float
) -> None:
    log_ratios = data.values * 0.7 - data.rewards * 0.3  # as good as random
    expected = np.zeros_like(data.rewards)
    for t, env in np.ndindex(*data.rewards.shape):
        weight = 1.0
        for k in range(t, len(data.rewards)):
            ratio = math.exp(log_ratios[k, env])
            bootstrap = 0.0 if data.terminated[k, env] else gamma * data.next_values[k, env]
            delta = data.rewards[k, env] + bootstrap - data.values[k, env]
            expected[t, env] += weight * min(clip_rho, ratio) * delta
            if data.dones[k, env]:
                break
            weight *= gamma * lam * min(clip_c, ratio)
    clips = {"trace_lambda": lam, "clip_rho": clip_rho, "clip_c": clip_c}
    same(vtrace(log_ratios, *data, gamma, **clips).targets, data.values + expected, 1e-9)


# --- explained variance


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_explained_variance_by_hand(convert: Any) -> None:
    targets = convert(np.array([1, 2, 3, 4], np.float32))
    assert float(explained_variance(targets, targets)) == 1.0
    assert float(explained_variance(targets + 7, targets)) == pytest.approx(1.0)  # a constant offset is free
    assert float(explained_variance(targets * 0 + 5, targets)) == pytest.approx(0.0)
    # Residuals [0, 1, 0, 1] have variance 0.25; the targets 1.25: 1 - 0.25/1.25 = 0.8
    off = convert(np.array([1, 1, 3, 3], np.float32))
    assert float(explained_variance(off, targets)) == pytest.approx(0.8)
    # Predictions of the wrong sign: residuals 2*targets have four times the variance: 1 - 4 = -3
    assert float(explained_variance(-targets, targets)) == pytest.approx(-3.0)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_explained_variance_of_constant_targets_is_zero(convert: Any) -> None:
    targets = convert(np.full(1000, 0.1, np.float32))  # whose float32 mean is not exactly 0.1
    noise = convert(np.linspace(-1, 1, 1000, dtype=np.float32))
    assert float(explained_variance(targets, targets)) == 0.0
    assert float(explained_variance(noise, targets)) == 0.0
