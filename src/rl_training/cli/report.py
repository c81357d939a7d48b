"""`axiomrl report RUN`: a run on one self-contained HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl_training.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Which run, and where to."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the file to write (default: RUN/report.html)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    from rl_training.zoo.report import write_report

    print(write_report(args.run_dir, args.output))
    return 0
