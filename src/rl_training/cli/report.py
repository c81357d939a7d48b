"""`axiomrl report`: one run on a page of its own, or many runs as tables and a page over all of them."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rl_training.cli.parser import Parser, finite_float
from rl_training.cli.reporting import (
    add_output,
    add_selection,
    chosen_format,
    default_page,
    deliver,
    is_manifest,
    selected,
    words,
)
from rl_training.errors import ConfigError

OF_GROUPS = ("--statistic", "--score", "--confidence")
"""What says nothing about the page of a single run."""


def add_arguments(parser: Parser) -> None:
    """Which runs, how they are put together, and where to."""
    add_selection(parser)
    parser.add_argument(
        "--group-by",
        metavar="KEYS",
        type=words,
        help="algo, env, preset, seed, status, tags, run, or keys of the config, separated by commas "
        "(default: algo,env,preset)",
    )
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        help="name, runs, steps, score, best, time or speed; --sort=-time turns it round (default: name)",
    )
    parser.add_argument(
        "--statistic", choices=("iqm", "mean", "median"), default="iqm", help="over runs (default: iqm)"
    )
    parser.add_argument(
        "--threshold", metavar="RETURN", type=finite_float, help="also say how many runs reach it, and when"
    )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page of one run, or whatever was asked for of many."""
    if _is_single(args):
        from rl_training.zoo.report import write_report

        _require_no_groups(args)
        print(write_report(args.paths[0], args.output))
        return 0
    from rl_training.zoo import overview as views
    from rl_training.zoo.groups import GROUP_BY

    found, runs = selected(args)
    view = views.overview(
        found,
        runs,
        by=args.group_by or GROUP_BY,
        sort=args.sort or "name",
        which=args.score,
        statistic=args.statistic,
        confidence=args.confidence,
        threshold=args.threshold,
        sources=[str(path) for path in args.paths],
    )
    name, output = chosen_format(args), args.output
    if name == "html":
        from rl_training.zoo.overview_page import overview_page

        output = output or default_page(args.paths, "report.html")
        deliver(overview_page(view, command=shlex.join(["axiomrl", *sys.argv[1:]])), output)
        return 0
    writers = {
        "text": views.as_text, "json": views.as_json, "csv": views.as_csv, "markdown": views.as_markdown,
    }  # fmt: skip
    deliver(writers[name](view), output)
    return 0


def _is_single(args: argparse.Namespace) -> bool:
    """One run (or checkpoint, which is an error that says so), and nothing asked for that needs more."""
    from rl_training.experiment.runs import CONFIG, is_checkpoint_dir
    from rl_training.zoo.scan import PARTS

    if len(args.paths) > 1 or args.conditions or args.group_by or args.sort or args.threshold is not None:
        return False
    path: Path = args.paths[0]
    is_run = sum((path / part).exists() for part in PARTS) >= 2
    is_checkpoint = is_checkpoint_dir(path) and (path / CONFIG).exists()  # `zoo run` has a manifest, too
    own = is_run or is_checkpoint
    alone = own or (path.is_file() and not is_manifest(path))
    return alone and chosen_format(args, "html") == "html"


def _require_no_groups(args: argparse.Namespace) -> None:
    """An option that would do nothing is a mistake."""
    parser: Parser = args.parser
    asked = [name for name in OF_GROUPS if vars(args)[name[2:]] != parser.get_default(name[2:])]
    if asked:
        raise ConfigError(
            f"command line: {', '.join(asked)}: the page of a single run has no statistic over runs; "
            "leave it out, or ask for a table with --format text"
        )
