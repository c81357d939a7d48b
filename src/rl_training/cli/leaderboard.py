"""`axiomrl leaderboard`: rank algorithms, presets or anything else over envs."""

from __future__ import annotations

import argparse
import shlex
import sys

from rl_training.cli.parser import Parser, positive_int
from rl_training.cli.reporting import (
    add_output,
    add_selection,
    chosen_format,
    default_page,
    deliver,
    selected,
    words,
)
from rl_training.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    """Which runs, who competes, and by what."""
    add_selection(parser)
    parser.add_argument(
        "--by",
        metavar="KEYS",
        type=words,
        default=("algo",),
        help="who competes: algo, preset, or keys of the config, separated by commas (default: algo)",
    )
    parser.add_argument(
        "--statistic",
        choices=("iqm", "mean", "median", "gap"),
        default="iqm",
        help="what is ranked by; gap is the optimality gap, smaller is better (default: iqm)",
    )
    parser.add_argument(
        "--normalize",
        choices=("none", "reference", "human", "board"),
        help="what becomes 0 and 1: random and reference or human play, or the lowest and highest score of "
        "the board (default: none for one env, reference for several)",
    )
    parser.add_argument(
        "--min-seeds",
        type=positive_int,
        default=3,
        metavar="N",
        help="fewer on any env, and there is no rank (default: 3)",
    )
    parser.add_argument(
        "--per-env",
        action="store_true",
        help="also a board for each env; without it only where no two are ranked on all of them",
    )
    parser.add_argument("--baseline", metavar="NAME", help="also the distance of everybody from this one")
    parser.add_argument(
        "--exclude-drift",
        action="store_true",
        help="leave out runs that are not what their preset or manifest says",
    )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Rank and show."""
    from rl_training.zoo import leaderboard_text as texts
    from rl_training.zoo.keys import require_keys
    from rl_training.zoo.leaderboard import leaderboard

    if args.statistic == "gap" and args.normalize == "none":
        raise ConfigError(
            "command line: --statistic gap --normalize none: the optimality gap is the distance to 1 on a "
            "normalised scale; choose --normalize reference, human or board"
        )
    _, runs = selected(args)
    require_keys(runs, args.by, "--by")
    board = leaderboard(
        runs,
        by=args.by,
        statistic=args.statistic,
        scale=args.normalize,
        which=args.score,
        min_seeds=args.min_seeds,
        baseline=args.baseline,
        per_env=args.per_env,
        confidence=args.confidence,
        without_drift=args.exclude_drift,
    )
    name, output = chosen_format(args), args.output
    if name == "html":
        from rl_training.zoo.leaderboard_page import leaderboard_page

        output = output or default_page(args.paths, "leaderboard.html")
        deliver(leaderboard_page(board, command=shlex.join(["axiomrl", *sys.argv[1:]])), output)
        return 0
    writers = {
        "text": texts.as_text, "json": texts.as_json, "csv": texts.as_csv, "markdown": texts.as_markdown,
    }  # fmt: skip
    deliver(writers[name](board), output)
    return 0
