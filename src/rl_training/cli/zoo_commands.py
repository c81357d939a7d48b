"""`axiomrl zoo commands`: a suite as commands to be copied, or to be handed to a scheduler."""

from __future__ import annotations

import argparse
import shlex

from rl_training.cli.parser import Parser
from rl_training.cli.seeds import seed_count


def add_arguments(parser: Parser) -> None:
    """Which suite, how many seeds."""
    parser.add_argument("suite", metavar="SUITE", help="a suite, a file of one (.yaml), or a preset")
    parser.add_argument("--num-seeds", type=seed_count, metavar="N", help="default: the suite's seeds")


def run(args: argparse.Namespace) -> int:
    """Print one command a run."""
    from rl_training.cli.launch import require_sound_overrides
    from rl_training.zoo.suites import find_target, first_seeds, train_arguments

    suite = find_target(args.suite)
    require_sound_overrides(args.suite, suite, args.parser)
    for preset, entry in suite.entries.items():
        for seed in first_seeds(suite.seeds, args.num_seeds):
            words = ["axiomrl", "train", *train_arguments(preset, entry), "--seed", str(seed)]
            print(shlex.join(words))
    return 0
