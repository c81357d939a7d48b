"""`axiomrl zoo show`: what a suite runs, how it is judged and what is expected of it."""

from __future__ import annotations

import argparse

from rl_training.cli.extras import extra_of, is_installed, pip_install
from rl_training.cli.output import add_json, columns, print_json
from rl_training.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Which suite."""
    parser.add_argument("suite", metavar="SUITE", help="a suite, a file of one (.yaml), or a preset")
    add_json(parser, "print one object: name, description, seeds, evaluation, presets")


def run(args: argparse.Namespace) -> int:
    """Print the suite, a line a preset."""
    from dataclasses import asdict

    from rl_training.experiment.presets import load_preset
    from rl_training.zoo.bands import band_text
    from rl_training.zoo.suites import find_target

    suite = find_target(args.suite)
    entries = suite.entries
    if args.json:
        presets = {name: asdict(entry) for name, entry in entries.items()}
        print_json({**asdict(suite), "presets": presets})
        return 0
    protocol = suite.evaluation
    print(f"{suite.name}: {suite.description}")
    print(
        f"seeds {', '.join(map(str, suite.seeds))}; judged by {protocol.episodes} episodes a seed of the ",
        end="",
    )
    print(f"{protocol.checkpoint} checkpoint, the mean over seeds in its band\n")
    rows = [["PRESET", "ENV", "STEPS", "BAND", "BASIS", "NEEDS"]]
    for name, entry in entries.items():
        env = str(load_preset(name).data["env_id"])
        extra = extra_of(env)
        needs = "" if is_installed(extra) or extra is None else pip_install(extra)
        rows.append([name, env, f"{entry.steps:,}", band_text(entry.band), entry.basis or "-", needs])
    print("\n".join(columns(rows)))
    return 0
