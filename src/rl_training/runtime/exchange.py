"""What a learner and its sampler exchange: weights, tensors of any kind, and messages.

Whatever is large lies in shared memory that both sides lay out alike; who may write is settled by messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from rl_training.data.storage import Allocate
from rl_training.envs.processes import ALIGNMENT, SharedBlock
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
    """A policy's weights and statistics, copied here by the learner and from here by the sampler.

    All of them lie in one piece, which a GPU puts together by itself and sends as a whole.
    """

    def __init__(self, policy: Any, allocate: Allocate) -> None:
        self._policy = policy
        self._own: list[Tensor] = list(policy.state_dict().values())
        size = sum(map(_room, self._own))
        device = self._own[0].device
        self._shared = allocate((size,), torch.uint8)
        self._staged = self._shared if device.type == "cpu" else self._shared.to(device)
        self._parts = _laid_out(self._staged, self._own)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy what the policy has now."""
        torch._foreach_copy_(self._parts, self._own)
        if self._staged is not self._shared:
            self._shared.copy_(self._staged)

    @torch.no_grad()
    def adopt(self) -> None:
        """Make the policy, which is on the CPU, what was published last."""
        torch._foreach_copy_(self._own, self._parts)
        if self._policy.normalizer is not None:
            self._policy.normalizer.refresh()


def _room(tensor: Tensor) -> int:
    """Bytes that a tensor takes among others, each of which begins where torch would have it begin."""
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _laid_out(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the same kinds, one after the other in one piece of memory."""
    parts = torch.split(memory, [_room(tensor) for tensor in like])
    return [part[: t.nbytes].view(t.dtype).view(t.shape) for part, t in zip(parts, like, strict=True)]


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
