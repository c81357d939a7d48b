"""A study: what is tuned, over which space, how, and how the best is judged. Read from a YAML file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_training.errors import ConfigError, UnknownNameError
from rl_training.experiment import yaml
from rl_training.experiment.config import KeyPath
from rl_training.experiment.layers import Layer, Resolved, file_layers, preset_layers, resolve_layers
from rl_training.experiment.sections import nested
from rl_training.schema import NonNegativeInt, PositiveInt, config, section_problems
from rl_training.zoo.suites import Protocol
from rl_training.zoo.tuning.space import MAX_CELLS, Dimension, read_space

TRIALS = 20
OWN = {"seed": "seeds", "output_dir": "--output-dir", "total_timesteps": "steps"}
"""Fields that the study itself decides, and how."""
MEASURING = ("evaluation", "checkpoint", "logging")
"""Sections by which runs are watched: what a study sets there is for its own runs."""
OTHER_TASK = (
    "env_kwargs", "env.frame_skip", "env.max_episode_steps", "env.atari.preprocess", "env.atari.noop_max",
    "env.atari.fire_reset", "env.atari.sticky_actions",
)  # fmt: skip
"""Fields that change what an env asks for, and not only how it is learned."""
PROBES = 64


@config
class Sampler:
    """How the next trial is chosen."""

    kind: Literal["tpe", "random", "grid"] = "tpe"
    """tpe: where good trials were dense; random; grid: every combination once, in random order."""
    startup_trials: NonNegativeInt = 8
    """tpe: so many random trials first."""


@config
class Pruner:
    """When a trial is given up before its end, judged by the evaluations on the way."""

    kind: Literal["none", "median", "hyperband"] = "none"
    """none; median: worse than half of the completed trials at this point; hyperband: not among the best
    third at each rung."""
    startup_trials: NonNegativeInt = 5
    """median: so many trials must be complete first."""
    warmup: NonNegativeInt = 0
    """median: a trial is spared for so many evaluations."""


@config
class TrialProtocol(Protocol):
    """How the runs of a trial are judged: as in a suite, with fewer episodes."""

    episodes: PositiveInt = 20
    """Episodes a seed."""


@config
class Study:
    """What a study file says."""

    name: str
    """How it is called; default: the file's name."""
    description: str = ""
    """What it is for, in a line."""
    preset: str | None = None
    """The preset that is tuned."""
    config: str | None = None
    """The config file that is tuned, relative to the study file; with `preset`, its values win."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Other values of the configuration, by dotted key."""
    space: dict[str, Any]
    """What is searched: ranges and choices by dotted key."""
    steps: PositiveInt
    """Step budget of every run."""
    trials: PositiveInt | None = None
    """How many trials in all; null: 20, and all combinations with the sampler grid."""
    seeds: tuple[NonNegativeInt, ...] = (1,)
    """Seeds of every trial; its score is the interquartile mean over them."""
    held_out: tuple[NonNegativeInt, ...] = (101, 102, 103, 104, 105)
    """Seeds that no trial has seen, by which the best is compared with the base; none: it is not."""
    evaluation: TrialProtocol = field(default_factory=TrialProtocol)
    """How every run is judged at its end."""
    sampler: Sampler = field(default_factory=Sampler)
    """How the next trial is chosen; the kind alone may stand for it."""
    pruner: Pruner = field(default_factory=Pruner)
    """When a trial is given up; the kind alone may stand for it."""
    seed: NonNegativeInt = 0
    """Seed of the sampler."""
    workers: PositiveInt | None = None
    """Runs side by side, one thread each; null: half of the cores."""


