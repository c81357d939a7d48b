"""`axiomrl compare`: is B better or worse than A beyond noise? Made for people and for CI."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rl_training.cli.parser import Parser
from rl_training.cli.reporting import add_index, add_output, add_score, chosen_format, deliver, fraction


def add_arguments(parser: Parser) -> None:
    """The two sides, and what counts as a regression."""
    for name, text in (("a", "what is compared with"), ("b", "what is judged")):
        parser.add_argument(
            name, metavar=name.upper(), type=Path, help=f"{text}: a run, a directory of runs, or a manifest"
        )
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="exit with 1 if B is worse than A beyond noise",
    )
    parser.add_argument(
        "--on",
        choices=("return", "speed", "both"),
        default="return",
        help="what --fail-on-regression looks at (default: return)",
    )
    parser.add_argument(
        "--tolerance",
        type=fraction,
        default=0.0,
        metavar="SHARE",
        help="differences up to this share of A do not count, as in 0.05 (default: 0)",
    )
    add_score(parser)
    add_index(parser)
    add_output(parser, ("text", "json", "markdown", "csv"))


def run(args: argparse.Namespace) -> int:
    """Compare, tell, and answer 1 for a regression if asked to."""
    from rl_training.experiment.files import to_json
    from rl_training.zoo.compare import compare_returns, compare_speeds, comparison_data, match
    from rl_training.zoo.compare_text import comparison_table, remarks, sentence
    from rl_training.zoo.sources import runs_of

    sides = [runs_of(path, use_index=not args.no_index) for path in (args.a, args.b)]
    matched = match(*sides)
    comparisons = [compare_returns(matched, which=args.score, tolerance=args.tolerance)]
    if (speed := compare_speeds(matched, tolerance=args.tolerance)) is not None:
        comparisons.append(speed)
    looked_at = ("return", "speed") if args.on == "both" else (args.on,)
    regressed = any(c.verdict == "worse" for c in comparisons if c.name in looked_at)
    name = chosen_format(args)
    if name == "json":
        data = {c.name: comparison_data(c) for c in comparisons}
        only = {"only_a": list(matched.only_a), "only_b": list(matched.only_b)}
        text = (
            to_json({"a": str(args.a), "b": str(args.b), **data, **only, "regression": regressed}, indent=1)
            + "\n"
        )
    elif name == "csv":
        text = comparison_table(comparisons[0]).csv()
    else:
        head = [f"A: {args.a} ({_count(sides[0])})", f"B: {args.b} ({_count(sides[1])})", ""]
        blank = "\n\n" if name == "markdown" else "\n"
        tables = [
            (t.markdown() if name == "markdown" else t.text()) + "\n"
            for t in map(comparison_table, comparisons)
        ]
        verdicts = [sentence(comparison) for comparison in comparisons]
        notes = [f"({note})" for note in remarks(comparisons, matched)]
        text = blank.join(head) + "\n" + "".join(tables) + blank.join([*verdicts, "", *notes]) + "\n"
    deliver(text, args.output)
    return int(regressed and args.fail_on_regression)


def _count(runs: Sequence[object]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"
