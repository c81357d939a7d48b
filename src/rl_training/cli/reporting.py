"""What `report`, `leaderboard` and `plot` share: which runs, how they are grouped, where the result goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.parser import Parser
from rl_training.errors import AxiomError

if TYPE_CHECKING:
    from rl_training.zoo.scan import Scan
    from rl_training.zoo.summaries import RunSummary

FORMATS = {".txt": "text", ".json": "json", ".csv": "csv", ".md": "markdown", ".html": "html", ".htm": "html"}
"""The format that the ending of a file stands for."""


def add_selection(parser: Parser) -> None:
    """Which runs."""
    parser.add_argument(
        "paths", metavar="DIR", nargs="+", type=Path, help="directories with runs at any depth, or runs"
    )
    parser.add_argument(
        "--filter",
        metavar="CONDITION",
        action="append",
        default=[],
        dest="conditions",
        help="only runs that meet it: env=CartPole*, status!=failed, hyperparams.gamma>=0.99 (repeatable)",
    )
    add_score(parser)
    parser.add_argument(
        "--confidence",
        type=share,
        default=0.95,
        metavar="P",
        help="of the bootstrap intervals (default: 0.95)",
    )
    add_index(parser)


def add_score(parser: Parser) -> None:
    """Which of a run's evaluations."""
    parser.add_argument(
        "--score",
        choices=("final", "best"),
        default="final",
        help="the evaluation that stands for a run (default: final)",
    )


def add_index(parser: Parser) -> None:
    """Whether runs are read afresh."""
    parser.add_argument("--no-index", action="store_true", help="read every run afresh, and keep no index")


def add_output(parser: Parser, formats: Sequence[str] = ("text", "json", "csv", "markdown", "html")) -> None:
    """How, and where to."""
    parser.add_argument(
        "--format", choices=formats, help="default: by the ending of the output file, or else text"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the file to write")


def chosen_format(args: argparse.Namespace, default: str = "text") -> str:
    """The format asked for, or that of the output's ending."""
    if args.format:
        return str(args.format)
    return FORMATS.get(args.output.suffix.lower(), default) if args.output else default


def selected(args: argparse.Namespace) -> tuple[Scan, list[RunSummary]]:
    """What was found, and the runs that meet every condition; none is an error."""
    from rl_training.zoo.filters import parse_conditions, select
    from rl_training.zoo.scan import scan

    conditions = parse_conditions(args.conditions)
    found = scan(args.paths, use_index=not args.no_index)
    places = ", ".join(map(str, args.paths))
    if not found.runs:
        raise AxiomError(f"{places}: no run in it, at any depth")
    runs = select(found.runs, conditions)
    if not runs:
        raise AxiomError(
            f"{places}: none of the {len(found.runs)} runs meets {' and '.join(args.conditions)}"
        )
    return found, runs


def deliver(text: str, output: Path | None) -> None:
    """Print it, or write it to a file in one step and print where."""
    if output is None:
        print(text, end="")
        return
    from rl_training.experiment.files import replace_atomically

    if output.exists() and not output.is_file():
        raise AxiomError(f"{output}: not a file; name the file to write with -o")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(output, text.encode("utf-8", "replace"))
    except OSError as error:
        raise AxiomError(f"{output}: cannot be written: {error.strerror}") from None
    print(output)


def words(text: str) -> tuple[str, ...]:
    """A list separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def fraction(text: str) -> float:
    """A number from 0 up, below 1."""
    return 0.0 if text in ("0", "0.0") else share(text)


def share(text: str) -> float:
    """A number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value
