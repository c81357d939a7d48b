"""The command-line options of a configuration, made from its dataclasses: names, types, defaults, docs."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rl_training.errors import ConfigError
from rl_training.experiment import yaml
from rl_training.experiment.config import KeyPath, TrainConfig, leaves
from rl_training.registry import AlgorithmEntry
from rl_training.schema import field_docs

_WORDS = {bool: "BOOL", int: "INT", float: "NUMBER", str: "TEXT", NoneType: "null", dict: "MAPPING"}
_NULL = ("null", "none", "~")
REQUIRED = dataclasses.MISSING


@dataclass(frozen=True, slots=True)
class Option:
    """One field of the configuration as an option."""

    path: KeyPath
    annotation: Any = Any
    default: Any = None
    doc: str = ""

    @property
    def name(self) -> str:
        """`--hyperparams.learning-rate`."""
        return f"--{'.'.join(self.path)}".replace("_", "-")

    @property
    def is_flag(self) -> bool:
        """True or false: may stand without a value, and as `--no-…`."""
        return bool in _members(self.annotation)

    @property
    def takes_many(self) -> bool:
        """Several values may follow."""
        return self.annotation is Any or self._items is not None

    @property
    def type_words(self) -> str:
        """The type as a reader of the help needs it."""
        return _type_words(self.annotation)

    def read(self, words: Sequence[str]) -> Any:
        """The value that was written."""
        if not words:
            if self.is_flag:
                return True
            raise ConfigError(f"command line: {self.name}: needs a value ({self.type_words})")
        if len(words) == 1 and (self._items is None or _is_collection(words[0])):
            return self._scalar(words[0], self.annotation)
        return [self._scalar(word, self._items) for word in words]

    @property
    def _items(self) -> Any:
        """The type of a list's items, or None when this is no list."""
        return next((get_args(m)[0] for m in _members(self.annotation) if get_origin(m) is tuple), None)

    def _scalar(self, word: str, annotation: Any) -> Any:
        """Text as it is, anything else as a file would have it."""
        members = _members(annotation)
        if NoneType in members and word.lower() in _NULL:
            return None
        if str in members or any(word in get_args(m) for m in members if get_origin(m) is Literal):
            return word
        value = yaml.parse_value(word)
        is_text_list = isinstance(value, list) and str in _members(self._items)
        return [str(item) for item in value] if is_text_list else value


def config_options(entry: AlgorithmEntry | None = None) -> dict[str, Option]:
    """The options of every field, with the algorithm's own hyperparameters if it is known."""
    options = [_option(*leaf) for leaf in leaves(TrainConfig) if leaf[0] != ("hyperparams",)]
    if entry is not None:
        own = [_option(*leaf) for leaf in leaves(entry.cls.Hyperparams, ("hyperparams",))]
        told = entry.hyperparams({})
        options += [dataclasses.replace(o, default=told.get(o.path[-1], o.default)) for o in own]
    return {option.name: option for option in options}


def render_help(options: Sequence[Option], values: Mapping[KeyPath, tuple[Any, str]]) -> str:
    """Options by section with type, doc and default; `values` are those given so far, with their origins."""
    sections: dict[str, list[Option]] = {}
    for option in options:
        sections.setdefault(".".join(option.path[:-1]) or "run", []).append(option)
    width = min(shutil.get_terminal_size().columns, 110)
    lines: list[str] = []
    for section, members in sections.items():
        lines.append(f"\n{section}:")
        for option in members:
            lines += _help_lines(option, values.get(option.path), width)
    return "\n".join(lines) + "\n"


def _help_lines(option: Option, given: tuple[Any, str] | None, width: int) -> list[str]:
    default = "required" if option.default is REQUIRED else f"default: {_shown(option.default)}"
    note = default if given is None else f"{_shown(given[0])}, from {given[1]}; {default}"
    head, column = f"  {option.name} {option.type_words}", 44 if width >= 100 else 8
    text = textwrap.wrap(f"{option.doc} [{note}]", max(width - column, 30))
    first = f"{head:<{column}}{text.pop(0)}" if len(head) < column else head
    return [first, *(f"{'':<{column}}{line}" for line in text)]


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple() | list():
            return " ".join(map(str, value)) or "[]"
        case _:
            return str(value)


def _option(path: KeyPath, field: dataclasses.Field[Any], owner: type[Any]) -> Option:
    default = field.default
    if callable(field.default_factory):
        default = field.default_factory()
    annotation = owner.__pydantic_fields__[field.name].annotation
    docs = field_docs(owner)  # type: ignore[arg-type]  # mypy doubts that classes can be hashed
    return Option(path, annotation, default, " ".join(docs[field.name].split()))


def _members(annotation: Any) -> list[Any]:
    """The alternatives of a type, without what pydantic is told about them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _type_words(annotation: Any) -> str:
    words: list[str] = []
    for member in _members(annotation):
        arguments = get_args(member)
        match get_origin(member):
            case origin if origin is Literal:
                words += [str(choice) for choice in arguments]
            case origin if origin is tuple:
                items = [_type_words(item) for item in arguments if item is not Ellipsis]
                words.append(" ".join(items) + (" ..." if Ellipsis in arguments else ""))
            case origin:
                words.append(_WORDS.get(origin or member, "VALUE"))
    return "|".join(words)


def _is_collection(word: str) -> bool:
    """Is it a whole list, written `[64, 64]`, or null?"""
    return word.lstrip().startswith("[") or word.lower() in _NULL
