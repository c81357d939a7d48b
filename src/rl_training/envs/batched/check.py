"""What is wrong with a user's env on tensors: the form of what it returns, and the rules it must keep."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.envs.backends import describe_failure
from rl_training.envs.batched.env import BatchedEnv, State
from rl_training.envs.batched.random import env_keys
from rl_training.envs.check_spaces import Report, check_spaces
from rl_training.envs.spaces import Space, leaf_spaces

ROWS = 3
STEPS = 4
"""Steps over which rules are checked: at the first, rows may still be too alike to show that they mix."""
ALONE = {"cpu": {"rtol": 1e-4, "atol": 1e-5}, "cuda": {"rtol": 1e-2, "atol": 1e-2}}
"""How far a row may be off on its own: kernels round differently for other sizes, on a GPU as TF32 does."""
AGAIN: dict[str, dict[str, float]] = {"cpu": {}, "cuda": {"rtol": 1e-4, "atol": 1e-5}}
"""How far the same may be off when it is asked again: on a GPU sums may be added up in another order."""
PURE = "only the state and the actions may decide (no global random numbers, nothing kept in self)"
BY_ITSELF = "rows must not know of each other"


def examine_batched(env: BatchedEnv) -> list[str]:
    """Play a few steps of a few copies and say what does not fit; nothing where all does."""
    report = Report()
    check_spaces(env, report)
    if report.errors:
        return report.errors
    try:
        with torch.inference_mode():
            # What has not the right form cannot be held against any rule.
            return list(dict.fromkeys(_ill_formed(env))) or list(dict.fromkeys(_against_rules(env)))
    except Exception as error:
        return [describe_failure("playing a step", error)]


def _ill_formed(env: BatchedEnv) -> Iterator[str]:
    """Types, shapes, dtypes and devices of what one step gives."""
    state: Any = env.start(env_keys(1, ROWS, env.device))
    if problem := _no_state("start()", state):
        yield problem
        return
    yield from _misplaced("start() gives state", state, env)
    yield from _unlike("observe()", env.observe(state), env.observation_space)
    before = _copied(state)
    result: Any = env.step(state, _actions(env, 0))
    for key in _differing(state, before):
        yield f"step() changes the state[{key!r}] it is given: it must make new tensors"
    if not isinstance(result, tuple) or len(result) != 3:
        yield f"step() gives {_kind(result)}: the next state, rewards and terminated are needed"
        return
    after, rewards, terminated = result
    if problem := _no_state("step()", after):
        yield problem
        return
    described = {key: _shown(rows) for key, rows in state.items()}
    if (then := {key: _shown(rows) for key, rows in after.items()}) != described:
        yield f"step() gives a state of {then}, start() one of {described}: they must be the same"
    if after.keys() != state.keys():
        return  # to observe what is not there would only say where that was noticed
    yield from _misplaced("step() gives state", after, env)
    yield from _unlike("observe() after a step", env.observe(after), env.observation_space)
    if not _is_row(rewards) or not rewards.is_floating_point():
        yield f"step() gives rewards of {_shown(rewards)}: floats, one a copy, are needed"
    if not _is_row(terminated) or terminated.dtype != torch.bool:
        yield f"step() gives terminated of {_shown(terminated)}: booleans, one a copy, are needed"


def _against_rules(env: BatchedEnv) -> Iterator[str]:
    """Whether seeds, states and actions decide everything, for each row by itself: resuming relies on it."""
    seeds = env_keys(1, ROWS, env.device)
    state = env.start(seeds)
    for key in _differing(env.start(seeds[1:2]), _row(state, 1)):
        yield f"start() gives another state[{key!r}] for the same seed: only the seed may decide"
    for number in range(STEPS):
        actions = _actions(env, number)
        after, found = _play(env, state, actions)
        env.start(env_keys(2, ROWS, env.device))  # whatever that leaves behind in the env must not matter
        if not bool(found["rewards of step()"].isfinite().all()):
            yield "step() gives rewards that are NaN or infinite"
            return
        for name in _differing(_play(env, state, actions)[1], found, **AGAIN.get(env.device.type, {})):
            yield f"{name} differs when the same is asked again: {PURE}"
        try:
            alone = _play(env, _row(state, 1), actions[1:2])[1]
        except Exception as error:
            yield f"{describe_failure('playing a step of one copy alone', error)}: {BY_ITSELF}"
            return
        for name in _differing(alone, _row(found, 1), **ALONE.get(env.device.type, ALONE["cuda"])):
            yield f"{name} differs for a copy alone from what it is among others: {BY_ITSELF}"
        if bool(found["terminated of step()"].any()):  # the end has no next step
            return
        state = after


def _play(env: BatchedEnv, state: State, actions: Tensor) -> tuple[State, dict[str, Tensor]]:
    """The next state, and all that a step shows, by name: copies, since an env may write to its own later."""
    seen = env.observe(state)
    after, rewards, terminated = env.step(state, actions)
    found = {
        **_parts("observe()", seen),
        **{f"state[{key!r}] of step()": rows for key, rows in after.items()},
        "rewards of step()": rewards,
        "terminated of step()": terminated,
        **_parts("observe() after a step", env.observe(after)),
    }
    return _copied(after), _copied(found)


def _no_state(what: str, state: Any) -> str | None:
    """Why something is no state at all, if it is not."""
    if not isinstance(state, dict):
        return f"{what} gives {_kind(state)} as the state: a dict of tensors is needed"
    wrong = [
        f"state[{key!r}] is {_kind(rows)}" for key, rows in state.items() if not isinstance(rows, Tensor)
    ]
    return f"{what} gives a state of other things than tensors: {', '.join(wrong)}" if wrong else None


def _misplaced(what: str, state: Mapping[str, Tensor], env: BatchedEnv) -> Iterator[str]:
    for key, rows in state.items():
        if rows.dim() == 0 or len(rows) != ROWS:
            yield f"{what}[{key!r}] of shape {tuple(rows.shape)} for {ROWS} copies: one row each is needed"
        if rows.device.type != env.device.type:
            yield f"{what}[{key!r}] on {rows.device}, the env is on {env.device}: pass `device` on"


def _unlike(what: str, obs: Any, space: Space) -> Iterator[str]:
    wanted = leaf_spaces(space)
    given = obs.keys() if isinstance(obs, dict) else {""}
    if given != wanted.keys():
        names = sorted(map(str, given)) if isinstance(obs, dict) else _kind(obs)
        needed = "is no Dict" if "" in wanted else f"has {sorted(wanted)}"
        yield f"{what} gives {names}, the observation space {needed}"
        return
    for key, inner in wanted.items():
        part, name = (obs[key], f"{what}[{key!r}]") if key else (obs, what)
        shape, dtype = (ROWS, *(inner.shape or ())), torch.from_numpy(np.zeros(1, inner.dtype)).dtype
        if not isinstance(part, Tensor):
            yield f"{name} gives {_kind(part)}: a tensor is needed"
        elif tuple(part.shape) != shape or part.dtype != dtype:
            yield f"{name} gives {_shown(part)}, the observation space needs {_named(dtype)} of shape {shape}"
        elif part.is_floating_point() and not bool(part.isfinite().all()):
            yield f"{name} gives NaN or infinity"


def _differing(new: Mapping[str, Tensor], old: Mapping[str, Tensor], **tolerance: float) -> list[str]:
    """The names of what is not the same; floats may be apart by a `tolerance`."""

    def same(one: Tensor, other: Tensor) -> bool:
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        return torch.allclose(one, other, equal_nan=True, **(tolerance or {"rtol": 0.0, "atol": 0.0}))

    return [name for name, rows in old.items() if name not in new or not same(new[name], rows)]


def _parts(what: str, obs: Any) -> dict[str, Tensor]:
    """An observation's tensors, each with its name."""
    return {f"{what}[{key!r}]": part for key, part in obs.items()} if isinstance(obs, dict) else {what: obs}


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: rows.clone() for key, rows in tensors.items()}


def _row(tensors: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The same with one row only."""
    return {key: rows[index : index + 1] for key, rows in tensors.items()}


def _actions(env: BatchedEnv, seed: int) -> Tensor:
    """Random ones, in the form in which policies give them."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    actions = torch.as_tensor(np.stack([space.sample() for _ in range(ROWS)])).to(env.device)
    return actions.float() if actions.is_floating_point() else actions


def _is_row(value: Any) -> bool:
    """Whether something is a tensor with a number a copy."""
    return isinstance(value, Tensor) and value.shape == (ROWS,)


def _shown(value: Any) -> str:
    """What something is, as far as that matters."""
    return f"{_named(value.dtype)} {tuple(value.shape)}" if isinstance(value, Tensor) else _kind(value)


def _kind(value: Any) -> str:
    """The type of something that is not what it should be."""
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype} {value.shape}"
    return (
        f"{type(value).__name__} of length {len(value)}" if isinstance(value, tuple) else type(value).__name__
    )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
