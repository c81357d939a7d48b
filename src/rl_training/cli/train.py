"""`axiomrl train`: a run from a preset, a file, or an algorithm and an env."""

from __future__ import annotations

import argparse

from rl_training.cli.output import add_json, reserved_stdout
from rl_training.cli.parser import Parser

JSON_HELP = (
    "print one JSON object on stdout at the end (run_dir, checkpoint, best_checkpoint, global_step, metrics, "
    "status, stop_reason); everything else goes to stderr"
)
QUIET_HELP = "no progress and no summary; without --json, only the run directory is printed"


def add_arguments(parser: Parser) -> None:
    """Selectors, overrides, and how to report."""
    from rl_training.cli.overrides import add_selectors

    add_selectors(parser)
    parser.add_argument(
        "--init-from", metavar="CHECKPOINT", help="start from these weights, and nothing else"
    )
    add_json(parser, JSON_HELP)
    parser.add_argument("--quiet", action="store_true", help=QUIET_HELP)


def run(args: argparse.Namespace) -> int:
    """Train, then say what came out and what can be done with it."""
    from rl_training.cli.overrides import resolve
    from rl_training.cli.summary import finish

    with reserved_stdout(args.json or args.quiet):
        resolved = resolve(args)
        from rl_training import api

        result = api.start(resolved, init_from=args.init_from, progress=not args.quiet)
    return finish(result, as_json=args.json, quiet=args.quiet)
