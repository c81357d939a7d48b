"""Algorithms by id. A decorator fills it; nothing heavy is imported until an algorithm is asked for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from rl_training.errors import UnknownNameError
from rl_training.garbage import importing_torch

Tier = Literal["core", "experimental", "contrib"]
ClassT = TypeVar("ClassT", bound=type[Any])


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """One selectable algorithm id. Several ids may share a class and differ in the fields they fix."""

    id: str
    cls: Any
    tier: Tier
    actions: tuple[str, ...]
    summary: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def hyperparams(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Hyperparameters as given, with what the id itself says about them."""
        return {**self.defaults, **given, **self.fixed}

    @property
    def family(self) -> str:
        """on-policy, off-policy or offline: which trainer feeds it."""
        return str(self.cls.family)


_ALGORITHMS: dict[str, AlgorithmEntry] = {}
_PACKAGES = ("rl_training.algorithms", "rl_training.contrib")


def register_algorithm(
    id: str,  # noqa: A002 - the word users know it by
    *,
    tier: Tier,
    actions: tuple[str, ...],
    summary: str,
    defaults: Mapping[str, Any] | None = None,
    **fixed: Any,
) -> Callable[[ClassT], ClassT]:
    """Class decorator: make an algorithm selectable as `id`.

    `fixed` are hyperparameters that define the id and cannot be contradicted; `defaults` are values it has of
    its own where the class has others.
    """

    def register(cls: ClassT) -> ClassT:
        known = _ALGORITHMS.get(id)
        if known is not None and known.cls.__qualname__ != cls.__qualname__:
            raise ValueError(f"algorithm id {id!r} is taken by {known.cls.__qualname__}")
        _ALGORITHMS[id] = AlgorithmEntry(id, cls, tier, actions, summary, fixed, defaults or {})
        return cls

    return register


def algorithms() -> dict[str, AlgorithmEntry]:
    """Every registered algorithm, by id. Imports the algorithm modules (and so torch)."""
    with importing_torch():
        for package_name in _PACKAGES:
            package = importlib.import_module(package_name)
            for module in pkgutil.iter_modules(package.__path__, prefix=f"{package_name}."):
                importlib.import_module(module.name)
    return dict(sorted(_ALGORITHMS.items()))


def algorithm(id: str) -> AlgorithmEntry:  # noqa: A002
    """The entry of one algorithm id, or an error that names the nearest one."""
    if id not in _ALGORITHMS:
        known = algorithms()
        if id not in known:
            raise UnknownNameError(
                "algorithm",
                id,
                known,
                "`axiomrl list algorithms` shows all of them. One of your own needs --import MODULE.",
            )
    return _ALGORITHMS[id]
