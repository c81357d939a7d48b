"""What a learner and its sampler exchange: weights, tensors of any kind, and messages.

Whatever is large lies in shared memory that both sides lay out alike; who may write is settled by messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from rl_training.data.storage import Allocate
from rl_training.envs.processes import SharedBlock
from rl_training.types import Array


class SharedTensors:
    """Tensors in shared memory: made on one side, found again on the other, in the same order."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._blocks: list[SharedBlock] = []

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A new tensor of zeros."""
        self._blocks.append(SharedBlock(self._context, (prod(shape) * dtype.itemsize,), "u1"))
        return _tensor(self._blocks[-1], shape, dtype)

    def found(self) -> Allocate:
        """Gives what `allocate` gave, in another process."""
        blocks = iter(self._blocks)
        return lambda shape, dtype: _tensor(next(blocks), shape, dtype)


def _tensor(block: SharedBlock, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(block.array()).view(dtype).reshape(shape)


class SharedWeights:
    """A policy's weights and statistics, copied here by the learner and from here by the sampler."""

    def __init__(self, policy: Any, allocate: Allocate) -> None:
        self._policy = policy
        self._own = list(policy.state_dict().values())
        self._shared = [allocate(tuple(own.shape), own.dtype) for own in self._own]

    @torch.no_grad()
    def publish(self) -> None:
        """Copy what the policy has now."""
        torch._foreach_copy_(self._shared, self._own)

    @torch.no_grad()
    def adopt(self) -> None:
        """Make the policy what was published last."""
        torch._foreach_copy_(self._own, self._shared)
        if self._policy.normalizer is not None:
            self._policy.normalizer.refresh()


@dataclass(frozen=True, slots=True)
class _Packed:
    """A tensor as an array: torch would send a file descriptor instead of the few numbers there are."""

    array: Array


def packed(tree: Any) -> Any:
    """A tree of plain data, arrays and tensors, ready for a message."""
    if isinstance(tree, Tensor):
        return _Packed(tree.detach().numpy(force=True))
    if isinstance(tree, Mapping):
        return {key: packed(value) for key, value in tree.items()}
    return [packed(value) for value in tree] if isinstance(tree, list) else tree


def unpacked(tree: Any) -> Any:
    """What `packed` was given."""
    if isinstance(tree, _Packed):
        return torch.from_numpy(tree.array)
    if isinstance(tree, dict):
        return {key: unpacked(value) for key, value in tree.items()}
    return [unpacked(value) for value in tree] if isinstance(tree, list) else tree
