"""Seeds on the command line: which, or how many."""

from __future__ import annotations

from argparse import ArgumentTypeError

from rl_training.cli.parser import positive_int

MOST = 1_000
"""More seeds than anybody runs by one command; a slip of the hand must not plan a hundred million runs."""


def seed_list(text: str) -> tuple[int, ...]:
    """`1,2,3` or `1-5`, in any mixture, each seed once."""
    found: list[int] = []
    try:
        for part in filter(None, text.replace(" ", ",").split(",")):
            low, dash, high = part.partition("-")
            seeds = range(int(low), int(high if dash else low) + 1)
            if not seeds:
                raise ValueError(part)
            _require_few(len(seeds) + len(found), text)
            found += seeds
    except (ValueError, OverflowError):
        found = []
    if not found:
        raise ArgumentTypeError(f"expected seeds like 1,2,3 or 1-5, got {text!r}")
    return tuple(dict.fromkeys(found))


def seed_count(text: str) -> int:
    """How many seeds."""
    count = positive_int(text)
    _require_few(count, text)
    return count


def _require_few(count: int, text: str) -> None:
    if count > MOST:
        raise ArgumentTypeError(f"{text!r}: more than {MOST:,} seeds, the most that one command runs")
