"""What `study.json` must look like to be reported on; what is missing or odd is named at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rl_training.errors import AxiomError
from rl_training.zoo.rows import number

SCHEMA_VERSION = 1
SHOWN = 3
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]


class Range(BaseModel):
    """A range that was searched."""

    kind: Literal["float", "int"]
    low: Number
    high: Number
    log: bool = False
    step: Number | None = None


class Choices(BaseModel):
    """Choices that were searched."""

    kind: Literal["choice"]
    choices: Annotated[list[Any], Field(min_length=1)]


class Base(BaseModel):
    """What was tuned."""

    preset: str | None = None
    config: str | None = None
    algo: str | None = None
    env_id: str | None = None
    values: dict[str, Any] = {}


class Kind(BaseModel):
    """A sampler or a pruner."""

    kind: str


class Side(BaseModel):
    """The base or the best on the held-out seeds."""

    scores: Annotated[list[Number], Field(min_length=1)]
    iqm: Number
    iqm_low: Number | None = None
    iqm_high: Number | None = None


class Validation(BaseModel):
    """The comparison of both."""

    trial: Whole
    seeds: list[Whole] = []
    verdict: Literal["better", "worse", "no difference", "cannot tell"]
    p_worse: Number
    p_better: Number
    mean_a: Number
    mean_b: Number
    difference: Number
    low: Number | None = None
    high: Number | None = None
    probability_of_improvement: Number
    probability_low: Number | None = None
    probability_high: Number | None = None
    base: Side
    best: Side


class Trial(BaseModel):
    """One trial."""

    number: Annotated[Whole, Field(ge=0)]
    state: Literal["running", "completed", "pruned", "failed"]
    params: dict[str, Any] = {}
    value: Number | None = None
    reported: list[Number | None] = []
    scores: dict[str, Number | None] = {}
    seconds: Number | None = None
    error: str | None = None


class Study(BaseModel):
    """The whole file; what else stands in it is left alone."""

    schema_version: Whole
    name: str | None = None
    description: str | None = None
    base: Base
    space: dict[str, Annotated[Range | Choices, Field(discriminator="kind")]]
    asked: Whole
    steps: Whole
    seeds: list[Whole]
    sampler: Kind | None = None
    pruner: Kind | None = None
    command: list[str] = []
    imports: list[str] = []
    warnings: list[str] = []
    validation: Validation | None = None
    trials: list[Trial]


def check_shape(file: Path, data: Any) -> None:
    """Refuse what a report would stumble over."""
    problems = list(_problems(data))
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        found = "; ".join(problems[:SHOWN])
        raise AxiomError(f"{file}: not a study that this version can read: {found}{more}")


def _problems(data: Any) -> Iterator[str]:
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        yield f"schema_version {version} is newer than {SCHEMA_VERSION}; use the axiomrl that wrote it"
        return
    try:
        study = TypeAdapter(Study).validate_python(data)
    except ValidationError as error:
        yield from (_told(detail) for detail in error.errors(include_url=False))
        return
    for key, dimension in study.space.items():
        if not isinstance(dimension, Range):
            continue
        if dimension.low >= dimension.high:
            yield f"space.{key}.high: must be more than low"
        for index, trial in enumerate(study.trials):
            if key in trial.params and number(trial.params[key]) is None:
                yield f"trials.{index}.params.{key}: not a number"


def _told(detail: Any) -> str:
    """One mistake in words, with its place; what pydantic calls the branches of a union is no place."""
    place = ".".join(str(part) for part in detail["loc"] if part not in ("float", "int", "choice"))
    known = {"missing": "missing", "union_tag_not_found": "no `kind`", "too_short": "empty"}
    wanted = str(detail["msg"]).partition(" or instance of ")[0].replace("Input should be", "expected")
    return f"{place or 'the file'}: {known.get(detail['type'], wanted)}"
