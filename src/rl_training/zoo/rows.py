"""Rows of JSONL files and values in them, as reports take them: whatever can be read, the rest told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def number(value: Any) -> float | None:
    """A number one can draw, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e100 else None  # NaN is not below anything


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping from a file, or an empty one where the file has something else."""
    return value if isinstance(value, dict) else {}


def read_rows(path: Path, problems: list[str]) -> Iterator[Row]:
    """The readable rows of a JSONL file; a torn line costs itself and no other."""
    bad: list[int] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line_number, line in enumerate(file, 1):
                row = row_of(line)
                if row is None:
                    bad.append(line_number)
                else:
                    yield row
    except OSError as error:
        problems.append(f"{path.name}: cannot be read: {error.strerror}")
    if bad:
        where = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        problems.append(f"{path.name}: {len(bad)} damaged line{'s' * (len(bad) > 1)} left out: line {where}")


def row_of(line: str | bytes) -> Row | None:
    """A line as a row, if it is one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = number(row.get("global_step")) if isinstance(row, dict) else None
    return row if step is not None and step >= 0 else None
