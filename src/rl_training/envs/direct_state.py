"""Reads and writes the state of envs whose every variable is known: replay of a long episode is slow.

Known are Gymnasium's classic control and MuJoCo envs and most single ALE games without sticky actions, by
exact class, inside wrappers that are known as well. Any other env is replayed. What is saved consists of
numbers, strings, lists, dicts and NumPy arrays.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from rl_training.types import Array

Env: TypeAlias = gymnasium.Env[Any, Any]

_CLASSIC = "gymnasium.envs.classic_control"
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    f"{_CLASSIC}.cartpole:CartPoleEnv": ("state", "steps_beyond_terminated"),
    f"{_CLASSIC}.acrobot:AcrobotEnv": ("state",),
    f"{_CLASSIC}.mountain_car:MountainCarEnv": ("state",),
    f"{_CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv": ("state",),
    f"{_CLASSIC}.pendulum:PendulumEnv": ("state", "last_u"),
    "rl_training.envs.memory:CartPoleNoVelocity": ("state", "steps_beyond_terminated"),
    "rl_training.envs.memory:PendulumNoVelocity": ("state", "last_u"),
    "ale_py.env:AtariEnv": (),
    "gymnasium.wrappers.common:TimeLimit": ("_elapsed_steps",),
    "gymnasium.wrappers.common:OrderEnforcing": ("_has_reset",),
    "rl_training.envs.atari:AtariGame": ("_frames", "_stack", "_lives"),
    "rl_training.envs.wrappers:FrameSkip": (),
    "rl_training.envs.wrappers:RenderedPixels": (),
    "rl_training.envs.wrappers:FlattenDict": (),
    "rl_training.envs.wrappers:MapImages": (),
    "rl_training.envs.wrappers:FrameStack": ("_history",),
    "rl_training.envs.wrappers:MaskInObservation": (),
}
"""What changes in the course of an episode, for every class of env or wrapper that is known."""
_MUJOCO = re.compile(r"gymnasium\.envs\.mujoco\.\w+_v[45]:\w+")
_MUJOCO_ATTRIBUTES = ("goal", "goal_pos", "cylinder_pos")
_MUJOCO_DERIVED = (
    "xpos", "xipos", "xmat", "xquat", "site_xpos", "geom_xpos", "geom_xmat", "cinert", "cvel", "cfrc_ext",
    "qacc", "qfrc_actuator", "qfrc_constraint", "ten_length", "ten_velocity",
)  # fmt: skip
"""What envs read of the last simulation step before they take the next one (Ant's speed needs its place).

MuJoCo computed it at the start of that step, and it cannot be computed from the state after it.
"""


def is_known(env: Env) -> bool:
    """Whether `capture` sees all of this env."""
    layers = _layers(env)
    return all(_attributes(layer) is not None for layer in layers) and not _hides_state(layers[-1])


def capture(env: Env) -> dict[str, Any] | None:
    """Everything that decides how a known env goes on, or None for other envs."""
    layers = _layers(env)
    if not is_known(env) or not isinstance(layers[-1].np_random.bit_generator, np.random.PCG64):
        return None
    state: dict[str, Any] = {
        "classes": [_name(layer) for layer in layers],
        "attributes": [
            {key: _pack(vars(layer)[key]) for key in _attributes(layer) or () if key in vars(layer)}
            for layer in layers
        ],
        "random": _random_state(layers[-1]),
    }
    if _is_mujoco(layers[-1]):
        state["mujoco"] = _mujoco_state(layers[-1])
    if _is_atari(layers[-1]):
        bytes_ = layers[-1].ale.cloneState(include_rng=True).serialize()
        state["ale"] = np.frombuffer(bytes_, dtype=np.uint8).copy()
    return state


def restore(env: Env, state: dict[str, Any]) -> str | None:
    """Put a freshly reset env where another one was; returns why that failed, or None."""
    layers = _layers(env)
    if not is_known(env) or [_name(layer) for layer in layers] != state.get("classes"):
        return f"its state was saved from another kind of env: {state.get('classes')}"
    try:
        for layer, attributes in zip(layers, state["attributes"], strict=True):
            for key in _attributes(layer) or ():
                if key in attributes:
                    setattr(layer, key, _unpack(attributes[key]))
        _set_random_state(layers[-1], state["random"])
        if _is_mujoco(layers[-1]):
            _set_mujoco_state(layers[-1], state["mujoco"])
        if _is_atari(layers[-1]):
            ale_py = importlib.import_module("ale_py")
            layers[-1].ale.restoreState(ale_py.ALEState(np.asarray(state["ale"]).tobytes()))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        return f"its saved state does not fit: {type(error).__name__}: {error}"
    return None if _same(capture(env), state) else "its saved state could not be put back exactly"


def _layers(env: Any) -> list[Any]:
    """The env and its wrappers, outermost first."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}:{type(layer).__qualname__}"


def _attributes(layer: Any) -> tuple[str, ...] | None:
    return _MUJOCO_ATTRIBUTES if _is_mujoco(layer) else _ATTRIBUTES.get(_name(layer))


def _is_mujoco(env: Any) -> bool:
    return _MUJOCO.fullmatch(_name(env)) is not None


def _is_atari(env: Any) -> bool:
    return _name(env) == "ale_py.env:AtariEnv"


_INCOMPLETE = ("amidar", "qbert")
"""Games that go on differently from a state that ALE saved and put back."""


def _hides_state(env: Any) -> bool:
    """ALE does not save the action that it may repeat at the next frame, nor all of every game."""
    if not _is_atari(env):
        return False
    return env.ale.getFloat("repeat_action_probability") > 0.0 or env._game in _INCOMPLETE


def _mujoco_state(env: Any) -> dict[str, Array]:
    mujoco = importlib.import_module("mujoco")
    kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    integration = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, integration, kind)
    return {"integration": integration, **{key: getattr(env.data, key).copy() for key in _MUJOCO_DERIVED}}


def _set_mujoco_state(env: Any, state: dict[str, Array]) -> None:
    mujoco = importlib.import_module("mujoco")
    kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    integration = np.asarray(state["integration"], dtype=np.float64)
    mujoco.mj_setState(env.model, env.data, integration, kind)
    mujoco.mj_forward(env.model, env.data)  # contacts and the like, for whoever renders
    mujoco.mj_setState(env.model, env.data, integration, kind)  # the warm start once more: forward changed it
    for key in _MUJOCO_DERIVED:
        getattr(env.data, key)[...] = state[key]


def _random_state(env: Any) -> dict[str, Any]:
    """Gymnasium's generator; its 128-bit numbers as text, which every JSON reader keeps exact."""
    state = env.np_random.bit_generator.state
    return {
        "state": str(state["state"]["state"]),
        "inc": str(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def _set_random_state(env: Any, state: dict[str, Any]) -> None:
    env.np_random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(state["state"]), "inc": int(state["inc"])},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


def _pack(value: Any) -> Any:
    """A value whose type JSON would lose (a tuple, a NumPy number) with its type beside it."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic):
        return {"scalar": np.array(value)}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_pack(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": {key: _pack(item) for key, item in value.items()}}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be saved")


def _unpack(packed: Any) -> Any:
    if isinstance(packed, np.ndarray):
        return packed.copy()
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    if kind == "scalar":
        return np.asarray(value)[()]
    if kind == "dict":
        return {key: _unpack(item) for key, item in value.items()}
    items = [_unpack(item) for item in value]
    return tuple(items) if kind == "tuple" else items


def _same(a: Any, b: Any) -> bool:
    """Equality to the bit: `-0.0` is not `0.0`, and NaN equals itself."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and bool(a == b)
