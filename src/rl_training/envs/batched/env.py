"""What an env on tensors is: its rules for many copies at once. And which ids have one."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import gymnasium
import torch
from torch import Tensor

from rl_training.envs.registered import imported_name
from rl_training.errors import EnvError, nearest

if TYPE_CHECKING:
    from rl_training.types import TensorObs

State: TypeAlias = dict[str, Tensor]
"""All that an env remembers, by name: tensors with one row a copy."""


class BatchedEnv(ABC):
    """The rules of an env as functions from tensors to tensors, one row a copy, every row by itself.

    Methods must not change what they are given, must not read values (no `.item()`, no `if` on a tensor) and
    must keep shapes and dtypes: then a whole iteration of training can be captured as one CUDA graph.
    Episodes, resets, time limits and statistics are not their business.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def start(self, seeds: Tensor) -> State:
        """The first state of an episode for each seed (`int64`), and nothing but the seed may decide it."""

    @abstractmethod
    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next state, the reward and whether that state is terminal, for an action a row."""

    @abstractmethod
    def observe(self, state: State) -> TensorObs:
        """What the policy sees of a state."""


@dataclass(frozen=True, slots=True)
class Registered:
    """An env that can be named, and after how many steps its episodes are truncated."""

    id: str
    make: type[BatchedEnv]
    max_episode_steps: int | None


SHIPPED = "rl_training.envs.batched.classic"
"""The module that registers what ships: always before anything of a user's is compared with it."""
_REGISTERED: dict[str, Registered] = {}
EnvT = TypeVar("EnvT", bound=type[BatchedEnv])


def register_batched_env(env_id: str, *, max_episode_steps: int | None = None) -> Callable[[EnvT], EnvT]:
    """Make a class available as `env_id` with `env.backend: batched`; it is made with `env_kwargs`."""
    limit = max_episode_steps
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise EnvError(f"batched env {env_id!r}: max_episode_steps must be a whole number above 0, or None")

    def register(make: EnvT) -> EnvT:
        if make.__module__ != SHIPPED:
            importlib.import_module(SHIPPED)
        known = _REGISTERED.get(env_id)
        if known is not None and _origin(known.make) != _origin(make):
            both = " and ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in (known.make, make))
            raise EnvError(f"two batched envs are called {env_id!r}, {both}: give yours another id")
        _REGISTERED[env_id] = Registered(env_id, make, max_episode_steps)
        return make

    return register


def _origin(make: type[BatchedEnv]) -> tuple[str, str]:
    """Where a class is defined. A program may import itself, which makes two modules of one file."""
    module = sys.modules.get(make.__module__)
    return getattr(module, "__file__", None) or make.__module__, make.__qualname__


def is_registered(name: str) -> bool:
    """Whether somebody has registered an env of that name; those that ship have Gymnasium's."""
    return name in _REGISTERED


def find_batched(env_id: str) -> Registered:
    """The env of that id; `module:Id-v0` imports the module first. The error names those there are."""
    importlib.import_module(SHIPPED)
    name = imported_name(env_id)
    if name not in _REGISTERED:
        near = nearest(name, _REGISTERED)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise EnvError(
            f"env {name} has no batched version{hint}; those that do: {', '.join(sorted(_REGISTERED))}. "
            "Use env.backend sync or async, or register one of your own with register_batched_env."
        )
    return _REGISTERED[name]
