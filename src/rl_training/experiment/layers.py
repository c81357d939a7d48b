"""Layers: how a `TrainConfig` is put together from presets, files, keywords and the command line.

Layers are merged in order: defaults, preset, included files, the file, keyword or command-line overrides.
Later values win and every value remembers where it came from. All mistakes are reported at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rl_training import registry
from rl_training.errors import ConfigError, nearest
from rl_training.experiment import yaml
from rl_training.experiment.config import KeyPath, TrainConfig, contradictions, plain, to_dict
from rl_training.experiment.presets import load_preset, preset_names
from rl_training.experiment.sections import ABSENT, differing, nested
from rl_training.schema import PositiveInt, section_of, section_problems


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values: where they come from, and on which lines they stand if that is a file."""

    origin: str
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, where each of its values came from, and the preset it is built on."""

    config: TrainConfig
    origins: Mapping[KeyPath, str]
    preset: str | None = None


def load_config(path: str | Path, **overrides: Any) -> TrainConfig:
    """Read a config file, with `preset:` and `include:` resolved; keywords as in `train`."""
    layers = file_layers(Path(path))
    named = [overrides.get("algo"), *(layer.values.get("algo") for layer in reversed(layers))]
    algo = next((name for name in named if isinstance(name, str)), None)
    return resolve_layers([*layers, keyword_layer(overrides, algo)]).config


def replace(cfg: TrainConfig, **changes: Any) -> TrainConfig:
    """A copy with other values, judged like any other configuration."""
    return resolve_layers([Layer("config", to_dict(cfg)), Layer("keyword", changes)]).config


def resolve_layers(layers: Sequence[Layer]) -> Resolved:
    """Merge layers, later ones winning, and validate the result once."""
    merged: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for layer in layers:
        _merge(merged, layer.values, layer, origins, ())
    _require_one_algorithm(layers, merged, origins)
    presets = [layer.origin.removeprefix("preset ") for layer in layers if layer.origin.startswith("preset ")]
    return Resolved(_validated(merged, origins), origins, presets[-1] if presets else None)


def _require_one_algorithm(
    layers: Sequence[Layer], merged: Mapping[str, Any], origins: Mapping[KeyPath, str]
) -> None:
    """Refuse an algorithm other than the one a layer was written for, where that does not know its keys."""
    algo = merged.get("algo")
    if not isinstance(algo, str) or algo not in registry.algorithms():
        return  # which is told with its place
    known = {f.name for f in dataclasses.fields(registry.algorithm(algo).cls.Hyperparams)}
    for layer in layers:
        meant, own = layer.values.get("algo", algo), layer.values.get("hyperparams")
        foreign = [key for key in own if key not in known] if isinstance(own, Mapping) else []
        if meant != algo and foreign:
            task = layer.origin.removeprefix(f"preset {meant}/")
            there = f"; there is a preset {algo}/{task}" if f"{algo}/{task}" in preset_names() else ""
            raise ConfigError(
                f"{origins['algo',]}: algo: {algo!r}, but {layer.origin} is for {meant!r} and sets what "
                f"{algo!r} does not have: {', '.join(foreign)}{there}"
            )


def keyword_layer(keywords: Mapping[str, Any], algo: str | None) -> Layer:
    """Keywords as a layer: names of the config stay on top, the algorithm's own go to `hyperparams`."""
    top = {f.name for f in dataclasses.fields(TrainConfig)}
    values: dict[str, Any] = {key: value for key, value in keywords.items() if key in top}
    try:
        own_fields = dataclasses.fields(registry.algorithm(algo).cls.Hyperparams) if algo else ()
    except ConfigError:  # an unknown algorithm is reported with its place when the layers are resolved
        return Layer("keyword", {key: plain(value) for key, value in values.items()})
    own = {f.name for f in own_fields}
    unknown = [key for key in keywords if key not in top | own]
    if unknown:
        hints = {key: nearest(key, top | own) for key in unknown}
        raise ConfigError(
            [f"keyword {k!r}: unknown" + (f"; did you mean {n!r}?" if n else "") for k, n in hints.items()]
        )
    if direct := {key: value for key, value in keywords.items() if key in own}:
        given = values.get("hyperparams") or {}
        values["hyperparams"] = {**(given if isinstance(given, Mapping) else to_dict(given)), **direct}
    return Layer("keyword", {key: plain(value) for key, value in values.items()})


def preset_layers(name: str) -> list[Layer]:
    """The layer of a packaged preset."""
    document = load_preset(name)
    return [Layer(f"preset {name}", document.data, document.lines)]


def preset_differences(config: TrainConfig, preset: str | None) -> list[dict[str, Any]] | None:
    """Keys that a configuration has otherwise than the preset, with both values; None without one we know.

    A value that only one of them has stands alone.
    """
    if preset not in preset_names():
        return None
    meant = resolve_layers(preset_layers(preset)).config
    return [
        {
            "key": ".".join(path),
            **{name: value for name, value in (("preset", wanted), ("run", own)) if value is not ABSENT},
        }
        for path, wanted, own in differing(to_dict(meant), to_dict(config))
    ]


