"""`axiomrl config`: the configuration that `train` would use, and where each value comes from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import add_json, print_json, reserved_stdout
from rl_training.cli.parser import Parser

if TYPE_CHECKING:
    from rl_training.experiment.config import KeyPath

    Origins = Mapping[KeyPath, str]


def add_arguments(parser: Parser) -> None:
    """The selectors and overrides of `train`."""
    from rl_training.cli.overrides import add_selectors

    add_selectors(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say of each value: default, preset, file and line, or command line",
    )
    add_json(parser, 'print JSON instead of YAML; with --explain each value is {"value", "origin"}')


def run(args: argparse.Namespace) -> int:
    """Resolve and print."""
    from rl_training.cli.overrides import resolve
    from rl_training.experiment import yaml
    from rl_training.experiment.config import to_dict

    with reserved_stdout():
        resolved = resolve(args)
    data = to_dict(resolved.config)
    if args.json:
        print_json(_with_origins(data, resolved.origins) if args.explain else data)
    elif args.explain:
        print(_explained(data, resolved.origins))
    else:
        print(yaml.dump(data), end="")
    return 0


def _explained(data: Mapping[str, Any], origins: Origins) -> str:
    """YAML with a comment behind each value."""
    lines = list(_lines(data, origins, ()))
    width = max(len(text) for text, origin in lines if origin)
    return "\n".join(f"{text:<{width}}  # {origin}" if origin else text for text, origin in lines)


def _lines(data: Mapping[str, Any], origins: Origins, at: KeyPath) -> Iterator[tuple[str, str]]:
    from rl_training.experiment import yaml

    indent = "  " * len(at)
    for key, value in data.items():
        path = (*at, key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:", ""
            yield from _lines(value, origins, path)
        else:
            yield f"{indent}{yaml.dump_line({key: value})}", origins.get(path, "default")


def _with_origins(data: Mapping[str, Any], origins: Origins, at: KeyPath = ()) -> dict[str, Any]:
    return {
        key: _with_origins(value, origins, (*at, key))
        if isinstance(value, Mapping) and value
        else {"value": value, "origin": origins.get((*at, key), "default")}
        for key, value in data.items()
    }
