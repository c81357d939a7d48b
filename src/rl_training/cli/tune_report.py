"""`axiomrl tune-report`: what a study came to, as text, data or a page. Imports neither torch nor Optuna."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rl_training.cli.parser import Parser
from rl_training.cli.reporting import add_output, chosen_format, deliver


def add_arguments(parser: Parser) -> None:
    """Which study, and where to."""
    parser.add_argument(
        "study", metavar="STUDY", type=Path, help="the directory of a study, as `axiomrl tune` prints it"
    )
    add_output(parser, ("text", "json", "csv", "html"))


def run(args: argparse.Namespace) -> int:
    """Write it as asked."""
    from rl_training.zoo.tuning import report
    from rl_training.zoo.tuning.record import read_record

    record = read_record(args.study)
    name, output = chosen_format(args), args.output
    if name == "html":
        from rl_training.zoo.tuning.page import study_page

        command = shlex.join(["axiomrl", *sys.argv[1:]])
        deliver(study_page(record, command=command), output or record.path / "report.html")
        return 0
    writers = {"text": report.as_text, "json": report.as_json, "csv": report.as_csv}
    deliver(writers.get(name, report.as_text)(record), output)
    return 0
