"""One table, four notations: aligned text for people, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key for programs, its title for people, and whether it holds numbers."""

    key: str
    title: str
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Rows twice: as people read them (`shown`) and as programs do (`data`)."""

    columns: Sequence[Column]
    shown: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, Any]]

    def text(self) -> str:
        """Aligned columns."""
        rows = [[column.title for column in self.columns], *map(list, self.shown)]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if column.numeric else cell.ljust(width)
                for cell, width, column in zip(row, widths, self.columns, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """A table for GitHub and for documentation."""
        head = [column.title for column in self.columns]
        rule = ["---:" if column.numeric else "---" for column in self.columns]
        body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in self.shown]
        return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))

    def csv(self) -> str:
        """The data, one line a row, with the keys as header."""
        file = io.StringIO()
        names = list(dict.fromkeys(name for row in self.data for name in row)) or [
            c.key for c in self.columns
        ]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in self.data)
        return file.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {inner}" for key, inner in value.items())
    return value
