"""`axiomrl zoo verify`: does a preset still score what is expected of it?"""

from __future__ import annotations

import argparse
import sys

from rl_training.cli.parser import Parser
from rl_training.cli.zoo_run import add_common, make_plan


def add_arguments(parser: Parser) -> None:
    """What is verified, with which seeds."""
    parser.usage = f"{parser.prog} SUITE|PRESET [options]"
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Run what is missing and compare with the bands: exit code 1 where one is missed."""
    from rl_training.cli.launch import execute
    from rl_training.errors import ConfigError

    plan = make_plan(args, "verify")
    if not plan.bands:
        raise ConfigError(
            f"{args.target}: no suite says what is expected of it; `axiomrl zoo show` shows bands"
        )
    code, manifest = execute(plan, args)
    missed = [
        name for name in plan.bands if manifest["summary"][name]["verdict"] not in ("inside", "incomplete")
    ]
    for name in missed:
        summary = manifest["summary"][name]
        print(f"{name}: {summary['mean']:.1f} is {summary['verdict']} its band", file=sys.stderr)
    return code or int(bool(missed))
