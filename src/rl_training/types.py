"""Shapes that travel between layers. They carry data and have no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    from torch import Tensor

# Quoted, so that this module costs no import of torch.
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Obs: TypeAlias = "Array | dict[str, Array]"
TensorObs: TypeAlias = "Tensor | dict[str, Tensor]"
PolicyState: TypeAlias = "dict[str, Tensor]"

ACTION_MASK = "action_mask"
"""The observation key under which an action mask travels, and the `info` key it is moved from."""
IS_SUCCESS = "is_success"
"""The `info` key under which an env says whether its goal is reached."""
ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"
"""The observation keys of goal-conditioned envs, as Gymnasium-Robotics has them."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What one environment shows and takes: all that is needed to size networks and buffers."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """What a policy answers to a batch of observations; `actions` are the policy's own, not yet the env's."""

    actions: Tensor
    logprobs: Tensor | None = None
    values: Tensor | None = None
    state: PolicyState | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy plays when it does not explore, the numbers that rests on, and the state after it."""

    actions: Tensor
    details: dict[str, Tensor]
    state: PolicyState = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode, in raw rewards."""

    env_index: int
    episode: int
    seed: int | None
    total_reward: float
    length: int
    terminated: bool
    success: bool | None = None
    """Whether the goal was reached at the last step; None: the env does not say."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step of all envs, the same whatever the backend.

    `obs` is what the policy sees next: the first observation of a new episode where one ended. The true
    last observations of the episodes that ended are the rows of `final_obs`, in the order of `ended`.
    `terminated` is for the learner: nothing that comes later counts. A lost life may set it in an env whose
    episode goes on: that env is not in `ended`, and its observation is followed by the next one of the game.
    `ended` and `final_obs` are made anew for every step. The other arrays belong to the vector env and are
    overwritten by its next call: copy what you keep.
    """

    obs: Obs
    rewards: Array
    terminated: Array
    truncated: Array
    ended: Array
    final_obs: Obs | None
    episodes: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorStep:
    """One step of all envs as tensors, one row an env: a `StepResult` that the host has not looked at.

    `final_obs` is what the step led to in every env: the true last observation where `ended`, and the same as
    `obs` elsewhere. `returns` and `lengths` are those of the episodes up to and with this step.
    """

    obs: TensorObs
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    ended: Tensor
    final_obs: TensorObs
    returns: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Experience to learn from, one row a sample."""

    obs: TensorObs
    actions: Tensor


@dataclass(frozen=True, slots=True)
class RolloutBatch(Batch):
    """A minibatch of on-policy experience. In sequence form every field is `[time, sequences, …]`."""

    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    episode_starts: Tensor | None = None
    state: PolicyState | None = None


@dataclass(frozen=True, slots=True)
class TransitionBatch(Batch):
    """A minibatch of off-policy experience. `discount` is γⁿ, and 0 where the episode terminated."""

    rewards: Tensor
    next_obs: TensorObs
    discount: Tensor
    weights: Tensor
    index: Tensor
    """Where each sample came from, for whoever drew it: to be handed back with its new priority."""


@dataclass(frozen=True, slots=True)
class SequenceBatch(TransitionBatch):
    """Pieces of episodes, `[time, sequences, …]`; `weights` and `index` are one a sequence."""

    mask: Tensor
    """True for steps that are there; rewards and discounts are 0 elsewhere."""
    burn_in: Tensor
    """True for steps that only prepare a recurrent state: nothing is to be learned from them."""
    episode_starts: Tensor
    """True where a recurrent state is to be reset: at the first step of each sequence that is there."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a large state that is written once and referenced for as long as `version` stays the same."""

    version: str
    tensors: Callable[[], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update reports: metrics as tensors that nobody has read yet, and new priorities if any."""

    metrics: Mapping[str, Tensor]
    priorities: Tensor | None = None


class Averaging(Protocol):
    """Takes means over learners that train together, each of which has to ask for the same ones."""

    members: int
    """How many learners there are."""

    def __call__(self, values: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome of running a policy for a fixed number of full episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...] = field(default=())
    successes: tuple[bool, ...] = field(default=())
    """Whether each episode reached its goal; empty where the env does not say."""


@dataclass(frozen=True, slots=True)
class GoalTask:
    """How an env judges goals. Each function takes rows of goals achieved and of goals desired."""

    reward: Callable[[Array, Array], Array]
    terminated: Callable[[Array, Array], Array] | None
    """Whether that ends the episode; None: goals do not decide it."""
