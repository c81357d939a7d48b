"""Configurations as nested mappings: laid over one another, made of single keys, taken apart by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def flat(values: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with the keys that lead to it; an empty section has none."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, (*at, key))
        else:
            yield (*at, key), value
