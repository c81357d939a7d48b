"""Makes envs, single or many, from the configuration or from what the user supplies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import gymnasium

from rl_training.envs.atari import make_atari
from rl_training.envs.backends import Env, describe_failure, strip_time_limit
from rl_training.envs.check import examine
from rl_training.envs.check_spaces import Report
from rl_training.envs.config import EnvConfig
from rl_training.envs.kinds import BACKENDS, BackendName
from rl_training.envs.makers import MAKERS, Order, require_unwrapped, wrappers_of
from rl_training.envs.registered import find_spec, imported_name, make_registered, only_as_tensors
from rl_training.envs.vector import HostVectorEnv, VectorEnv
from rl_training.envs.wrappers import MaskInObservation, wrap
from rl_training.errors import AxiomError, EnvError
from rl_training.types import ACTION_MASK, Spec

if TYPE_CHECKING:
    import torch

NATIVE_FROM = 16
"""Envs from which on Gymnasium's vectorised CartPole is faster than so many of its single ones."""


class EnvSettings(Protocol):
    """The part of a training configuration that envs are made from."""

    @property
    def env_id(self) -> str: ...
    @property
    def env_kwargs(self) -> Mapping[str, Any]: ...
    @property
    def env(self) -> EnvConfig: ...
    @property
    def seed(self) -> int: ...


EnvSource: TypeAlias = Callable[[], Env] | Env
"""An env the user supplies: a function that makes one, or a single ready-made one."""

_in_use: weakref.WeakKeyDictionary[Env, weakref.ref[VectorEnv]] = weakref.WeakKeyDictionary()
"""Which vector env plays with a ready-made env: it can serve only one at a time."""


def make_env(settings: EnvSettings, *, render_mode: str | None = None, env: EnvSource | None = None) -> Env:
    """One env with everything the configuration wraps around it: what a policy trained with it expects."""
    made = _make_wrapped(settings, render_mode, env)
    try:
        _, info = made.reset(seed=settings.seed)  # only a reset shows whether the env has action masks
    except Exception as error:
        raise EnvError(describe_failure(f"env {settings.env_id}: reset()", error)) from error
    return MaskInObservation(made) if ACTION_MASK in info else made


def findings(settings: EnvSettings, env: EnvSource | None = None) -> list[str]:
    """What `check_env` has to say about the env as the configuration wraps it."""
    if env is None and _only_batched(settings.env_id):
        from rl_training.envs.batched.make import batched_findings

        return batched_findings(settings.env_id, settings.env_kwargs)
    return _examine(settings, None, _source(1, env)).report.findings


def probe(settings: EnvSettings, env: EnvSource | None = None) -> Spec:
    """Make one env, check it before anything is built on it, and say what it shows and takes."""
    if choose_backend(settings, 2, env) == "batched":
        with _batched(settings, 2, None, env) as envs:
            return envs.spec
    return _probe(settings, None, _source(1, env)).spec


def shown_by(settings: EnvSettings, env: EnvSource, *, like: Spec) -> Spec:
    """What an env of the user's shows and takes, without a step in it; with masks, if one `like` it has."""
    made = _make_wrapped(settings, None, env)
    if _shows_mask(like.observation_space) and not _shows_mask(made.observation_space):
        made = MaskInObservation(made) if made.action_space == like.action_space else made
    try:
        return Spec(made.observation_space, made.action_space)
    finally:
        if not isinstance(env, gymnasium.Env):
            made.close()


def _shows_mask(space: Any) -> bool:
    return isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces


def choose_backend(settings: EnvSettings, num_envs: int, env: EnvSource | None = None) -> BackendName:
    """What `auto` stands for: the fastest of the backends that give the same episodes and resume exactly."""
    if settings.env.backend != "auto":
        return settings.env.backend
    if env is None and _only_batched(settings.env_id):
        return "batched"
    return "native" if num_envs >= NATIVE_FROM and env is None and _has_native(settings) else "sync"


def _has_native(settings: EnvSettings) -> bool:
    """Whether the native backend knows an env as it is wanted here."""
    if settings.env_id not in gymnasium.registry or wrappers_of(settings.env):
        return False
    entry = gymnasium.registry[settings.env_id].vector_entry_point
    return isinstance(entry, str) and entry.endswith(":CartPoleVectorEnv")


def can_play(settings: EnvSettings, backend: BackendName) -> bool:
    """Whether a backend knows the env as it is wanted here, as far as that shows without making one."""
    if _only_batched(settings.env_id):
        return backend == "batched"
    if backend in ("native", "batched") and wrappers_of(settings.env):
        return False
    if backend == "native":
        return find_spec(settings.env_id).vector_entry_point is not None
    return backend != "batched" or _has_batched(settings.env_id)


def _has_batched(env_id: str) -> bool:
    from rl_training.envs.batched.env import find_batched  # imports torch

    try:
        find_batched(env_id)
    except EnvError:
        return False
    return True


def evaluation_backend(settings: EnvSettings) -> BackendName:
    """Where evaluations are played: in one process, or in ALE's threads; the episodes are the same.

    Batched envs are evaluated in Gymnasium's envs of the same name, where there are such.
    """
    name = settings.env.backend
    if name == "batched":
        return "batched" if _only_batched(settings.env_id) else "sync"
    return "ale" if name == "ale" else "sync"


