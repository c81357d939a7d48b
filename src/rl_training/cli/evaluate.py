"""`axiomrl eval`: what a trained agent is worth."""

from __future__ import annotations

import argparse

from rl_training.cli.output import add_json, columns, print_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, import_modules, non_negative_int, positive_int
from rl_training.garbage import importing_torch


def add_arguments(parser: Parser) -> None:
    """Which agent, how long, and whether to watch it."""
    parser.add_argument(
        "--checkpoint", required=True, metavar="RUN_OR_CHECKPOINT", help="a run directory or a checkpoint"
    )
    parser.add_argument(
        "--which",
        choices=("best", "latest"),
        default="best",
        help="the checkpoint of a run directory (default: best)",
    )
    parser.add_argument(
        "--num-episodes",
        type=positive_int,
        default=10,
        metavar="N",
        help="full episodes to play (default: 10)",
    )
    parser.add_argument(
        "--seed",
        type=non_negative_int,
        metavar="S",
        help="which episodes; default: the run's own test episodes",
    )
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--stochastic",
        dest="deterministic",
        action="store_false",
        default=None,
        help="sample actions (default: as the run's evaluation.deterministic says)",
    )
    actions.add_argument(
        "--deterministic", action="store_true", default=None, help="take the likeliest actions"
    )
    parser.add_argument("--render", action="store_true", help="show the env in a window")
    parser.add_argument("--video", metavar="FILE.mp4", help="record the episodes (extra: video)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add_import(parser)
    add_json(
        parser,
        "print a JSON object on stdout: return_mean, return_std, returns, lengths, num_episodes, checkpoint, "
        "and success_rate where the env says whether its goal was reached",
    )


def run(args: argparse.Namespace) -> int:
    """Play and report."""
    if args.render and args.video:
        args.parser.error("--render and --video cannot be combined: an env draws in one way only")
    with reserved_stdout(args.json):
        import_modules(args.imports)
        with importing_torch():
            from rl_training import api

        result = api.evaluate(
            args.checkpoint,
            which=args.which,
            num_episodes=args.num_episodes,
            seed=args.seed,
            deterministic=args.deterministic,
            render=args.render,
            video=args.video,
            device=args.device,
        )
    if args.json:
        print_json(result)
        return 0
    returns = result["returns"]
    rows = [
        ("return", f"{result['return_mean']:.2f} ± {result['return_std']:.2f}"),
        ("lowest, highest", f"{min(returns):.2f}, {max(returns):.2f}"),
        *([("success rate", f"{result['success_rate']:.3f}")] if "success_rate" in result else []),
        ("length", f"{result['length_mean']:.1f}"),
        ("episodes", str(result["num_episodes"])),
        ("checkpoint", result["checkpoint"]),
        *([("video", args.video)] if args.video else []),
    ]
    print("\n".join(columns(rows)))
    return 0
