"""`axiomrl profile`: where the time of training goes, and which settings would be faster here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.output import add_json, print_json, reserved_stdout
from rl_training.cli.parser import Parser, positive_float

if TYPE_CHECKING:
    from rl_training.experiment.layers import Resolved
    from rl_training.profiling.profile import Profile
    from rl_training.profiling.tuning import Tuned


def add_arguments(parser: Parser) -> None:
    """The selectors and overrides of `train`, how long, and what to do with the result."""
    from rl_training.cli.overrides import add_selectors

    add_selectors(parser)
    parser.add_argument(
        "--seconds",
        type=positive_float,
        default=60.0,
        metavar="S",
        help="how long training is watched; every setting tried takes a tenth of that more (default: 60)",
    )
    parser.add_argument(
        "--autotune",
        action="store_true",
        help="combine what is faster and write it to a file (-o) that `train` takes",
    )
    parser.add_argument(
        "--change-data",
        action="store_true",
        help="with --autotune: also settings that change what the algorithm learns from",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the YAML file for --autotune")
    add_json(parser, "print one JSON object on stdout")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text, or json as with --json"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, then say what was found. No run directory is made."""
    if args.autotune and args.output is None:
        args.parser.error("--autotune needs -o FILE: where to write the settings")
    for option, given in (("-o", args.output is not None), ("--change-data", args.change_data)):
        if given and not args.autotune:
            args.parser.error(f"{option} needs --autotune")
    from rl_training.cli.overrides import resolve
    from rl_training.profiling.overrides import require_writable

    args.json |= args.format == "json"
    base = None if args.config is None else Path(args.config)
    with reserved_stdout(args.json):
        resolved = resolve(args)
        if args.output is not None:
            require_writable(args.output, base)
    found: Profile | None = None
    try:
        with reserved_stdout(args.json):
            from rl_training.profiling.profile import stages

            choice = {"autotune": args.autotune, "change_data": args.change_data}
            for stage in stages(resolved, seconds=args.seconds, **choice, say=_say):
                found = stage
    finally:  # whatever ends it, what is known by then is not lost, neither here nor in the file
        try:
            if found is not None:
                _print(args, found)
        finally:
            if found is not None and found.tuned is not None:
                _write(args, found.tuned, resolved, base)
    return 0


def _print(args: argparse.Namespace, profile: Profile) -> None:
    """What was found."""
    from rl_training.profiling.data import to_data
    from rl_training.profiling.render import as_text

    if args.json:
        data = to_data(profile)
        if profile.tuned is not None:
            data["autotune"] |= {"file": str(args.output), "command": _use(args)}
        print_json({"preset": args.preset, **data})
        return
    selectors = {"--preset": args.preset, "--config": args.config}
    words = [word for name, value in selectors.items() if value is not None for word in (name, value)]
    print(as_text(profile, ["axiomrl", "train", *words, *_imports(args), *args.extra]), end="", flush=True)


def _write(args: argparse.Namespace, tuned: Tuned, resolved: Resolved, base: Path | None) -> None:
    """Write the settings that were kept."""
    from rl_training.cli.overrides import override_layer
    from rl_training.profiling.overrides import write_overrides
    from rl_training.profiling.render import as_command

    given = override_layer(args, resolved.config.algo).values
    write_overrides(args.output, tuned, preset=args.preset, base=base, given=given)
    if not args.json:
        print(f"\n{args.output}: written; use it by", *as_command(_use(args)), sep="\n")


def _use(args: argparse.Namespace) -> list[str]:
    """The command that trains with what was written."""
    return ["axiomrl", "train", "--config", str(args.output), *_imports(args)]


def _imports(args: argparse.Namespace) -> list[str]:
    return [word for name in args.imports for word in ("--import", name)]


def _say(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)
