"""Hands out a rollout in parts: every field shuffled the same way, as minibatches side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from rl_training.errors import ConfigError
from rl_training.types import RolloutBatch

if TYPE_CHECKING:
    from rl_training.types import PolicyState, TensorObs

_SHORT = 16
"""Numbers in a row that a GPU gathers faster one by one."""
FIELDS = ("actions", "logprobs", "values", "advantages", "returns")


class Rollout(Protocol):
    """What there is to split: tensors `[num_steps, num_envs, …]`."""

    obs: TensorObs
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def split(
    rollout: Rollout,
    parts: int,
    select: Callable[[Tensor], Tensor],
    *,
    dim: int,
    episode_starts: Tensor | None = None,
    states: PolicyState | None = None,
) -> Iterator[RolloutBatch]:
    """Shuffle every field by `select` and hand out its `parts` along `dim`; `states` are shuffled already."""

    def shuffled(x: Tensor) -> tuple[Tensor, ...]:
        return select(x).tensor_split(parts, dim)

    fields = {name: shuffled(getattr(rollout, name)) for name in FIELDS}
    obs = map_obs(shuffled, rollout.obs)
    starts = None if episode_starts is None else shuffled(episode_starts)
    state = None if states is None else {k: v.tensor_split(parts) for k, v in states.items()}
    for i in range(parts):
        yield RolloutBatch(
            obs={k: v[i] for k, v in obs.items()} if isinstance(obs, dict) else obs[i],
            **{name: field[i] for name, field in fields.items()},
            episode_starts=None if starts is None else starts[i],
            state=None if state is None else {k: v[i] for k, v in state.items()},
        )


def require_parts(parts: int, available: int, what: str) -> None:
    """Refuse more minibatches than there is to share out."""
    if not 1 <= parts <= available:
        raise ConfigError(
            f"num_minibatches is {parts}, but the rollout has {available} {what}: "
            f"choose a number from 1 to {available}"
        )


def rows_of(rows: Tensor, order: Tensor) -> Tensor:
    """`rows[order]`. On a GPU short rows are taken number by number: whole, they take ten times as long.

    The indices are written out for that: seeing one index repeated, torch would take whole rows after all.
    """
    if rows.is_cuda and rows.ndim == 2 and rows.shape[1] <= _SHORT:
        return rows.gather(0, order[:, None].repeat(1, rows.shape[1]))
    return rows.index_select(0, order)


def map_obs(function: Callable[[Tensor], Any], obs: TensorObs) -> Any:
    """The same to every entry of a Dict observation, or to the one tensor there is."""
    return {k: function(v) for k, v in obs.items()} if isinstance(obs, dict) else function(obs)
