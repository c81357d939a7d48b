"""`TrainConfig`: everything a run is described by, and how it is put together from layers.

Layers are merged in order: defaults, preset, included files, the file, keyword or command-line overrides.
Later values win and every value remembers where it came from. All mistakes are reported at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from rl_training import registry
from rl_training.envs.config import EnvConfig
from rl_training.errors import ConfigError, nearest
from rl_training.experiment import yaml
from rl_training.experiment.presets import load_preset
from rl_training.policies.config import NetworkConfig
from rl_training.schema import (
    Bool,
    Float,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    config,
    section_of,
    section_problems,
)

KeyPath = tuple[str, ...]


def _device_name(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"expected auto, cpu, cuda or cuda:N, got {value!r}")
    return value


DeviceName = Annotated[str, BeforeValidator(_device_name)]


@config
class EvaluationConfig:
    """Evaluation during training, in envs and with seeds of its own."""

    every_steps: NonNegativeInt = 10_000
    """Evaluate every so many steps, and at the end; 0 turns evaluation off."""
    episodes: PositiveInt = 10
    """Full episodes an evaluation."""
    num_envs: PositiveInt = 4
    """Envs that play them side by side."""
    deterministic: Bool = True
    """Take the most likely action rather than a sample."""


@config
class CheckpointConfig:
    """When the state of the run is saved. A final checkpoint is always written."""

    every_steps: NonNegativeInt = 50_000
    """Save every so many steps; 0: only the best and the last."""
    keep_last: PositiveInt = 3
    """How many of the newest checkpoints to keep, besides the best."""


@config
class LoggingConfig:
    """What is written while training, besides checkpoints."""

    every_steps: PositiveInt = 2_000
    """A line in metrics.jsonl every so many steps (at the end of the iteration that crosses them)."""
    tensorboard: Bool = True
    """Also write TensorBoard event files."""
    wandb: Bool = False
    """Also log to Weights & Biases (extra: wandb)."""
    csv: Bool = False
    """Also write metrics.csv when training ends."""


@config
class StoppingConfig:
    """Reasons to stop before the step budget is used up."""

    target_return: Float | None = None
    """Stop when an evaluation's mean return reaches this."""
    patience: PositiveInt | None = None
    """Stop after this many evaluations without improvement."""
    min_delta: NonNegativeFloat = 0.0
    """What counts as an improvement for `patience`."""
    max_seconds: PositiveFloat | None = None
    """Stop after this much wall-clock time, counted over resumes."""


@config
class TrainConfig:
    """A complete description of a training run. Only `algo` and `env_id` are required."""

    algo: str
    """Algorithm id; `axiomrl list algorithms` shows them."""
    env_id: str
    """Gymnasium environment id; `axiomrl list envs` shows those installed."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    total_timesteps: PositiveInt = 100_000
    """Agent steps over all envs; the iteration that reaches it is completed."""
    num_envs: PositiveInt = 8
    """Envs stepped side by side."""
    output_dir: str = "runs"
    """Where the run directory is created."""
    device: DeviceName = "auto"
    """auto, cpu, cuda or cuda:N."""
    threads: PositiveInt = 1
    """CPU threads for torch; one is fastest for small networks."""
    deterministic: Bool | Literal["auto"] = "auto"
    """Only bit-reproducible kernels; auto: on the CPU yes, on a GPU no."""
    on_nan: Literal["raise", "skip-update"] = "raise"
    """What to do when an update meets NaN or infinity; the weights are never touched by it."""
    tags: tuple[str, ...] = ()
    """Free labels, kept in the run's metadata."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the env's constructor."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Backend, wrappers, normalisation."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Networks."""
    hyperparams: Any = None
    """The algorithm's own hyperparameters."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation during training."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Metrics."""
    stopping: StoppingConfig = field(default_factory=StoppingConfig)
    """Early stopping and budgets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hyperparams", _hyperparams(registry.algorithm(self.algo), self.hyperparams))
        problems = self.hyperparams.problems(self.num_envs)
        for name in ("target_return", "patience"):
            if getattr(self.stopping, name) is not None and not self.evaluation.every_steps:
                problems.append(f"stopping.{name}: needs evaluations, but evaluation.every_steps is 0")
        if problems:
            raise ConfigError(problems)


def _hyperparams(entry: registry.AlgorithmEntry, given: Any) -> Any:
    """Validate hyperparameters given as an object or a mapping (or not at all)."""
    expected = entry.cls.Hyperparams
    if given is not None and not isinstance(given, Mapping | expected):
        raise ConfigError(f"hyperparams: expected {expected.__name__} or a mapping, got {given!r}")
    values = to_dict(given) if isinstance(given, expected) else dict(given or {})
    problems = _contradictions(entry, values)
    problems += section_problems(expected, {**values, **entry.fixed}, ("hyperparams",))
    if problems:
        raise ConfigError(problems)
    return given if isinstance(given, expected) else expected(**{**values, **entry.fixed})


def _contradictions(entry: registry.AlgorithmEntry, values: Mapping[str, Any]) -> list[str]:
    """What an algorithm id fixes and `values` denies."""
    return [
        f"hyperparams.{key}: {values[key]!r} contradicts the algorithm {entry.id!r}, "
        f"which is defined by {key}: {fixed!r}"
        for key, fixed in entry.fixed.items()
        if values.get(key, fixed) != fixed
    ]


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
    presets = [layer.origin.removeprefix("preset ") for layer in layers if layer.origin.startswith("preset ")]
    return Resolved(_validated(merged, origins), origins, presets[-1] if presets else None)


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


def to_dict(cfg: Any) -> dict[str, Any]:
    """A configuration as plain data, in the order of its fields, ready for YAML or JSON."""
    return {f.name: plain(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}


def leaves(
    cls: type[Any], prefix: KeyPath = ()
) -> Iterable[tuple[KeyPath, dataclasses.Field[Any], type[Any]]]:
    """Every field of a config class that is not itself a section: its path, field and owner."""
    for f in dataclasses.fields(cls):
        if (section := section_of(f)) is not None:
            yield from leaves(section, (*prefix, f.name))
        else:
            yield (*prefix, f.name), f, cls


def preset_layers(name: str) -> list[Layer]:
    """The layer of a packaged preset."""
    document = load_preset(name)
    return [Layer(f"preset {name}", document.data, document.lines)]


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
        layers += file_layers(path.parent / include, (*seen, path.resolve()))
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
    values = dict(values)
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
        if not problems:
            return TrainConfig(**values, hyperparams=dict(hyperparams))
    except ConfigError as error:
        problems = error.problems
    raise ConfigError([_where(problem, origins) + problem for problem in problems])


def _hyperparam_problems(
    entry: registry.AlgorithmEntry, hyperparams: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    """What is wrong with the algorithm's own section or, if it is sound, with it and the rest together."""
    fixed = {**hyperparams, **entry.fixed}
    problems = _contradictions(entry, hyperparams)
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
    origin = origins.get(tuple(problem.partition(":")[0].split(".")))
    return f"{origin}: " if origin else ""


def plain(value: Any) -> Any:
    """A value as plain data: sections become mappings, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
