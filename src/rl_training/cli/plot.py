"""`axiomrl plot`: learning curves with bands as a picture file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl_training.cli.parser import Parser, finite_float
from rl_training.cli.reporting import add_selection, selected, words


def add_arguments(parser: Parser) -> None:
    """Which runs, what is one line, and where to."""
    add_selection(parser)
    parser.add_argument(
        "--group-by",
        metavar="KEYS",
        type=words,
        help="what makes a line: algo, env, preset, seed, run, keys of the config (default: algo,env,preset)",
    )
    parser.add_argument("--title", default="", metavar="TEXT", help="above the picture")
    parser.add_argument("--threshold", metavar="RETURN", type=finite_float, help="draw a line at this return")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("curves.png"),
        help="a .png, .svg or .pdf file (default: curves.png)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Draw, and print where the picture is."""
    from rl_training.zoo.figures import plot_groups
    from rl_training.zoo.groups import GROUP_BY, group_runs
    from rl_training.zoo.series import panels

    _, runs = selected(args)
    groups = group_runs(runs, args.group_by or GROUP_BY, which=args.score, confidence=args.confidence)
    options = {"title": args.title, "threshold": args.threshold, "confidence": args.confidence}
    print(plot_groups(groups, args.output, **options))
    for panel in panels(groups):
        if panel.left_out:
            print(f"{panel.title}: {panel.left_out}; --filter chooses which are", file=sys.stderr)
    return 0
