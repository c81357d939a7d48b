"""The only folder that knows Gymnasium: making, wrapping, checking, stepping and restoring envs.

Names are loaded when they are first used, so that reading a configuration does not import Gymnasium.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.envs.check import check_env
    from rl_training.envs.config import EnvConfig
    from rl_training.envs.factory import (
        EnvSettings,
        EnvSource,
        can_play,
        choose_backend,
        evaluation_backend,
        findings,
        make_env,
        make_vector_env,
        probe,
        shown_by,
    )
    from rl_training.envs.seeding import episode_seed
    from rl_training.envs.vector import VectorEnv

_HOMES = {
    "EnvConfig": "config",
    "EnvSettings": "factory",
    "EnvSource": "factory",
    "VectorEnv": "vector",
    "can_play": "factory",
    "check_env": "check",
    "choose_backend": "factory",
    "episode_seed": "seeding",
    "evaluation_backend": "factory",
    "findings": "factory",
    "make_env": "factory",
    "make_vector_env": "factory",
    "probe": "factory",
    "shown_by": "factory",
}

__all__ = [
    "EnvConfig",
    "EnvSettings",
    "EnvSource",
    "VectorEnv",
    "can_play",
    "check_env",
    "choose_backend",
    "episode_seed",
    "evaluation_backend",
    "findings",
    "make_env",
    "make_vector_env",
    "probe",
    "shown_by",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
