"""State trees: nested dicts, lists, numbers, strings, tensors and arrays, split into JSON and tensors.

The JSON half keeps the shape of the tree, with `{"$tensor": name}` where a tensor was; the tensors go into
one safetensors file a component, those of a segment into a file of its own. Nothing else can be stored, so
nothing else can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.types import Segment

TENSOR, ARRAY = "$tensor", "$array"


class Parts(NamedTuple):
    """A tree taken apart: JSON, tensors by name, and segments by path, each with a file of its own."""

    half: Any
    tensors: dict[str, Tensor]
    segments: dict[str, Segment]


def split(tree: Any) -> Parts:
    """Take a tree apart."""
    parts = Parts(None, {}, {})
    return parts._replace(half=_split(tree, "", parts))


def segment_tensors(path: str, segment: Segment) -> dict[str, Tensor]:
    """The tensors of a segment under the names that the JSON half knows them by."""
    return {_child(path, key): tensor.cpu().contiguous() for key, tensor in segment.tensors().items()}


def join(half: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree again."""
    if isinstance(half, dict):
        for marker in (TENSOR, ARRAY):
            if set(half) == {marker}:
                name = half[marker]
                if not isinstance(name, str) or name not in tensors:
                    raise CheckpointError(f"tensor {name!r} is named but not stored")
                return tensors[name] if marker == TENSOR else tensors[name].numpy()
        return {key: join(value, tensors) for key, value in half.items()}
    if isinstance(half, list):
        return [join(value, tensors) for value in half]
    return half


def _split(tree: Any, name: str, parts: Parts) -> Any:
    tensors = parts.tensors
    if isinstance(tree, Segment):
        parts.segments[name] = tree
        return {key: {TENSOR: _child(name, key)} for key in tree.tensors()}
    if isinstance(tree, Tensor):
        # A copy of its own: safetensors refuses shared memory, and a checkpoint must not change under us.
        return {TENSOR: _store(tree.detach().to("cpu", copy=True).contiguous(), name, tensors)}
    if isinstance(tree, np.ndarray):
        if tree.dtype.kind not in "biuf":
            raise CheckpointError(f"{name}: an array of {tree.dtype} cannot be stored in a checkpoint")
        return {ARRAY: _store(torch.from_numpy(np.array(tree, order="C")), name, tensors)}
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str) or key in (TENSOR, ARRAY):
                raise CheckpointError(f"{name or 'state'}: {key!r} cannot be a key in a checkpoint")
        return {key: _split(value, _child(name, key), parts) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_split(value, _child(name, index), parts) for index, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise CheckpointError(f"{name or 'state'}: {type(tree).__name__} cannot be stored in a checkpoint")


def _store(tensor: Tensor, name: str, tensors: dict[str, Tensor]) -> str:
    """Keep a tensor under its path, or where a key with a slash has taken that, under one like it."""
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _child(name: str, key: object) -> str:
    return f"{name}/{key}" if name else str(key)
