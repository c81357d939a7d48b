"""Older checkpoint formats: one function a version, each of which leads to the next.

A change of the format raises `FORMAT_VERSION` and adds the function that brings a checkpoint of the version
before to it. A checkpoint of every released format is kept in `tests/fixtures/checkpoints`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = 1


@dataclass(slots=True)
class Raw:
    """A checkpoint as it was read: parsed, and not yet understood."""

    state: dict[str, Any]
    """The JSON half of every component."""
    tensors: dict[str, dict[str, Any]]
    """The tensors of every component that has some."""
    config: dict[str, Any]
    spec: Any


MIGRATIONS: dict[int, Callable[[Raw], Raw]] = {}
"""From each old version to the one after it."""


def can_migrate(version: object) -> bool:
    """Can this release read the version, by itself or step by step?"""
    if not isinstance(version, int) or version > FORMAT_VERSION:
        return False
    return version == FORMAT_VERSION or (version in MIGRATIONS and can_migrate(version + 1))


def migrate(raw: Raw, version: int) -> Raw:
    """Bring a checkpoint of an older version to the present one."""
    for old in range(version, FORMAT_VERSION):
        raw = MIGRATIONS[old](raw)
    return raw
