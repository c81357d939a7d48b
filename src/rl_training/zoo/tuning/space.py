"""What is searched: ranges and choices for fields of the configuration, judged by the rules of each field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from rl_training import registry
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, contradictions, leaves, to_dict
from rl_training.experiment.sections import merged, nested
from rl_training.schema import Bool, Float, PositiveFloat, config, section_problems

if TYPE_CHECKING:
    from optuna.trial import Trial

Kind = Literal["float", "int", "choice"]
MAX_CELLS = 100_000
MAX_STEPS = 10**12
"""A range of more steps than that is one without steps."""


@config
class Range:
    """A range of numbers."""

    low: Float
    """The least value."""
    high: Float
    """The largest value."""
    log: Bool = False
    """Search orders of magnitude evenly rather than values; needs a `low` above 0."""
    step: PositiveFloat | None = None
    """Only values that are so many steps above `low`; null: any, or every whole number."""
    type: Literal["float", "int"] | None = None
    """Numbers or whole numbers; null: what the field takes."""


@config
class Choices:
    """A few values."""

    choices: tuple[Any, ...]
    """The values, of any kind that the field takes."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One field that is searched."""

    key: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: Trial) -> Any:
        """The value that a trial has, or gets now, in the form that is stored."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.key, [stored(choice) for choice in self.choices])
        if self.kind == "int":
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            return trial.suggest_int(self.key, low, high, log=self.log, step=step)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log, step=self.step)

    def value(self, kept: Any) -> Any:
        """The value of the field behind what was stored."""
        if self.kind == "float" and self.step is not None:  # Optuna adds steps up in binary floats
            return _stepped(self.low, round((kept - self.low) / self.step), self.step)
        if self.kind != "choice":
            return kept
        return next(choice for choice in self.choices if stored(choice) == kept)

    def cells(self) -> list[Any] | None:
        """Every value there is, as it is stored, and of too many `MAX_CELLS` and one more; None of a range
        that has no steps, or is searched by orders of magnitude."""
        if self.kind == "choice":
            return [stored(choice) for choice in self.choices]
        if self.log or (self.kind == "float" and self.step is None):
            return None
        step = self.step or 1
        count = min(_steps_in(self.low, self.high, step), MAX_CELLS) + 1
        found = [_stepped(self.low, index, step) for index in range(count)]
        return [round(value) for value in found] if self.kind == "int" else found


def stored(choice: Any) -> Any:
    """A choice as the journal keeps it: numbers, text, truth values and null as they are, others as JSON."""
    return choice if choice is None or isinstance(choice, bool | int | float | str) else json.dumps(choice)


def read_space(given: Mapping[str, Any], base: TrainConfig) -> tuple[list[Dimension], list[str]]:
    """The dimensions of a `space` section, and everything that is wrong with it, by dotted key."""
    dimensions: list[Dimension] = []
    problems: list[str] = []
    for key, entry in given.items():
        spec = {"choices": entry} if isinstance(entry, list) else entry
        shape = Choices if isinstance(spec, dict) and "choices" in spec else Range
        if not isinstance(spec, dict):
            found = [f"space.{key}: expected {{low, high}}, {{choices}} or a list of choices, got {entry!r}"]
        elif (dotted := _field_inside(key, spec)) is not None:
            found = [f"space.{key}: a section; name its fields by dotted keys: {dotted}"]
        elif not (found := section_problems(shape, spec, ("space", key))):
            try:
                dimensions.append(_choice(key, spec, base) if shape is Choices else _range(key, spec, base))
            except ConfigError as error:
                found = error.problems
        problems += found
    return dimensions, problems


def _field_inside(key: str, spec: Mapping[str, Any]) -> str | None:
    """The dotted key of the first field, where a section was written around it."""
    words = {f.name for shape in (Range, Choices) for f in fields(shape)}
    if not spec or words & spec.keys():
        return None
    name, inner = next(iter(spec.items()))
    if not isinstance(inner, dict | list):
        return None
    dotted = f"{key}.{name}"
    return (_field_inside(dotted, inner) if isinstance(inner, dict) else None) or dotted


def field_problems(base: TrainConfig, key: str, value: Any) -> list[str]:
    """What is wrong with a value of one field, the relations between fields apart."""
    values = merged(to_dict(base), nested(key, value))
    hyperparams, entry = values.pop("hyperparams"), registry.algorithm(base.algo)
    if key.partition(".")[0] != "hyperparams":
        problems = section_problems(TrainConfig, values)
    elif not isinstance(hyperparams, dict):
        problems = [f"{key}: a section; name one of its fields"]
    else:
        problems = contradictions(entry, hyperparams)
        problems += section_problems(entry.cls.Hyperparams, hyperparams, ("hyperparams",))
    return [_with_hint(problem, base) for problem in problems]


def _first_problems(base: TrainConfig, key: str, values: Sequence[Any]) -> list[str]:
    """What is wrong with the first value that the field does not take."""
    return next(filter(None, (field_problems(base, key, value) for value in values)), [])


def _with_hint(problem: str, base: TrainConfig) -> str:
    """An unknown key may be that of another section."""
    key, _, text = problem.partition(": ")
    if not text.startswith("unknown key"):
        return problem
    own = registry.algorithm(base.algo).cls.Hyperparams
    known = [".".join(path) for path, *_ in (*leaves(own, ("hyperparams",)), *leaves(TrainConfig))]
    same = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return f"{key}: unknown key; did you mean {' or '.join(map(repr, same))}?" if same else problem


def _choice(key: str, spec: Mapping[str, Any], base: TrainConfig) -> Dimension:
    choices = tuple(spec["choices"])
    problems = _first_problems(base, key, choices)
    kept = [stored(choice) for choice in choices]
    if not choices:
        problems.append(f"{key}.choices: none given")
    if any(one in kept[:index] for index, one in enumerate(kept)):
        problems.append(f"{key}.choices: the same value twice")
    _raise(problems)
    return Dimension(key, "choice", choices=choices)


def _range(key: str, spec: Mapping[str, Any], base: TrainConfig) -> Dimension:
    given = Range(**spec)
    low, high, step = given.low, given.high, given.step
    _raise(_range_problems(key, given))
    whole = all(isinstance(spec.get(name, 0), int) for name in ("low", "high", "step"))
    kind: Kind = given.type or ("float" if _takes_fractions(key, low, high, base, whole) else "int")
    if kind == "int" and not all(float(n).is_integer() for n in (low, high, step or 1)):
        _raise([f"{key}: the field takes whole numbers, so low, high and step must be whole"])
    ends = [int(low), int(high)] if kind == "int" else [low, high, _between(low, high)]
    _raise(_first_problems(base, key, ends))
    if step is not None:  # the last value that steps from `low` lead to
        high = _stepped(low, _steps_in(low, high, step), step)
    return Dimension(key, kind, low, high, given.log, step)


def _range_problems(key: str, given: Range) -> Iterator[str]:
    if given.low >= given.high:
        yield f"{key}.high: must be more than low, {given.low:g}, got {given.high:g}"
    elif given.step is not None:
        steps = _steps_in(given.low, given.high, given.step)
        if not steps:
            yield f"{key}.step: longer than the whole range, got {given.step:g}"
        elif steps > MAX_STEPS:
            yield f"{key}.step: too short to matter, got {given.step:g}; leave it out"
    if given.log and given.low <= 0:
        yield f"{key}.low: must be above 0 where log is true, got {given.low:g}"
    if given.log and given.step is not None:
        yield f"{key}.step: cannot be combined with log"


def _steps_in(low: float, high: float, step: float) -> int:
    """How many whole steps fit between two numbers."""
    return int((_exact(high) - _exact(low)) // _exact(step))


def _stepped(low: float, count: int, step: float) -> float:
    """The number so many steps above another."""
    return float(_exact(low) + count * _exact(step))


def _exact(number: float) -> Fraction:
    """A number as it is written, 0.1 being a tenth: binary floats would miss the end of a range."""
    return Fraction(repr(number))


def _takes_fractions(key: str, low: float, high: float, base: TrainConfig, whole: bool) -> bool:
    """Does the field take numbers that are not whole? Where it takes anything, the ends decide."""
    if field_problems(base, key, low):
        return True  # whatever it takes, it is not this: the ends will say why
    if key.partition(".")[0] == "env_kwargs":
        return not whole
    fractions = [n for n in (low, _between(low, high), high) if not n.is_integer()]
    return any(not field_problems(base, key, n) for n in fractions)


def _between(low: float, high: float) -> float:
    """A number inside a range that is not whole."""
    inside = low + 0.382 * (high - low)
    return inside if not inside.is_integer() else inside + 0.25 * min(1.0, high - low)


def _raise(problems: Iterable[str]) -> None:
    """Every mistake once, with its place in the study."""
    found = dict.fromkeys(f"space.{problem}" for problem in problems)
    if found:
        raise ConfigError(list(found))