def file_layers(path: Path, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a file: its preset, what it includes, and itself."""
    if path.resolve() in seen:
        raise ConfigError(f"{path}: includes itself: {' → '.join(str(p) for p in (*seen, path))}")
    document = yaml.load_file(path)
    values = dict(document.data)
    layers: list[Layer] = []
    if (preset := values.pop("preset", None)) is not None:
        if not isinstance(preset, str):
            raise ConfigError(
                f"{path}:{document.lines[('preset',)]}: preset: expected a name, got {preset!r}"
            )
        layers += preset_layers(preset)
    if (include := values.pop("include", None)) is not None:
        if not isinstance(include, str):
            raise ConfigError(
                f"{path}:{document.lines[('include',)]}: include: expected a path, got {include!r}"
            )
        try:
            layers += file_layers(path.parent / include, (*seen, path.resolve()))
        except ConfigError as error:  # a name that stands in no command: say where it comes from
            where = f"{path}:{document.lines[('include',)]}: include"
            raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None
    return [*layers, Layer(str(path), values, document.lines)]


def _merge(
    target: dict[str, Any], values: Mapping[str, Any], layer: Layer, origins: dict[KeyPath, str], at: KeyPath
) -> None:
    for key, value in values.items():
        path = (*at, str(key))
        if isinstance(value, Mapping):
            section = target.get(key)
            if not isinstance(section, dict):
                section = target[key] = {}
            _merge(section, value, layer, origins, path)
        else:
            target[key] = value
        line = layer.lines.get(path)
        origins[path] = (
            f"{layer.origin}:{line}" if line and not layer.origin.startswith("preset") else layer.origin
        )


def _validated(values: dict[str, Any], origins: Mapping[KeyPath, str]) -> TrainConfig:
    """Build the config, or report every mistake in it at once."""
    values, misplaced = _without_dotted(TrainConfig, values)
    hyperparams = values.pop("hyperparams", {})
    problems = section_problems(TrainConfig, values)
    entry = None
    if isinstance(algo := values.get("algo"), str):
        try:
            entry = registry.algorithm(algo)
        except ConfigError as error:
            problems += [f"algo: {problem}" for problem in error.problems]
    if not isinstance(hyperparams, Mapping):
        problems.append("hyperparams: expected a mapping of keys to values")
    elif entry is not None:
        problems += _hyperparam_problems(entry, hyperparams, values)
    try:
        if not problems and not misplaced:
            return TrainConfig(**values, hyperparams=dict(hyperparams))
    except ConfigError as error:
        problems = error.problems
    written = [f"{origins[path]}: {_as_section(path, value)}" for path, value in misplaced.items()]
    raise ConfigError([*written, *(_where(problem, origins) + problem for problem in problems)])


def _without_dotted(
    cls: type[Any], values: Mapping[str, Any], at: KeyPath = ()
) -> tuple[dict[str, Any], dict[KeyPath, Any]]:
    """Values without keys like `env.backend`, which name a section as the command line does; and these."""
    sections = {f.name: section_of(f) for f in dataclasses.fields(cls)}
    open_ended = {f.name for f in dataclasses.fields(cls) if f.default_factory is dict} | {"hyperparams"}
    kept: dict[str, Any] = {}
    dotted: dict[KeyPath, Any] = {}
    for key, value in values.items():
        first, dot, _ = str(key).partition(".")
        section = sections.get(first)
        if dot and (section or (first in sections and first in open_ended)):
            dotted[*at, key] = value
        elif section and isinstance(value, Mapping):
            kept[key], inner = _without_dotted(section, value, (*at, key))
            dotted |= inner
        else:
            kept[key] = value
    return kept, dotted


def _as_section(path: KeyPath, value: Any) -> str:
    """What to write instead of a key with dots."""
    key = ".".join(path)
    return f"{key}: a section's keys stand inside it: write `{yaml.dump_line(nested(key, value))}`"


def _hyperparam_problems(
    entry: registry.AlgorithmEntry, hyperparams: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    """What is wrong with the algorithm's own section or, if it is sound, with it and the rest together."""
    fixed = entry.hyperparams(hyperparams)
    problems = contradictions(entry, hyperparams)
    problems += section_problems(entry.cls.Hyperparams, fixed, ("hyperparams",))
    if problems:
        return problems
    try:
        num_envs = TypeAdapter(PositiveInt).validate_python(values.get("num_envs", TrainConfig.num_envs))
    except ValidationError:
        return []
    return list(entry.cls.Hyperparams(**fixed).problems(num_envs))


def _where(problem: str, origins: Mapping[KeyPath, str]) -> str:
    """Where the key that a problem begins with was written, if it was."""
    key = problem.partition(":")[0]
    unsplit = (origin for path, origin in origins.items() if ".".join(path) == key)  # a key may have dots
    origin = origins.get(tuple(key.split("."))) or next(unsplit, None)
    return f"{origin}: " if origin else ""
