"""What `report`, `leaderboard` and `plot` share: which runs, how they are grouped, where the result goes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.parser import Parser
from rl_training.errors import AxiomError, ConfigError

if TYPE_CHECKING:
    from rl_training.zoo.scan import Scan
    from rl_training.zoo.summaries import RunSummary

FORMATS = {".txt": "text", ".json": "json", ".csv": "csv", ".md": "markdown", ".html": "html", ".htm": "html"}
"""The format that the ending of a file stands for."""


def add_selection(parser: Parser) -> None:
    """Which runs."""
    parser.add_argument(
        "paths",
        metavar="DIR",
        nargs="+",
        type=Path,
        help="directories with runs at any depth, runs, or manifests (.json)",
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
    parser.set_defaults(formats=formats)


def chosen_format(args: argparse.Namespace, default: str = "text") -> str:
    """The format asked for, or that of the output's ending; one that stands for none is an error."""
    if args.format:
        return str(args.format)
    if args.output is None or not args.output.suffix:
        return default
    name = FORMATS.get(args.output.suffix.lower())
    if name not in args.formats:
        endings = ", ".join(ending for ending, known in FORMATS.items() if known in args.formats)
        raise ConfigError(
            f"command line: --output {args.output}: the name must end in one of {endings}, or --format must "
            "say what to write"
        )
    return str(name)


def selected(args: argparse.Namespace) -> tuple[Scan, list[RunSummary]]:
    """What was found, and the runs that meet every condition; none is an error."""
    from rl_training.zoo.filters import parse_conditions, select

    conditions = parse_conditions(args.conditions)
    found = _found(args.paths, use_index=not args.no_index)
    places = ", ".join(map(str, args.paths))
    if not found.runs:
        raise AxiomError(f"{places}: no run in it, at any depth")
    runs = select(found.runs, conditions)
    if not runs:
        raise AxiomError(
            f"{places}: none of the {len(found.runs)} runs meets {' and '.join(args.conditions)}"
        )
    return found, runs


def _found(paths: Sequence[Path], *, use_index: bool) -> Scan:
    """The runs below directories and those that manifests list, each once."""
    from rl_training.zoo.scan import scan
    from rl_training.zoo.sources import read_manifest

    manifests = [path for path in paths if is_manifest(path)]
    found = scan([path for path in paths if path not in manifests], use_index=use_index)
    if manifests:
        runs = [*found.runs, *(run for path in manifests for run in read_manifest(path))]
        found.runs = list({os.path.realpath(run.path): run for run in runs}.values())
    return found


def is_manifest(path: Path) -> bool:
    """Is it a file that lists runs, rather than a directory of them?"""
    return path.suffix.lower() == ".json" and path.is_file()


def default_page(paths: Sequence[Path], name: str) -> Path:
    """Where a page goes unless told: beside what it is of, if that is one."""
    if len(paths) > 1:
        return Path(name)
    return (paths[0].parent if paths[0].is_file() else paths[0]) / name


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
