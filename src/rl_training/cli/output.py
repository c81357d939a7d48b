"""What commands print: tables for people, JSON for programs, never both on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rl_training.cli.parser import Parser
from rl_training.experiment.files import to_json


def add_json(parser: Parser, help_text: str) -> None:
    """The option for programs."""
    parser.add_argument("--json", action="store_true", help=help_text)


def print_json(data: Any) -> None:
    """One JSON value on stdout."""
    print(to_json(data))


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows as aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        f"{indent}{'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()
        for row in rows
    ]


@contextmanager
def reserved_stdout(active: bool = True) -> Iterator[None]:
    """Send to stderr whatever envs and libraries print, from C and from worker processes too."""
    if not active:
        yield
        return
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # stdout is not a file, as in a notebook or a test
        with redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    kept = os.dup(descriptor)
    os.dup2(sys.stderr.fileno(), descriptor)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
