"""Spaces as JSON, so that a checkpoint can say what it was trained on without any code of the env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.errors import CheckpointError
from rl_training.types import Spec


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """Both spaces of an env."""
    return {"observation": _to_json(spec.observation_space), "action": _to_json(spec.action_space)}


def spec_from_json(data: dict[str, Any]) -> Spec:
    """The inverse of `spec_to_json`."""
    try:
        return Spec(_from_json(data["observation"]), _from_json(data["action"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the stored spaces cannot be read: {error!r}") from None


def _to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            counts = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), **counts}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            return {"type": "Dict", "spaces": {key: _to_json(part) for key, part in space.spaces.items()}}
    raise CheckpointError(f"a {type(space).__name__} space cannot be stored")


def _from_json(data: dict[str, Any]) -> gymnasium.Space[Any]:
    match data["type"]:
        case "Box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            low, high = (_array(data[side], shape, dtype) for side in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            dtype = np.dtype(data["dtype"])
            return spaces.MultiDiscrete(np.array(data["nvec"]), dtype.type, start=np.array(data["start"]))
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "Dict":
            # As pairs: Gymnasium would sort a mapping, and the order is the order of the network's inputs.
            return spaces.Dict([(key, _from_json(part)) for key, part in data["spaces"].items()])
    raise ValueError(f"unknown space {data['type']!r}")


def _bound(values: Any) -> Any:
    """A bound as one number where it is the same everywhere (as in images), else as a list; ±inf as text."""
    flat = np.asarray(values).reshape(-1)
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    numbers = [x if np.isfinite(x) else str(x) for x in flat.tolist()]
    return numbers[0] if len(numbers) == 1 else numbers


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    numbers = bound if isinstance(bound, list) else [bound]
    values = np.array([float(x) if isinstance(x, str) else x for x in numbers], dtype)
    return np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)
