"""State trees: nested dicts, lists, numbers, strings, tensors and arrays, split into JSON and tensors.

The JSON half keeps the shape of the tree, with `{"$tensor": name}` where a tensor was; the tensors go into
one safetensors file a component. Nothing else can be stored, so nothing else can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError

TENSOR, ARRAY = "$tensor", "$array"


def split(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """The JSON half of a tree and its tensors by name."""
    tensors: dict[str, Tensor] = {}
    return _split(tree, "", tensors), tensors


def join(half: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree again."""
    if isinstance(half, dict):
        for marker in (TENSOR, ARRAY):
            if set(half) == {marker}:
                name = half[marker]
                if name not in tensors:
                    raise CheckpointError(f"tensor {name!r} is named but not stored")
                return tensors[name] if marker == TENSOR else tensors[name].numpy()
        return {key: join(value, tensors) for key, value in half.items()}
    if isinstance(half, list):
        return [join(value, tensors) for value in half]
    return half


def _split(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        # A copy of its own: safetensors refuses shared memory, and a checkpoint must not change under us.
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: name}
    if isinstance(tree, np.ndarray):
        tensors[name] = torch.from_numpy(np.array(tree, order="C"))
        return {ARRAY: name}
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, Mapping):
        return {str(key): _split(value, _child(name, key), tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_split(value, _child(name, index), tensors) for index, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"{name or 'state'}: {type(tree).__name__} cannot be stored in a checkpoint")


def _child(name: str, key: object) -> str:
    return f"{name}/{key}" if name else str(key)
