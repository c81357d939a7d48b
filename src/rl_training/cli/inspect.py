"""`axiomrl inspect`: what a checkpoint holds, as hashes that can be compared, or what differs between two."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import add_json, columns, print_json, reserved_stdout
from rl_training.cli.parser import Parser

if TYPE_CHECKING:
    from rl_training.experiment.fingerprint import Contents, Difference

SHOWN = 10
"""Entries listed a component; `--json` lists all of them."""


def add_arguments(parser: Parser) -> None:
    """One path or two."""
    parser.add_argument(
        "first", metavar="RUN_OR_CHECKPOINT", help="a run directory (its latest) or a checkpoint"
    )
    parser.add_argument(
        "second", metavar="OTHER", nargs="?", help="another one: list what differs, exit 1 if anything does"
    )
    add_json(
        parser,
        "print one object: checkpoint, format_version, step, sizes, fingerprint; "
        "of two: equal, first, second, differences",
    )


def run(args: argparse.Namespace) -> int:
    """Describe one checkpoint, or compare two."""
    from rl_training.experiment.find import find_checkpoint
    from rl_training.experiment.fingerprint import compare, read_contents

    paths = [args.first] if args.second is None else [args.first, args.second]
    with reserved_stdout():
        contents = [read_contents(find_checkpoint(path, "latest")) for path in paths]
    if len(contents) == 1:
        print_json(contents[0].describe()) if args.json else _print_one(contents[0])
        return 0
    differences = compare(*contents)
    if args.json:
        print_json(_as_json(contents, differences))
    else:
        _print_two(contents, differences)
    return 1 if differences else 0


def _as_json(contents: list[Contents], differences: list[Difference]) -> dict[str, Any]:
    from dataclasses import asdict

    first, second = (one.describe() for one in contents)
    return {
        "equal": not differences,
        "first": first,
        "second": second,
        "differences": [asdict(difference) for difference in differences],
    }


def _print_one(contents: Contents) -> None:
    total = sum(contents.sizes.values())
    print(f"checkpoint  {contents.path}\nformat      {contents.format_version}")
    print(f"step        {contents.step:,}\nsize        {total:,} bytes in {len(contents.sizes)} files\n")
    print("\n".join(columns([[name, digest] for name, digest in contents.fingerprint().items()])))


def _print_two(contents: list[Contents], differences: list[Difference]) -> None:
    by_component: dict[str, list[Difference]] = {}
    for difference in differences:
        by_component.setdefault(difference.component, []).append(difference)
    for component, found in by_component.items():
        print(
            f"{component}: {found[0].detail}" if component == "step" else f"{component}: {len(found)} differ"
        )
        rows = [[d.entry, d.detail, _amount(d)] for d in found[:SHOWN] if d.entry]
        print("\n".join(columns(rows, "  ")), end="\n" if rows else "")
        if len(found) > SHOWN:
            print(f"  … and {len(found) - SHOWN} more")
    same = [name for name in contents[0].components if name not in by_component]
    print(f"equal: {', '.join(same) or 'nothing'}")


def _amount(difference: Difference) -> str:
    return "" if difference.largest is None else f"by at most {difference.largest:.3g}"
