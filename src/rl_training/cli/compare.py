"""`axiomrl compare`: is B better or worse than A beyond noise? Made for people and for CI."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.parser import Parser
from rl_training.cli.reporting import add_index, add_output, add_score, chosen_format, deliver, fraction

if TYPE_CHECKING:
    from rl_training.zoo.compare import Comparison
    from rl_training.zoo.pairing import Matched, Value
    from rl_training.zoo.summaries import RunSummary


def add_arguments(parser: Parser) -> None:
    """The two sides, and what counts as a regression."""
    for name, text in (("a", "what is compared with"), ("b", "what is judged")):
        parser.add_argument(
            name, metavar=name.upper(), type=Path, help=f"{text}: a run, a directory of runs, or a manifest"
        )
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="exit with 1 if B is worse than A beyond noise, or lacks runs or tasks that A has",
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
    """Compare, tell, and answer 1 for a regression or for less than A has, if asked to."""
    from rl_training.errors import AxiomError
    from rl_training.zoo.compare import compare_returns, compare_speeds
    from rl_training.zoo.compare_text import remarks
    from rl_training.zoo.pairing import conditions, match, shortfalls, without_result
    from rl_training.zoo.sources import runs_of

    sides = [runs_of(path, use_index=not args.no_index) for path in (args.a, args.b)]
    matched = match(*sides)
    measures: dict[str, tuple[Value, str]] = {
        "return": (lambda run: run.score(args.score), "evaluation"),
        "speed": (lambda run: run.steps_per_second or None, "speed"),
    }
    found = (
        compare_returns(matched, which=args.score, tolerance=args.tolerance),
        compare_speeds(matched, tolerance=args.tolerance),
    )
    comparisons = [comparison for comparison in found if comparison is not None]
    looked_at = ("return", "speed") if args.on == "both" else (args.on,)
    missing = {name: shortfalls(matched, *measures[name]) for name in looked_at}
    for name in looked_at:
        if not missing[name] and all(comparison.name != name for comparison in comparisons):
            other = "; --on speed compares speeds" if name == "return" and comparisons else ""
            raise AxiomError(f"nothing to compare: no {measures[name][1]} has been recorded in A{other}")
    told = [gap for gaps in missing.values() for gap in gaps]
    lacking = [note for name in {"return": 0, **missing} for note in without_result(matched, *measures[name])]
    notes = [
        *remarks(comparisons),
        *(note for note in lacking if note not in told),
        *conditions(matched, args.score),
    ]
    regressed = any(c.verdict == "worse" for c in comparisons if c.name in looked_at)
    deliver(_rendered(args, sides, matched, comparisons, missing, notes, regressed), args.output)
    return int(args.fail_on_regression and (regressed or bool(told)))


def _rendered(
    args: argparse.Namespace,
    sides: Sequence[Sequence[RunSummary]],
    matched: Matched,
    comparisons: Sequence[Comparison],
    missing: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    regressed: bool,
) -> str:
    """The result in the notation asked for."""
    from rl_training.experiment.files import to_json
    from rl_training.zoo.compare import comparison_data
    from rl_training.zoo.compare_text import as_csv, comparison_table, sentence

    style = chosen_format(args)
    if style == "csv":
        return as_csv(comparisons)
    if style == "json":
        data = {
            "a": str(args.a), "b": str(args.b), "return": None,
            **{comparison.name: comparison_data(comparison) for comparison in comparisons},
            "only_a": matched.only_a, "only_b": matched.only_b, "missing": missing, "notes": notes,
            "regression": regressed,
        }  # fmt: skip
        return to_json(data, indent=1) + "\n"
    is_markdown = style == "markdown"
    blank = "\n\n" if is_markdown else "\n"
    head = [f"A: {args.a} ({_count(sides[0])})", f"B: {args.b} ({_count(sides[1])})", ""]
    tables = [(t.markdown() if is_markdown else t.text()) + "\n" for t in map(comparison_table, comparisons)]
    verdicts = [sentence(comparison) for comparison in comparisons]
    verdicts += [f"{name}: B is incomplete: {gap}" for name, gaps in missing.items() for gap in gaps]
    lines = [*verdicts, "", *(f"({note})" for note in notes)]
    return blank.join(head) + "\n" + "".join(tables) + blank.join(lines) + "\n"


def _count(runs: Sequence[object]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"