@dataclass(frozen=True, slots=True)
class Design:
    """A study that has been read and checked: what its trials are made from."""

    study: Study
    layers: tuple[Layer, ...]
    base: Resolved
    dimensions: tuple[Dimension, ...]
    trials: int = 0
    """How many trials there will be."""
    warnings: tuple[str, ...] = ()

    @property
    def evaluations(self) -> int:
        """How many evaluations of a run are looked at on the way."""
        every = self.base.config.evaluation.every_steps
        return self.study.steps // every if every else 0

    @property
    def positions(self) -> int:
        """How many values a trial reports on the way: those of its first seed, then of the second, …"""
        return self.evaluations * len(self.study.seeds)

    def values(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """What a trial sets, by dotted key, from what the journal has kept of it."""
        return {d.key: d.value(kept[d.key]) for d in self.dimensions}

    def resolve(self, values: Mapping[str, Any]) -> Resolved:
        """The configuration of a trial, judged like any other."""
        return _with_values(self.layers, values)

    def preset(self, values: Mapping[str, Any]) -> Resolved:
        """The configuration of a trial as others would use it: without what the study has set to watch its
        own runs, unless something else in it needs that."""
        source = self.layers[-1].origin
        kept = [
            layer
            for layer in self.layers
            if layer.origin != source or layer.values.keys().isdisjoint(MEASURING)
        ]
        try:
            return _with_values(kept, values)
        except ConfigError:
            return self.resolve(values)


def _with_values(layers: Sequence[Layer], values: Mapping[str, Any]) -> Resolved:
    return resolve_layers([*layers, *(Layer("trial", nested(key, value)) for key, value in values.items())])


def load_study(path: str | Path, *, trials: int | None = None) -> Design:
    """Read a study and check all of it; every mistake is reported at once, with its place."""
    document = yaml.load_file(path)
    values = {"name": Path(path).stem, **_unfolded(document.data)}
    if trials is not None:
        values["trials"] = trials
    _raise(section_problems(Study, values), document)
    study = Study(**values)
    _raise(_own_problems(study), document)
    layers = _layers(study, document, Path(path).parent)
    base = resolve_layers(layers)
    dimensions, problems = read_space(study.space, base.config)
    design = Design(study, tuple(layers), base, tuple(dimensions))
    if not problems:
        problems += _design_problems(design)
    _raise(problems, document)
    warnings = [*_other_tasks(design), *_combinations(design, document)]
    return replace(design, trials=_count(design), warnings=tuple(warnings))


def _unfolded(data: Mapping[str, Any]) -> dict[str, Any]:
    """`sampler: random` is `sampler: {kind: random}`."""
    short = {key: {"kind": data[key]} for key in ("sampler", "pruner") if isinstance(data.get(key), str)}
    return {**data, **short}


def _own_problems(study: Study) -> list[str]:
    """What a study must not say."""
    problems: list[str] = []
    if study.preset is None and study.config is None and not {"algo", "env_id"} <= study.overrides.keys():
        problems.append("preset: nothing says what is tuned: give `preset`, `config`, or algo and env_id")
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", study.name):
        problems.append(f"name: letters, digits, '.', '_' and '-' only, got {study.name!r}")
    for section, keys in (("overrides", study.overrides), ("space", study.space)):
        problems += [f"{section}.{key}: the study decides this by `{OWN[key]}`" for key in keys if key in OWN]
    problems += [
        f"space.{key}: trials that are measured in different ways cannot be compared"
        for key in study.space
        if key.partition(".")[0] in ("evaluation", "env_id")
    ]
    if not study.space:
        problems.append("space: nothing to search")
    if not study.seeds:
        problems.append("seeds: a trial needs at least one")
    if shared := sorted(set(study.seeds) & set(study.held_out)):
        seeds = ", ".join(map(str, shared))
        problems.append(f"held_out: {seeds} also among `seeds`, by which the best is chosen")
    for name, seeds_of in (("seeds", study.seeds), ("held_out", study.held_out)):
        if len(set(seeds_of)) < len(seeds_of):
            problems.append(f"{name}: the same seed twice")
    return problems


def _layers(study: Study, document: yaml.Document, folder: Path) -> list[Layer]:
    """What the base configuration is put together from, the study's own values last."""
    layers: list[Layer] = []
    try:
        layers += preset_layers(study.preset) if study.preset is not None else []
    except UnknownNameError as error:
        raise ConfigError(f"{document.where('preset')}: preset: {error}") from None
    layers += file_layers(folder / study.config) if study.config is not None else []
    for key, value in study.overrides.items():
        line = document.lines.get(("overrides", key), 0)
        layers.append(Layer(document.source, nested(key, value), {tuple(key.split(".")): line}))
    fixed: dict[str, Any] = {"total_timesteps": study.steps}
    if "threads" not in study.overrides:
        fixed["threads"] = 1  # what runs side by side must not fight over cores
    lines: dict[KeyPath, int] = {("total_timesteps",): document.lines.get(("steps",), 0)}
    return [*layers, Layer(document.source, fixed, lines)]


def _design_problems(design: Design) -> list[str]:
    """What does not fit together."""
    study, problems = design.study, []
    every = design.base.config.evaluation.every_steps
    if study.pruner.kind != "none" and not design.evaluations:
        problems.append(
            f"pruner: nothing to judge by before the end: evaluation.every_steps is {every} and a run has "
            f"{study.steps} steps; set it under `overrides`"
        )
    if study.sampler.kind == "grid":
        counts = {d.key: len(cells) if (cells := d.cells()) is not None else None for d in design.dimensions}
        problems += [
            f"space.{key}: the sampler grid needs choices, whole numbers or a step"
            for key, count in counts.items()
            if count is None
        ]
        size = math.prod(count or 1 for count in counts.values())
        if size > MAX_CELLS:
            problems.append(f"sampler: a grid of {size:,} combinations; {MAX_CELLS:,} are the most")
    return problems


def _count(design: Design) -> int:
    """How many trials are asked for; of a grid, no more than there are combinations."""
    asked = design.study.trials
    if design.study.sampler.kind != "grid":
        return asked or TRIALS
    cells = math.prod(len(d.cells() or ()) for d in design.dimensions)
    return min(asked or cells, cells)


def _other_tasks(design: Design) -> list[str]:
    """Searching over what the task is says which task is easy, not which configuration is good."""
    keys = [d.key for d in design.dimensions if any(_overlap(d.key, other) for other in OTHER_TASK)]
    if not keys:
        return []
    also = "so the scores of trials, and with them the verdict, may not be comparable"
    return [f"{', '.join(keys)}: each value makes another task, {also}"]


def _overlap(one: str, other: str) -> bool:
    """Is it the same key, or one inside the other?"""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _combinations(design: Design, document: yaml.Document) -> list[str]:
    """Fields that are right by themselves may not fit together: look at a few combinations beforehand."""
    rng, refused = np.random.default_rng(design.study.seed), []
    for _ in range(PROBES):
        try:
            design.resolve({d.key: _drawn(d, rng) for d in design.dimensions})
        except ConfigError as error:
            refused.append(error.problems[0])
    if len(refused) == PROBES:
        raise ConfigError(f"{document.where('space')}: space: no combination can be trained: {refused[0]}")
    if not refused:
        return []
    share = f"{len(refused)} of {PROBES} random combinations"
    return [f"{share} cannot be trained, and such trials fail: {refused[0]}"]


def _drawn(dimension: Dimension, rng: np.random.Generator) -> Any:
    if dimension.kind == "choice":
        return dimension.choices[int(rng.integers(len(dimension.choices)))]
    if (cells := dimension.cells()) is not None:
        return cells[int(rng.integers(len(cells)))]
    low, high = np.log([dimension.low, dimension.high]) if dimension.log else (dimension.low, dimension.high)
    drawn = float(rng.uniform(low, high))
    value = float(np.exp(drawn)) if dimension.log else drawn
    return round(value) if dimension.kind == "int" else min(max(value, dimension.low), dimension.high)


def _raise(problems: list[str], document: yaml.Document) -> None:
    if problems:
        raise ConfigError([f"{document.where(p.partition(': ')[0])}: {p}" for p in problems])
