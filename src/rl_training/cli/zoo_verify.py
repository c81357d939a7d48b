"""`axiomrl zoo verify`: does a preset still score what is expected of it?"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rl_training.cli.parser import Parser
from rl_training.cli.zoo_run import add_common, make_plan

if TYPE_CHECKING:
    from rl_training.zoo.manifest import Plan

_SHOWN = 5


def add_arguments(parser: Parser) -> None:
    """What is verified, with which seeds."""
    parser.usage = f"{parser.prog} SUITE|PRESET [options]"
    add_common(parser)


def _require_code_of_now(plan: Plan) -> None:
    """Runs that are there speak for the code that made them, and for no other."""
    from rl_training.errors import ConfigError
    from rl_training.zoo.origin import made_from_changes, made_otherwise

    if old := made_otherwise(plan.jobs, plan.commit):
        shown = [f"{job.run_dir()}: made by other code: {reason}" for job, reason in old.items()][:_SHOWN]
        more = [f"… and {len(old) - _SHOWN} more"] if len(old) > _SHOWN else []
        advice = "they do not say what the code of now scores: give another --output-dir, or remove them"
        raise ConfigError([*shown, *more, advice])
    if unclear := made_from_changes(plan.jobs):
        print(
            f"warning: {len(unclear)} of the runs that are there were made with uncommitted changes; "
            "nothing tells whether these are the changes of now",
            file=sys.stderr,
        )


def run(args: argparse.Namespace) -> int:
    """Run what is missing and compare with the bands: exit code 1 where one is missed."""
    from rl_training.cli.launch import execute
    from rl_training.errors import ConfigError

    plan = make_plan(args, "verify")
    if not plan.bands:
        raise ConfigError(
            f"{args.target}: no suite says what is expected of it; `axiomrl zoo show` shows bands"
        )
    _require_code_of_now(plan)
    code, manifest = execute(plan, args)
    missed = [
        name for name in plan.bands if manifest["summary"][name]["verdict"] not in ("inside", "incomplete")
    ]
    for name in missed:
        summary = manifest["summary"][name]
        print(f"{name}: {summary['mean']:.1f} is {summary['verdict']} its band", file=sys.stderr)
    return code or int(bool(missed))
