"""`axiomrl zoo run`: a suite or a preset over several seeds, each run an ordinary training process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.launch import OVERRIDES, add_jobs
from rl_training.cli.output import add_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, positive_int
from rl_training.cli.seeds import seed_count, seed_list

if TYPE_CHECKING:
    from rl_training.zoo.manifest import Plan


def add_arguments(parser: Parser) -> None:
    """What is run, with which seeds, where the results go."""
    parser.usage = f"{parser.prog} SUITE|PRESET [options] [--FIELD VALUE ...]"
    add_common(parser)
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="also write one file of results a preset, as in benchmarks/results",
    )
    parser.add_argument("--label", help="appended to the names of those files, for runs with other settings")
    parser.overrides = True
    parser.details = lambda _: OVERRIDES


def add_common(parser: Parser) -> None:
    """What `run` and `verify` share."""
    parser.add_argument("target", metavar="SUITE|PRESET", help="a suite, a file of one (.yaml), or a preset")
    parser.add_argument(
        "--num-seeds", type=seed_count, metavar="N", help="so many seeds (default: the suite's)"
    )
    parser.add_argument("--seeds", type=seed_list, metavar="1,2,3", help="these seeds, instead")
    add_jobs(parser)
    parser.add_argument(
        "--episodes", type=positive_int, metavar="N", help="episodes a seed (default: the suite's)"
    )
    parser.add_argument("--output-dir", metavar="DIR", help="where the runs lie (default: runs/zoo/NAME)")
    parser.add_argument(
        "--commit", metavar="HASH", help="the commit that runs, where there is no repository to ask"
    )
    add_import(parser)
    add_json(parser, "print the manifest on stdout at the end; everything else goes to stderr")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")


def run(args: argparse.Namespace) -> int:
    """Run what is missing, then report."""
    from rl_training.cli.launch import execute
    from rl_training.experiment.files import require_writable
    from rl_training.zoo.manifest import write_results

    if args.label and Path(args.label).name != args.label:
        args.parser.error(f"--label: expected a part of a file name, got {args.label!r}")
    plan = make_plan(args, "run")
    if args.results:
        require_writable(Path(args.results))  # not after hours of training
    code, manifest = execute(plan, args)
    if args.results:
        for path in write_results(manifest, Path(args.results), args.label):
            if not args.json and not args.quiet:
                print(f"results: {path}")
    return code


def make_plan(args: argparse.Namespace, verb: str) -> Plan:
    """The runs that the arguments ask for."""
    from rl_training.cli.launch import shown_command, suite_plan
    from rl_training.zoo.suites import find_target

    if args.seeds and args.num_seeds:
        args.parser.error("--seeds and --num-seeds cannot be combined: --seeds says which, and so how many")
    suite = find_target(args.target)
    seeds = ",".join(map(str, args.seeds)) if args.seeds else None
    options = {"--num-seeds": args.num_seeds, "--seeds": seeds, "--episodes": args.episodes}
    given = [word for name, value in options.items() if value for word in (name, str(value))]
    given += [word for name in args.imports for word in ("--import", name)]
    with reserved_stdout(args.json or args.quiet):
        return suite_plan(args, suite, shown_command("zoo", verb, args.target, *given, *args.extra))
