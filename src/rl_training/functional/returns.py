"""Returns and advantages of `[time, env]` experience, for NumPy arrays and torch tensors alike.

Shared notation, for transition `t` of an env's column:

- `rewards[t]` was paid for it and `values[t]` is V of the observation it started from;
- `next_values[t]` is V of the true next observation: where a time limit cut the episode, of the final one;
- `terminated[t]`: it ended in a terminal state, worth nothing; nothing is bootstrapped from it;
- `dones[t]`: it ended its episode, by termination or truncation; no trace crosses to `t + 1`.

Flags are booleans or 0/1 numbers. Results are targets: they carry no gradient.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

ArrayT = TypeVar("ArrayT", np.ndarray[Any, np.dtype[Any]], Tensor)


class VTrace(NamedTuple, Generic[ArrayT]):
    """What V-trace yields: targets for the critic and advantages for the policy gradient."""

    targets: ArrayT
    advantages: ArrayT


def gae(
    rewards: ArrayT,
    values: ArrayT,
    next_values: ArrayT,
    terminated: ArrayT,
    dones: ArrayT,
    gamma: float,
    gae_lambda: float,
) -> ArrayT:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16); add `values` for λ-returns."""
    deltas = rewards + gamma * next_values * (terminated == 0) - values
    return _discounted_sums(deltas, dones == 0, gamma * gae_lambda)


def returns_to_go(rewards: ArrayT, dones: ArrayT, gamma: float) -> ArrayT:
    """Discounted sum of the rewards from each step to the end of its episode or of the data."""
    return _discounted_sums(rewards, dones == 0, gamma)


def n_step_returns(
    rewards: ArrayT, next_values: ArrayT, terminated: ArrayT, dones: ArrayT, gamma: float, n: int
) -> ArrayT:
    """At most `n` rewards and the value after them; fewer where the episode or the data ends sooner."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    one_step = _detached(rewards + gamma * next_values * (terminated == 0))
    ended = (dones != 0)[:-1]
    returns: ArrayT = one_step
    for _ in range(n - 1):
        longer = _copy(one_step)
        longer[:-1] = (rewards[:-1] + gamma * returns[1:]) * ~ended + one_step[:-1] * ended
        returns = longer
    return returns


def vtrace(
    log_ratios: ArrayT,
    rewards: ArrayT,
    values: ArrayT,
    next_values: ArrayT,
    terminated: ArrayT,
    dones: ArrayT,
    gamma: float,
    *,
    trace_lambda: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace[ArrayT]:
    """V-trace targets and advantages (Espeholt et al. 2018, eq. 1) of off-policy experience.

    `log_ratios` are log π(a|x) − log μ(a|x), π the policy that learns and μ the one that acted.
    """
    ratios = np.exp(log_ratios) if isinstance(log_ratios, np.ndarray) else log_ratios.exp()
    rho = ratios.clip(max=clip_rho)
    alive, ongoing = terminated == 0, dones == 0
    deltas = rho * (rewards + gamma * next_values * alive - values)
    traces = ratios.clip(max=clip_c) * ongoing
    targets = _discounted_sums(deltas, traces, gamma * trace_lambda) + values

    # The policy gradient bootstraps from the next target; where the trace is cut, from the value itself.
    next_targets = _copy(next_values)
    next_targets[:-1] = targets[1:] * ongoing[:-1] + next_values[:-1] * ~ongoing[:-1]
    return VTrace(_detached(targets), _detached(rho * (rewards + gamma * next_targets * alive - values)))


def explained_variance(predictions: ArrayT, targets: ArrayT) -> ArrayT:
    """1 − Var(targets − predictions) / Var(targets), a 0-d array: 1 is perfect, 0 no better than a constant.

    Of constant targets there is nothing to explain: the result is 0, whatever the predictions.
    """
    varies = targets.max() != targets.min()
    explained = 1 - _variance(targets - predictions) / (_variance(targets) + ~varies)
    return _detached(explained * varies)


def _discounted_sums(terms: ArrayT, traces: ArrayT, discount: float) -> ArrayT:
    """y[t] = terms[t] + discount · traces[t] · y[t + 1], with nothing after the last step."""
    sums = _copy(terms)
    # Lists of row views halve the cost of indexing; mixed precision would double that of the arithmetic.
    if isinstance(sums, np.ndarray):
        rows, factors = list(sums), list(traces.astype(sums.dtype) * discount)
        for t in range(len(rows) - 2, -1, -1):
            rows[t] += factors[t] * rows[t + 1]
    else:
        rows, factors = list(sums), list(traces.detach().to(sums.dtype) * discount)
        for t in range(len(rows) - 2, -1, -1):
            rows[t].addcmul_(factors[t], rows[t + 1])
    return sums


def _variance(x: ArrayT) -> ArrayT:
    deviations = x - x.mean()
    squares: ArrayT = (deviations * deviations).mean()
    return squares


def _copy(x: ArrayT) -> ArrayT:
    return x.copy() if isinstance(x, np.ndarray) else x.detach().clone()


def _detached(x: ArrayT) -> ArrayT:
    return x.detach() if isinstance(x, Tensor) else x
