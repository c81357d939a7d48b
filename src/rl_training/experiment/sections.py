"""Configurations as nested mappings: one laid over another, and single keys as a part of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both as one, section by section; where both have a value, the second's wins."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = merged(before, value)
        result[key] = value
    return result


def nested(key: str, value: Any) -> dict[str, Any]:
    """A dotted key and its value as a part of a configuration."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)
