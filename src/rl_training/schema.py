"""The vocabulary in which configurations are written: strict field types and the `config` decorator.

Every section of a configuration is a frozen, keyword-only dataclass that validates itself, whether it is
built from a file, from the command line or directly in Python. A string under a field documents it; the
documentation and the command line's help are generated from these strings.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as _pydantic_dataclass

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
Bool = Annotated[bool, BeforeValidator(_truth_value)]
ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only, strict and self-validating section of a configuration."""
    settings = ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True)
    validated: type[T] = _pydantic_dataclass(frozen=True, kw_only=True, config=settings)(cls)  # type: ignore[assignment]
    return validated


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The documentation string of each field of a `config` dataclass."""
    if not is_dataclass(cls):
        raise TypeError(f"{cls!r} is not a config section")
    docs = {f.name: "" for f in fields(cls)}
    for owner in reversed(cls.__mro__):  # a class knows the strings of its own fields, not of inherited ones
        for name, info in vars(owner).get("__pydantic_fields__", {}).items():
            docs[name] = (info.description or docs[name]).strip()
    return docs
