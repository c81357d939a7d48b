"""Writes the field tables of `docs/config-schema.md` from the dataclasses that define the configuration.

python docs/generate_config_schema.py            rewrite the generated part of the page
python docs/generate_config_schema.py --check    exit 1 if the page is out of date
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from generated import bring_up_to_date, with_generated

from rl_training import registry
from rl_training.experiment.config import TrainConfig
from rl_training.schema import field_docs

PAGE = Path(__file__).with_name("config-schema.md")
NAMES = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "null",
    Any: "any value",
}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def generated() -> str:
    """Every section of the configuration, and the hyperparameters of every algorithm."""
    sections = [_section("Top level", (), TrainConfig)]
    sections += [_section(f"`{'.'.join(path)}`", path, cls) for path, cls in _sections(TrainConfig)]
    sections += [
        _section(
            f"`hyperparams` of `{entry.id}`",
            ("hyperparams",),
            entry.cls.Hyperparams,
            entry.fixed,
            entry.defaults,
        )
        for entry in registry.algorithms().values()
    ]
    return "\n\n".join(sections)


def render(page: str) -> str:
    """The page with its generated part brought up to date."""
    return with_generated(page, generated())


def describe(kind: Any) -> str:
    """A type in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([describe(args[0]), *filter(None, [" and ".join(_bounds(args[1:]))])])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(part) for part in args)
    if origin is tuple:
        is_list = len(args) == 2 and args[1] is Ellipsis
        return f"list of {describe(args[0])}" if is_list else f"[{', '.join(describe(a) for a in args)}]"
    if origin is dict:
        return "mapping"
    return NAMES[kind]


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    """The limits that an annotation sets."""
    for item in metadata:
        for constraint in (item, *getattr(item, "metadata", ())):
            for name, sign in BOUNDS.items():
                if (limit := getattr(constraint, name, None)) is not None:
                    yield f"{sign} {limit:g}"


def _sections(cls: type[Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[Any]]]:
    """Every section of a configuration, and the sections inside it, each with its path."""
    for f in dataclasses.fields(cls):
        if isinstance(f.default_factory, type) and dataclasses.is_dataclass(f.default_factory):
            yield (*at, f.name), f.default_factory
            yield from _sections(f.default_factory, (*at, f.name))


def _section(title: str, at: tuple[str, ...], cls: type[Any], fixed: Any = None, defaults: Any = None) -> str:
    hints, docs = get_type_hints(cls, include_extras=True), field_docs(cls)
    nested = {path[0] for path, _ in _sections(cls)} | ({"hyperparams"} if cls is TrainConfig else set())
    rows = ["| key | type | default | what it does |", "|---|---|---|---|"]
    for f in dataclasses.fields(cls):
        is_section = f.name in nested
        kind = "section" if is_section else describe(hints[f.name])
        default = "" if is_section else _default(f, fixed or {}, defaults or {})
        rows.append(f"| `{'.'.join((*at, f.name))}` | {kind} | {default} | {docs[f.name]} |")
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    return "\n".join([f"### {title}", "", summary, "", *rows])


def _default(f: dataclasses.Field[Any], fixed: dict[str, Any], defaults: dict[str, Any]) -> str:
    if f.name in fixed:
        return f"`{_plain(fixed[f.name])}` (fixed)"
    if f.name in defaults:
        return f"`{_plain(defaults[f.name])}`"
    if f.default is not dataclasses.MISSING:
        return f"`{_plain(f.default)}`"
    return "required" if f.default_factory is dataclasses.MISSING else f"`{_plain(f.default_factory())}`"


def _plain(value: Any) -> str:
    """A default as it would be written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(_plain(v) for v in value)}]"
    return str(value)


if __name__ == "__main__":
    sys.exit(bring_up_to_date(PAGE, render))
