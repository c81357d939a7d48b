"""`axiomrl zoo` and the script `axiomrl-zoo`: suites of presets, and results of many runs.

Subcommands (`zoo NAME …`) are rows in `SUBCOMMANDS`, each a module with `add_arguments` and `run` like any
command's. `--format report` and `--format leaderboard` are other spellings of those two commands.
"""

from __future__ import annotations

import argparse
import os

from rl_training.cli.parser import Parser
from rl_training.errors import UnknownNameError, nearest

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "list": ("zoo_list", "list the suites"),
    "show": ("zoo_show", "say what a suite runs, how it is judged and what is expected of it"),
    "commands": ("zoo_commands", "print the commands that a suite consists of, to be copied"),
    "run": ("zoo_run", "run a suite or a preset over several seeds; called again, it goes on"),
    "verify": ("zoo_verify", "run a suite or a preset and check that it scores what is expected of it"),
}
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
        f"axiomrl zoo {{{','.join(SUBCOMMANDS)}}} [options]\n"
        "       axiomrl zoo [--format {report,leaderboard}] [--output-format FORMAT] DIR [DIR ...] "
        "[options of that command]"
    )
    rows = "\n".join(f"  {name:<13}{text}" for name, (_, text) in SUBCOMMANDS.items())
    parser.epilog = f"subcommands:\n{rows}\n\n`axiomrl zoo run --help` shows what one takes."


def run(args: argparse.Namespace) -> int:
    """Hand over to the command that does it."""
    from rl_training.cli import COMMANDS, run_command

    words: list[str] = args.extra
    if not words:
        args.parser.error(f"give one of {', '.join(SUBCOMMANDS)}, or directories of runs to report on")
    if words and not os.path.exists(words[0]) and nearest(words[0], SUBCOMMANDS):
        raise UnknownNameError("subcommand", words[0], SUBCOMMANDS, "`axiomrl zoo --help` shows them.")
    written = ["--format", args.output_format] if args.output_format else []
    return run_command(args.view, COMMANDS[args.view], [*words, *written])
