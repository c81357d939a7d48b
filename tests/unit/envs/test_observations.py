"""Observations as users hand them in: what is taken, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs.observations import batched
from rl_training.envs.spaces import Space
from rl_training.errors import EnvError

IMAGE = spaces.Box(0, 255, (2, 2, 1), np.uint8)
FLOATS = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.filterwarnings("error")  # NumPy's own, about casts
@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (IMAGE, np.full((2, 2, 1), 0.5), r"integers of Box\(0, 255, .*, uint8\), got 0.5 among float64"),
        (IMAGE, np.full((2, 2, 1), 256), "got 256 among int64"),
        (IMAGE, np.full((3, 2, 2, 1), -1), "got -1 among int64"),
        (IMAGE, np.full((2, 2, 1), np.nan), "got nan among float64"),
        (spaces.Box(0, 9, (2,), np.int64), [3, 10], "got 10 among"),
        (spaces.Discrete(5), 9, r"observation: expected integers of Discrete\(5\), got 9"),
        (spaces.Discrete(5), -1, "got -1"),
        (spaces.Discrete(5), 2.7, "got 2.7"),
        (spaces.Discrete(5), "2", r"expected shape \(\) .*, got str"),
        (spaces.Discrete(5, start=3), [3, 8], "got 8"),
        (spaces.MultiDiscrete([2, 9]), [2, 0], "got 2"),
        (spaces.MultiBinary(2), [0, 2], "got 2"),
        (FLOATS, [0.0, np.nan], r"finite numbers of Box\(-1.0, 1.0, .*, float32\), got nan among"),
        (FLOATS, [[0.0, 0.0], [0.0, -np.inf]], "got -inf"),
        (FLOATS, [0.0, 1e300], "got 1e[+]300"),
        (FLOATS, [[0.0, 0.0], [0.0]], "expected shape .*, got list"),
        (spaces.Dict({"a": FLOATS, "b": spaces.Discrete(3)}), {"a": [0, 0], "b": 3}, "observation 'b': .* 3"),
    ],
)  # fmt: skip
def test_what_a_space_does_not_have_is_refused(space: Space, obs: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        batched(space, obs)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (IMAGE, np.full((2, 2, 1), 255.0)),
        (spaces.Discrete(5), 4.0),
        (spaces.Discrete(5, start=3), 7),
        (spaces.MultiDiscrete([2, 9]), [1, 8]),
        (spaces.MultiDiscrete([2, 9], start=[5, -3]), [6, -3]),
        (spaces.MultiBinary(2), [True, False]),
        (FLOATS, [5, -5]),  # envs are not strict about their bounds
    ],
)
def test_other_types_that_hold_the_same_numbers_are_taken(space: Space, obs: Any) -> None:
    row, is_single = batched(space, obs)
    assert is_single
    assert isinstance(row, np.ndarray)
    assert row.dtype == space.dtype
    np.testing.assert_array_equal(row, [obs])
    rows, is_single = batched(space, np.array([obs, obs]))
    assert not is_single
    np.testing.assert_array_equal(rows, [obs, obs])
