"""`axiomrl zoo` and the script `axiomrl-zoo`: results of many runs under the name that other zoos use.

`--format report` and `--format leaderboard` are other spellings of those two commands. Subcommands
(`zoo NAME …`) are rows in `SUBCOMMANDS`, each a module with `add_arguments` and `run` like any command's.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from rl_training.cli.parser import Parser, normalized

SUBCOMMANDS: dict[str, tuple[str, str]] = {}
"""Name → module of `rl_training.cli` and what it does."""
ALIASES = ("report", "leaderboard")


def add_arguments(parser: Parser) -> None:
    """Which view, how it is written, and the rest as that view takes it."""
    parser.overrides = True
    parser.add_argument(
        "--format",
        dest="view",
        choices=ALIASES,
        default="report",
        help="what to make of the runs (default: report)",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json", "csv", "markdown", "html"),
        help="the notation, `--format` of the command itself",
    )
    parser.usage = (
        "axiomrl zoo [--format {report,leaderboard}] [--output-format FORMAT] DIR [DIR ...] "
        "[options of that command]"
    )
    if SUBCOMMANDS:
        rows = "\n".join(f"  {name:<13}{text}" for name, (_, text) in SUBCOMMANDS.items())
        parser.epilog = f"subcommands:\n{rows}"


def run(args: argparse.Namespace) -> int:
    """Hand over to the command that does it."""
    words: list[str] = args.extra
    if words and words[0] in SUBCOMMANDS:
        return _call(f"zoo {words[0]}", *SUBCOMMANDS[words[0]], words[1:])
    from rl_training.cli import COMMANDS

    written = ["--format", args.output_format] if args.output_format else []
    return _call(args.view, *COMMANDS[args.view], [*words, *written])


def _call(name: str, module_name: str, help_text: str, argv: list[str]) -> int:
    module = import_module(f"rl_training.cli.{module_name}")
    argv = normalized(argv)
    parser = Parser(name, help_text, argv)
    module.add_arguments(parser)
    return int(module.run(parser.parse(argv)))