def make_vector_env(
    cfg: EnvSettings,
    num_envs: int,
    *,
    seed: int | None = None,
    env: EnvSource | None = None,
    backend: BackendName | None = None,
    render_mode: str | None = None,
    device: torch.device | str = "cpu",
) -> VectorEnv:
    """`num_envs` envs stepped as one. An env is checked first, so that errors come before step one.

    `device` is where batched envs live; others are on the host whatever it says.
    """
    name = backend or choose_backend(cfg, num_envs, env)
    chosen = cfg.seed if seed is None else seed
    if name == "batched":
        return _batched(cfg, num_envs, render_mode, env, seed=chosen, device=device)
    if name not in MAKERS:
        known = ", ".join(f"{kind.name} ({kind.plays})" for kind in BACKENDS.values())
        raise EnvError(f"unknown env backend {name!r}: use auto, {known}")
    source = _source(num_envs, env)
    seen = _probe(cfg, render_mode, source)
    make = partial(_make_one, cfg, render_mode, source, seen.report.masked)
    stepper = MAKERS[name](Order(cfg, num_envs, seen.spec, make, source, render_mode))
    limit = None if stepper.kind.limits else seen.time_limit
    vector = HostVectorEnv(
        stepper, seen.spec, num_envs, seed=chosen, time_limit=limit, render_fps=seen.render_fps
    )
    if isinstance(source, gymnasium.Env):
        _in_use[source] = weakref.ref(vector)
    return vector


def _source(num_envs: int, env: EnvSource | None) -> EnvSource | None:
    """Where envs come from: a ready-made env serves one vector env, others get copies by its spec."""
    if not isinstance(env, gymnasium.Env):
        return env
    holder = _in_use[env]() if env in _in_use else None
    if holder is None or holder.closed:
        if num_envs > 1:
            raise EnvError(f"one ready-made env cannot serve {num_envs} envs: pass a function that makes it")
        return env
    if env.spec is None:
        raise EnvError("the ready-made env is in use and cannot be copied: pass a function that makes it")
    return partial(gymnasium.make, env.spec, disable_env_checker=True)


@dataclass(frozen=True)
class _Seen:
    """What a look at one env tells: also the outermost time limit, which `VectorEnv` applies itself."""

    report: Report
    spec: Spec
    time_limit: int | None
    render_fps: float


def _probe(cfg: EnvSettings, render_mode: str | None, env: EnvSource | None) -> _Seen:
    seen = _examine(cfg, render_mode, env)
    if seen.report.errors:
        raise EnvError("\n  - ".join([f"env {cfg.env_id} cannot be trained on:", *seen.report.errors]))
    return seen


def _examine(cfg: EnvSettings, render_mode: str | None, env: EnvSource | None) -> _Seen:
    made = _make_wrapped(cfg, render_mode, env)
    try:
        report = examine(made)
        final = MaskInObservation(made) if report.masked and not report.errors else made
        spec = Spec(final.observation_space, final.action_space)
        fps = float((made.metadata or {}).get("render_fps") or 30.0)
        return _Seen(report, spec, strip_time_limit(final)[1], fps)
    finally:
        if not isinstance(env, gymnasium.Env):  # a ready-made env stays the user's
            made.close()


def _make_one(cfg: EnvSettings, render_mode: str | None, env: EnvSource | None, masked: bool) -> Env:
    made = _make_wrapped(cfg, render_mode, env)
    return MaskInObservation(made) if masked else made


def _make_wrapped(cfg: EnvSettings, render_mode: str | None, env: EnvSource | None) -> Env:
    """One env in everything but the mask wrapper, which needs to know whether there are masks."""
    if cfg.env.atari.preprocess:
        if env is not None:
            raise EnvError("env.atari.preprocess is for games by their id, not for an env of your own")
        return make_atari(cfg.env_id, cfg.env_kwargs, cfg.env, render_mode)
    if cfg.env.pixels:
        render_mode = "rgb_array"
    if env is None:
        keep_limit = cfg.env.max_episode_steps is None
        made = make_registered(cfg.env_id, cfg.env_kwargs, render_mode=render_mode, time_limit=keep_limit)
    else:
        made = env if isinstance(env, gymnasium.Env) else _call(env)
    return wrap(made, cfg.env)


def _call(make: Callable[[], Env]) -> Env:
    if not callable(make):
        raise EnvError(
            f"env: expected an env or a function that makes one, got {type(make).__name__}; "
            "an id goes in as env_id=..., and num_envs=... makes several of it"
        )
    try:
        made = make()
    except AxiomError:
        raise
    except Exception as error:
        raise EnvError(describe_failure("the function passed as env", error)) from error
    if not isinstance(made, gymnasium.Env):
        raise EnvError(f"the function passed as env returned a {type(made).__name__}, not a gymnasium.Env")
    return made


def _only_batched(env_id: str) -> bool:
    """Whether an env is known as tensors, and to nobody else."""
    return only_as_tensors(imported_name(env_id))


def _batched(
    cfg: EnvSettings,
    num_envs: int,
    render_mode: str | None,
    env: EnvSource | None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> VectorEnv:
    from rl_training.envs.batched.make import make_batched_vector_env  # imports torch, unlike the others

    require_unwrapped("batched", cfg.env, env)
    if render_mode is not None:
        raise EnvError(f"env {cfg.env_id} exists as tensors, which cannot be rendered")
    limit = cfg.env.max_episode_steps
    return make_batched_vector_env(cfg.env_id, cfg.env_kwargs, num_envs, limit, seed=seed, device=device)
