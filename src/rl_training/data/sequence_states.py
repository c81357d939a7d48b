"""The recurrent states with which the sequences of a rollout begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rl_training.types import PolicyState


class SequenceStates:
    """States `[num_envs, …]`: one before the first step of a rollout, one before every further sequence.

    There are none where the policy has no memory.
    """

    def __init__(self) -> None:
        self._states: list[PolicyState] = []

    def begin(self, state: PolicyState | None) -> None:
        """A new rollout, from this state if the policy has one."""
        self._states = [] if state is None else [_copy(state)]

    def add(self, state: PolicyState) -> None:
        """The state before the first step of the next sequence."""
        self._states.append(_copy(state))

    def in_order(self, order: Tensor) -> PolicyState | None:
        """The states of all sequences, counted sequence by sequence and env by env, in another order."""
        if not self._states:
            return None
        return {key: torch.cat([state[key] for state in self._states])[order] for key in self._states[0]}

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor by the number of its sequence and its name; they are not copies."""
        return {
            f"{_prefix(number)}{key}": value
            for number, state in enumerate(self._states)
            for key, value in state.items()
        }

    def load_state_dict(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Find what `state_dict` gave among other tensors."""
        self._states = []
        while found := _named(saved, _prefix(len(self._states))):
            self._states.append({key: value.to(device, copy=True) for key, value in found.items()})


def _prefix(number: int) -> str:
    return f"state_{number}." if number else "initial_state."


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _copy(state: PolicyState) -> PolicyState:
    with torch.inference_mode(False):  # a copy that training may use, though collection made the original
        return {key: value.detach().clone() for key, value in state.items()}
