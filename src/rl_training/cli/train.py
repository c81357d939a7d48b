"""`axiomrl train`: a run from a preset, a file, or an algorithm and an env."""

from __future__ import annotations

import argparse

from rl_training.cli.output import add_json, reserved_stdout
from rl_training.cli.parser import Parser, positive_int

JSON_HELP = (
    "print one JSON object on stdout at the end (run_dir, checkpoint, best_checkpoint, global_step, metrics, "
    "status, stop_reason); everything else goes to stderr"
)
EVAL_EPISODES = 20
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
    add_seeds(parser)


def add_seeds(parser: Parser) -> None:
    """Several seeds by one command."""
    from rl_training.cli.launch import add_jobs
    from rl_training.cli.seeds import seed_list

    parser.add_argument(
        "--seeds",
        type=seed_list,
        metavar="1,2,3",
        help="one run a seed, each evaluated at its end, the results in one manifest; "
        "called again, it goes on with what is missing",
    )
    add_jobs(parser)
    parser.add_argument(
        "--eval-episodes",
        type=positive_int,
        metavar="N",
        help="with --seeds: episodes that the last checkpoint of each run is judged by "
        f"(default: {EVAL_EPISODES})",
    )


def run(args: argparse.Namespace) -> int:
    """Train, then say what came out and what can be done with it."""
    if args.seeds:
        return run_seeds(args)
    if args.jobs:
        args.parser.error("--jobs needs --seeds: it says how many of them are trained side by side")
    if args.eval_episodes:
        args.parser.error("--eval-episodes needs --seeds: it says how each of their runs is judged")
    from rl_training.cli.overrides import resolve
    from rl_training.cli.summary import finish
    from rl_training.runtime.progress import patient_streams

    with reserved_stdout(args.json or args.quiet), patient_streams():
        resolved = resolve(args)
        from rl_training import api

        result = api.start(resolved, init_from=args.init_from, progress=not args.quiet)
    return finish(result, as_json=args.json, quiet=args.quiet, imports=args.imports)


def run_seeds(args: argparse.Namespace) -> int:
    """Train every seed in a process of its own."""
    from pathlib import Path

    from rl_training.cli.launch import asked_config, execute, make_jobs, shown_command
    from rl_training.cli.overrides import resolve
    from rl_training.errors import ConfigError
    from rl_training.experiment.runs import output_folder
    from rl_training.zoo.manifest import Plan
    from rl_training.zoo.suites import Protocol, folder_name

    with reserved_stdout(args.json or args.quiet):
        resolved = resolve(args)
    if resolved.origins.get(("seed",)) == "command line":
        raise ConfigError("command line: --seed and --seeds cannot be combined")
    config = resolved.config
    selectors = {"--preset": args.preset, "--config": args.config, "--init-from": args.init_from}
    words = [word for name, value in selectors.items() if value is not None for word in (name, value)]
    words = shown_command(*words, *args.extra)[1:]  # each run gets an output directory of its own
    name = args.preset or (Path(args.config).stem if args.config else f"{config.algo}-{config.env_id}")
    folder = output_folder(config.output_dir) / folder_name(name)
    protocol = Protocol(episodes=args.eval_episodes or EVAL_EPISODES)
    jobs = make_jobs(name, resolved, words, args.seeds, protocol, folder, args.imports)
    seeds = ",".join(map(str, args.seeds))
    imports = [word for package in args.imports for word in ("--import", package)]
    judged = ["--seeds", seeds, "--eval-episodes", str(protocol.episodes)]
    command = shown_command("train", *words, *judged, *imports)
    plan = Plan(name, folder, command, jobs, protocol, configs={name: asked_config(resolved)})
    return execute(plan, args)[0]
