"""The vocabulary in which configurations are written: strict field types and the `config` decorator.

Every section of a configuration is a frozen, keyword-only dataclass that validates itself, whether it is
built from a file, from the command line or directly in Python. A string under a field documents it; the
documentation and the command line's help are generated from these strings.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field as DataclassField
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as _pydantic_dataclass

from rl_training.errors import ConfigError, nearest

T = TypeVar("T")


def _whole_number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"expected a whole number, got {value!r}")
    if isinstance(value, float) and value.is_integer():
        return int(value)  # YAML and people write 1e6
    return value


def _real_number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"expected a number, got {value!r}")
    return value


def _truth_value(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {value!r}")
    return value


Int = Annotated[int, BeforeValidator(_whole_number)]
PositiveInt = Annotated[Int, Field(gt=0)]
NonNegativeInt = Annotated[Int, Field(ge=0)]
Float = Annotated[float, BeforeValidator(_real_number), Field(allow_inf_nan=False)]
PositiveFloat = Annotated[Float, Field(gt=0)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
ProperFraction = Annotated[Float, Field(gt=0, lt=1)]
Bool = Annotated[bool, BeforeValidator(_truth_value)]
ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only, strict and self-validating section of a configuration."""
    settings = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    validated: type[T] = _pydantic_dataclass(frozen=True, kw_only=True, config=settings)(cls)  # type: ignore[assignment]
    construct: Any = validated.__init__

    @functools.wraps(construct)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        try:
            construct(self, *args, **values)
        except ValidationError as error:
            raise ConfigError(_problems(validated, error, ())) from None

    validated.__init__ = checked  # type: ignore[method-assign]
    return validated


def section_of(f: DataclassField[Any]) -> type[Any] | None:
    """The class of a field that is a section of its own."""
    factory: Any = f.default_factory
    return factory if isinstance(factory, type) and is_dataclass(factory) else None


def section_problems(cls: type[Any], values: Mapping[str, Any], at: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with a section, one line a mistake: its key path, and the nearest valid key or value."""
    try:
        TypeAdapter(cls).validate_python(dict(values))
    except ConfigError:
        return []  # relations between sections are judged once each of them is sound
    except ValidationError as error:
        return _problems(cls, error, at)
    return []


def _problems(cls: type[Any], error: ValidationError, at: tuple[str, ...]) -> list[str]:
    problems: dict[tuple[str, ...], str] = {}  # a union reports each of its branches: the first is enough
    for detail in error.errors(include_url=False):
        section, key = _locate(cls, detail["loc"])
        path = (*at, *key)
        problems.setdefault(path, f"{'.'.join(path)}: {_describe(detail, section, key[-1])}")
    return list(problems.values())


def _locate(cls: type[Any], location: Sequence[int | str]) -> tuple[type[Any], tuple[str, ...]]:
    """The section a validation error belongs to and its key path, without pydantic's inner steps."""
    path: list[str] = []
    for step in location:
        path.append(str(step))
        section = next((section_of(f) for f in fields(cls) if f.name == step), None)
        if section is None:
            break
        if len(path) < len(location):
            cls = section
    return cls, tuple(path)


def _describe(detail: Mapping[str, Any], section: type[Any], key: str) -> str:
    """One validation error in words."""
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = [f.name for f in fields(section)]
        near = nearest(key, known)
        return "unknown key; " + (f"did you mean {near!r}?" if near else f"known keys: {', '.join(known)}")
    if detail["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return "required, but not given"
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "literal_error":
        near = nearest(str(detail["input"]), message.split("'")[1::2])
        return f"expected {message}, got {detail['input']!r}" + (f"; did you mean {near!r}?" if near else "")
    if not str(detail["msg"]).startswith("Value error"):
        message = f"must be {message}"
    return message if "got " in message else f"{message}, got {detail['input']!r}"


@functools.cache
def field_docs(cls: type[Any]) -> Mapping[str, str]:
    """The documentation string of each field of a `config` dataclass."""
    if not is_dataclass(cls):
        raise TypeError(f"{cls!r} is not a config section")
    docs = {f.name: "" for f in fields(cls)}
    for owner in reversed(cls.__mro__):
        docs.update(_strings_under_fields(owner) if is_dataclass(owner) else {})
    return docs


def _strings_under_fields(cls: type[Any]) -> dict[str, str]:
    """What the source of a class says below its own fields. Read when it is asked for, not at every start."""
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except OSError:  # typed into a prompt
        return {}
    (defined,) = source.body
    assert isinstance(defined, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(defined.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
