"""Envs by their Gymnasium id, and what can go wrong with one, said in words a user can act on."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium
from gymnasium import error as gym_error
from gymnasium.envs.registration import EnvSpec, load_env_creator, parse_env_id

from rl_training.envs import fragile, goal_envs, memory, toy
from rl_training.envs.backends import Env, describe_failure, missing_dependency
from rl_training.errors import AxiomError, EnvError, MissingExtraError, UnknownNameError, nearest

T = TypeVar("T")

_RESERVED = {
    "max_episode_steps": "set env.max_episode_steps instead",
    "disable_env_checker": "envs are always checked before training",
    "id": "the env is chosen by env_id",
}


def make_registered(
    env_id: str, env_kwargs: Mapping[str, Any], *, render_mode: str | None = None, time_limit: bool = True
) -> Env:
    """One env from Gymnasium's registry, with or without its registered time limit."""
    spec = find_spec(env_id)
    kwargs = dict(env_kwargs)
    for key, advice in _RESERVED.items():
        if key in kwargs:
            raise EnvError(f"env_kwargs.{key} is not passed to the env: {advice}")
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
        _prepare_headless_rendering(render_mode)
    limit = None if time_limit else -1
    return guarded(
        spec,
        kwargs,
        lambda: gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **kwargs),
    )


def find_spec(env_id: str) -> EnvSpec:
    """The registry's entry; `module:Id-v0` imports the module first, `ALE/…` the Atari package."""
    name = imported_name(env_id)
    if name.startswith("ALE/"):
        _register_atari(env_id)
    try:
        if name not in gymnasium.registry:
            namespace, base, version = parse_env_id(name)
            newest = _newest(namespace, base)
            if version is None and newest is not None:
                return newest
            gymnasium.spec(name)
        return gymnasium.registry[name]
    except gym_error.Error as error:
        raise _unknown(name) from error


def imported_name(env_id: str) -> str:
    """The name an env is registered by: of `module:Id-v0` what follows the module, which is imported."""
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except Exception as error:
        raise EnvError(
            f"env_id {env_id!r}: importing {module} failed with {type(error).__name__}: {error}"
        ) from error
    return name


def _register_atari(env_id: str) -> None:
    if importlib.util.find_spec("ale_py") is None:
        raise MissingExtraError(f"env {env_id}", "atari")
    gymnasium.register_envs(importlib.import_module("ale_py"))


def _newest(namespace: str | None, base: str) -> EnvSpec | None:
    same = [spec for spec in gymnasium.registry.values() if (spec.namespace, spec.name) == (namespace, base)]
    return max(same, key=lambda spec: spec.version or 0, default=None)


def only_as_tensors(name: str) -> bool:
    """Whether somebody has registered an env of that name as tensors, and nobody for Gymnasium."""
    batched = sys.modules.get("rl_training.envs.batched.env")  # imports torch; who registers one has done so
    return name not in gymnasium.registry and batched is not None and batched.is_registered(name)


def _unknown(name: str) -> AxiomError:
    """Names the versions there are if only the version is wrong, else the newest of the nearest name."""
    if only_as_tensors(name):
        return EnvError(
            f"env {name!r} exists as tensors only: set env.backend to batched or auto; it cannot be rendered"
        )
    hint = "`axiomrl list envs` shows all of them."
    match = re.fullmatch(r"(?:(?P<namespace>[\w:.-]+)/)?(?P<base>[\w:.-]+?)(?:-v\d+)?", name)
    if match is None:
        return UnknownNameError("env", name, gymnasium.registry, f"An id looks like Name-v0. {hint}")
    namespace, base = match["namespace"], match["base"]
    versions = sorted(s.id for s in gymnasium.registry.values() if (s.namespace, s.name) == (namespace, base))
    if versions and (newest := _newest(namespace, base)):
        return UnknownNameError("env", name, [newest.id], f"Registered versions: {', '.join(versions)}.")
    bases = {f"{s.namespace}/{s.name}" if s.namespace else s.name: s for s in gymnasium.registry.values()}
    near = nearest(f"{namespace}/{base}" if namespace else base, bases)
    newest = _newest(bases[near].namespace, bases[near].name) if near else None
    if namespace and namespace not in {spec.namespace for spec in gymnasium.registry.values()}:
        hint += f" Nothing is registered below {namespace}/: name the package that does it with --import."
        return UnknownNameError("env", name, [newest.id] if newest else (), hint)
    known = [newest.id] if newest else list(gymnasium.registry)
    if newest is None:
        hint += " One of your own needs --import MODULE."
    return UnknownNameError("env", name, known, hint)


def guarded(spec: EnvSpec, kwargs: Mapping[str, Any], make: Callable[[], T]) -> T:
    """Run a constructor and translate its failure."""
    try:
        return make()
    except AxiomError:
        raise
    except gym_error.DependencyNotInstalled as error:
        raise missing_dependency(f"env {spec.id}", spec, error) from error
    except Exception as error:
        if key := refused_argument(error, kwargs):
            raise EnvError(_bad_kwarg(spec, key)) from error
        given = f" with env_kwargs {dict(kwargs)}" if kwargs else ""
        raise EnvError(describe_failure(f"making env {spec.id}{given}", error)) from error


def _bad_kwarg(spec: EnvSpec, key: str) -> str:
    if key == "render_mode":
        return f"env {spec.id} cannot be rendered: it takes no render_mode"
    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    return unknown_kwarg(f"env {spec.id}", key, creator)


def refused_argument(error: Exception, kwargs: Mapping[str, Any]) -> str | None:
    """Which of its arguments a constructor that failed does not take, if that was why."""
    match = re.search(r"(?:unexpected keyword|multiple values for(?: keyword)?) argument '(\w+)'", str(error))
    return match[1] if match and match[1] in kwargs else None


def unknown_kwarg(env: str, key: str, creator: Callable[..., Any], *given: str) -> str:
    """That an env takes no such argument, and which ones it takes besides those that it is always given."""
    parameters = inspect.signature(creator).parameters.values()
    accepted = [p for p in parameters if p.name not in given and p.kind != p.VAR_POSITIONAL]
    near = nearest(key, [p.name for p in accepted if p.kind != p.VAR_KEYWORD])
    names = ", ".join(f"**{p.name}" if p.kind == p.VAR_KEYWORD else p.name for p in accepted)
    advice = f"did you mean {near!r}?" if near else f"it takes: {names or 'nothing'}"
    return f"env_kwargs.{key}: {env} takes no such argument; {advice}"


def _prepare_headless_rendering(render_mode: str) -> None:
    """Let pygame and MuJoCo draw into memory on machines without a display."""
    if sys.platform == "linux" and render_mode != "human" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")


__all__ = [
    "find_spec", "fragile", "goal_envs", "guarded", "imported_name", "make_registered", "memory",
    "only_as_tensors", "refused_argument", "toy", "unknown_kwarg",
]  # fmt: skip
