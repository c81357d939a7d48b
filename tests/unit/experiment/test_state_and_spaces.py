"""State trees and spaces come back from a checkpoint bit for bit."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load, save

from rl_training.errors import CheckpointError
from rl_training.experiment import state as trees
from rl_training.experiment.spaces import spec_from_json, spec_to_json
from rl_training.types import Spec

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool)  # fmt: skip


def through_bytes(tree: Any) -> Any:
    half, tensors, _ = trees.split(tree)
    return trees.join(json.loads(json.dumps(half)), load(save(tensors)))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_same(a, b)
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        assert torch.equal(bits(first), bits(second))
    elif isinstance(first, np.ndarray):
        assert (first.dtype, first.shape) == (second.dtype, second.shape)
        assert first.tobytes() == second.tobytes()
    else:
        assert repr(first) == repr(second)


def test_every_kind_of_leaf_survives() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    tree = {
        "tensors": {str(dtype): (noise * 3).to(dtype) for dtype in DTYPES},
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64),
        "zero_d": [torch.tensor(3, dtype=d) for d in DTYPES if d != torch.bool],
        "empty": torch.zeros(0, 3),
        "view": noise[:, ::2],
        "transposed": noise.t(),
        "generator": generator.get_state(),
        "arrays": [
            np.arange(6).astype(dtype).reshape(2, 3)[:, ::-1]
            for dtype in (
                np.float64,
                np.float32,
                np.int64,
                np.uint8,
                np.uint16,
                np.uint32,
                np.uint64,
                np.bool_,
            )
        ],
        "scalar array": np.array(1.5),
        "no array": np.zeros((0,)),
        "numbers": [0.1, -0.0, 1e-320, float("inf"), 2**200, -(2**63), True, False, None, ""],
        "nested": {"a": {"b": [[], {}, [{"c": None}]]}},
        "text": "é\u2028\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    }
    assert_same(through_bytes(tree), tree)


def test_tensors_that_share_memory_are_stored_each_for_itself() -> None:
    base = torch.arange(4.0)
    again = through_bytes({"a": base, "b": base, "row": base[1:]})
    again["a"][0] = 9
    assert again["b"][0] == 0
    assert again["row"].tolist() == [1, 2, 3]


def test_a_saved_tree_does_not_change_with_its_source() -> None:
    weights = torch.ones(2)
    tensors = trees.split({"weights": weights}).tensors
    weights.zero_()
    assert tensors["weights"].tolist() == [1, 1]


def test_keys_with_a_slash_do_not_collide() -> None:
    tree = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "c": [np.array(3)], "c/0": np.array(4)}
    assert_same(through_bytes(tree), tree)


@pytest.mark.parametrize(
    "tree",
    [{1: 2}, {"a": {3}}, {"a": object()}, {"$tensor": "x"}, {"a": b"x"}, {"a": np.array(["x"])},
     {"a": np.array([None])}, {"a": 1j}],
)  # fmt: skip
def test_what_could_not_come_back_the_same_is_refused(tree: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be"):
        trees.split(tree)


def test_a_tensor_that_is_named_but_missing_is_an_error() -> None:
    for name in ("x", ["x"], None):
        with pytest.raises(CheckpointError, match="named but not stored"):
            trees.join({"$tensor": name}, {})


SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(np.array([-1.0, -2.5]), np.array([0.1, np.inf]), dtype=np.float64),
    spaces.Box(np.float32([-1.0, -2.5]), np.float32([0.1, 7.3]), dtype=np.float32),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    spaces.Box(0.0, 1.0, (), np.float32),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([3, 4], start=[1, -2]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "flag": spaces.Discrete(2)}),
    spaces.Dict(OrderedDict([("z", spaces.Discrete(2)), ("a", spaces.Box(0, 1, (2,)))])),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_json(space: Any) -> None:
    data = json.loads(json.dumps(spec_to_json(Spec(space, spaces.Discrete(2))), allow_nan=False))
    again = spec_from_json(data).observation_space
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data",
    [{}, {"type": "Tuple"}, {"type": "Box", "shape": [2]}, {"type": "Discrete", "n": "x", "start": 0}],
)
def test_stored_spaces_that_make_no_sense_are_refused(data: Any) -> None:
    with pytest.raises(CheckpointError, match="spaces cannot be read"):
        spec_from_json({"observation": data, "action": {"type": "Discrete", "n": 2, "start": 0}})
    with pytest.raises(CheckpointError, match="Text space cannot be stored"):
        spec_to_json(Spec(spaces.Text(3), spaces.Discrete(2)))
