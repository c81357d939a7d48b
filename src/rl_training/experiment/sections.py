"""Configurations as nested mappings: laid over one another, made of single keys, taken apart by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""Stands for the value of a key that is not there."""


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


def differing(
    expected: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Every key whose value is not the same in both, with both values, in the order of the two."""
    wanted, values = dict(flat(expected)), dict(flat(found))
    for path in dict.fromkeys([*wanted, *values]):
        before, after = wanted.get(path, ABSENT), values.get(path, ABSENT)
        if isinstance(before, bool) != isinstance(after, bool) or before != after:  # 1 is not true
            yield path, before, after
