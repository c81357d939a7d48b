"""`axiomrl zoo list`: the suites there are."""

from __future__ import annotations

import argparse

from rl_training.cli.output import add_json, columns, print_json
from rl_training.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Nothing but the form of the answer."""
    add_json(parser, "print JSON on stdout: a list of name, description, presets, seeds")


def run(args: argparse.Namespace) -> int:
    """Print one line a suite."""
    from rl_training.zoo.suites import load_suite, suite_names

    suites = [load_suite(name) for name in suite_names()]
    if args.json:
        keys = ("name", "description", "seeds")
        print_json([{**{key: getattr(s, key) for key in keys}, "presets": list(s.presets)} for s in suites])
        return 0
    rows = [["SUITE", "PRESETS", "SEEDS", "WHAT IT IS"]]
    rows += [[s.name, str(len(s.presets)), str(len(s.seeds)), s.description] for s in suites]
    print("\n".join(columns(rows)))
    return 0
