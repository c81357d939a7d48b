"""Who makes which of the backends on the host, and what each refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import gymnasium

from rl_training.envs.backends import Backend, EnvFn, SyncBackend
from rl_training.envs.config import EnvConfig
from rl_training.envs.native import NativeBackend
from rl_training.envs.registered import find_spec, guarded
from rl_training.envs.workers import AsyncBackend
from rl_training.errors import EnvError
from rl_training.types import Spec

if TYPE_CHECKING:
    from rl_training.envs.factory import EnvSettings, EnvSource


@dataclass(frozen=True)
class Order:
    """What is wanted of a backend."""

    cfg: EnvSettings
    num_envs: int
    spec: Spec
    make: EnvFn
    """One env, with all its wrappers."""
    source: EnvSource | None = None
    """What the user supplies instead of an id."""
    render_mode: str | None = None

    @property
    def episodic(self) -> bool:
        """Whether a lost life ends an episode for the learner."""
        return self.cfg.env.atari.preprocess and self.cfg.env.atari.episodic_life


def _sync(order: Order) -> Backend:
    owns_envs = not isinstance(order.source, gymnasium.Env)  # a ready-made one is closed by the user
    space, env_id = order.spec.observation_space, order.cfg.env_id
    return SyncBackend([order.make] * order.num_envs, space, env_id, owns_envs, order.episodic)


def _async(order: Order) -> Backend:
    cfg, spec = order.cfg, order.spec
    timeout, restarts = cfg.env.worker_timeout, cfg.env.max_worker_restarts
    return AsyncBackend([order.make] * order.num_envs, spec, cfg.env_id, timeout, restarts, order.episodic)


def _native(order: Order) -> Backend:
    cfg, num_envs, render_mode, options = order.cfg, order.num_envs, order.render_mode, order.cfg.env
    require_unwrapped("native", options, order.source)
    spec = find_spec(cfg.env_id)
    if spec.vector_entry_point is None:
        raise EnvError(f"env {cfg.env_id} has no native vector version: use env.backend sync or async")
    kwargs = dict(cfg.env_kwargs)
    if options.max_episode_steps is not None:
        kwargs["max_episode_steps"] = options.max_episode_steps
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    return guarded(spec, kwargs, partial(NativeBackend, spec, num_envs, **kwargs))


def wrappers_of(options: EnvConfig) -> list[str]:
    """The keys of wrappers that single envs would need."""
    plain, wrapping = EnvConfig(), ("frame_skip", "frame_stack", "pixels", "grayscale", "resize", "atari")
    return [key for key in wrapping if getattr(options, key) != getattr(plain, key)]


def require_unwrapped(backend: str, options: EnvConfig, env: EnvSource | None) -> None:
    """Refuse what only works on single envs where there are none."""
    changed = wrappers_of(options)
    if env is not None or changed:
        what = "an env of your own" if env is not None else f"env.{changed[0]}"
        raise EnvError(f"env.backend {backend!r} cannot be combined with {what}: use sync or async")


def _ale(order: Order) -> Backend:
    cfg = order.cfg
    if order.source is not None or not cfg.env.atari.preprocess:
        what = "an env of your own" if order.source is not None else "env.atari.preprocess: false"
        raise EnvError(f"env.backend 'ale' cannot be combined with {what}: use sync or async")
    from rl_training.envs.ale_vector import AleBackend

    spec = find_spec(cfg.env_id)
    return guarded(spec, cfg.env_kwargs, partial(AleBackend, spec, order.num_envs, cfg.env, cfg.env_kwargs))


MAKERS: dict[str, Callable[[Order], Backend]] = {
    "sync": _sync,
    "async": _async,
    "native": _native,
    "ale": _ale,
}
"""Who makes the backends on the host; `batched` needs none, as its envs are one already."""
