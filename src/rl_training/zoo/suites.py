"""Suites: which presets are measured together, with which seeds, how they are judged. Never imports torch.

A suite is a YAML file, packaged (`classic-control`) or a user's own (a path that ends in .yaml). It names its
presets or patterns of them (`*/cartpole`): whoever adds a preset of a known task need not touch the suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import ConfigError, UnknownNameError, nearest
from rl_training.experiment import yaml
from rl_training.experiment.presets import load_preset, preset_names
from rl_training.schema import Float, NonNegativeInt, PositiveInt, config, section_problems

SEEDS = (1, 2, 3, 4, 5)
"""Seeds of what no suite says otherwise of."""
NOT_OVERRIDDEN = {
    "seed": "a suite runs several: say which by `seeds`",
    "total_timesteps": "say it by `steps`, beside `overrides`",
    "output_dir": "whoever runs the suite says where: by --output-dir",
}
"""What an entry cannot override, and what to do instead."""


@config
class Protocol:
    """How a trained agent is judged: full episodes of its test seeds, actions as in its own evaluations."""

    episodes: PositiveInt = 100
    """Episodes a seed."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which checkpoint plays: where training ended, or the one that evaluated best on the way."""


@config
class Entry:
    """A preset in a suite: how long it is trained, and what is expected of it."""

    steps: PositiveInt
    """Step budget; in a file, where none is given, that of the preset itself."""
    band: tuple[Float | None, Float | None] | None = None
    """The least and the most that the mean return over seeds should be; null: no limit on that side."""
    basis: Literal["measured", "published", "aim"] | None = None
    """What the band rests on: our results, other libraries' figures, or only on what the env allows."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Other values of the configuration, by dotted key."""


@config
class Suite:
    """What is run and judged together."""

    name: str
    """How it is called."""
    description: str
    """What is in it, in a line."""
    seeds: tuple[NonNegativeInt, ...] = SEEDS
    """Seeds of every preset."""
    evaluation: Protocol = field(default_factory=Protocol)
    """How every run is judged."""
    presets: dict[str, Any]
    """The presets, by name, with what the rows that match them say."""

    @property
    def entries(self) -> dict[str, Entry]:
        """The presets, as entries."""
        return {
            name: Entry(**{"steps": preset_steps(name), **values}) for name, values in self.presets.items()
        }


def suite_names() -> list[str]:
    """Every packaged suite, sorted."""
    folder = resources.files("rl_training") / "zoo" / "suites"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_suite(name: str) -> Suite:
    """A packaged suite by its name, or one in a file."""
    if name.endswith((".yaml", ".yml")):
        return _checked(Path(name).stem, yaml.load_file(name))
    if name not in suite_names():
        raise UnknownNameError("suite", name, suite_names(), "`axiomrl zoo list` shows all of them.")
    source = resources.files("rl_training") / "zoo" / "suites" / f"{name}.yaml"
    return _checked(name, yaml.load_text(source.read_text("utf-8"), f"suite {name}"))


def folder_name(name: str) -> str:
    """The folder for the runs of a preset, or of what else has several seeds."""
    return name.replace("/", "-")


def find_target(name: str) -> Suite:
    """The suite meant by the name of a suite or of a preset, which then is alone in it."""
    if name in suite_names() or name.endswith((".yaml", ".yml")):
        return load_suite(name)
    if name not in preset_names():
        everything = [*suite_names(), *preset_names()]
        known = everything if nearest(name, everything) else suite_names()  # there are too many presets
        hint = "`axiomrl zoo list` shows the suites, `axiomrl list presets` the presets."
        raise UnknownNameError("suite or preset", name, known, hint)
    short = folder_name(name)
    for suite in map(load_suite, suite_names()):
        if name in suite.presets:
            return Suite(
                name=short,
                description=name,
                seeds=suite.seeds,
                evaluation=suite.evaluation,
                presets={name: suite.presets[name]},
            )
    return Suite(name=short, description=name, presets={name: {}})


def preset_steps(name: str) -> int:
    """The number of steps that a preset is trained for."""
    return int(load_preset(name).data.get("total_timesteps", 100_000))


def first_seeds(seeds: tuple[int, ...], count: int | None) -> tuple[int, ...]:
    """So many seeds: the first of those given, and new ones after them."""
    if count is None:
        return seeds
    more = range(max(seeds, default=0) + 1, max(seeds, default=0) + 1 + count)
    return (*seeds, *more)[:count]


def train_arguments(preset: str, entry: Entry) -> list[str]:
    """The arguments of `axiomrl train` for a preset of a suite, without the seed."""
    words = ["--preset", preset]
    if entry.steps != preset_steps(preset):
        words += ["--total-timesteps", str(entry.steps)]
    for key, value in entry.overrides.items():
        written = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        words += [f"--{key.replace('_', '-')}", written]
    return words


def _checked(name: str, document: yaml.Document) -> Suite:
    """The suite of a document, or all that is wrong with it."""
    values = {"name": name, **document.data}
    problems = section_problems(Suite, values) or _seed_problems(values.get("seeds", SEEDS))
    rows = values.get("presets")
    for key, row in rows.items() if isinstance(rows, dict) else ():
        problems += _row_problems(key, row)
    if not problems and not rows:
        problems.append("presets: none given")
    if problems:
        raise ConfigError([f"{document.where(problem.partition(':')[0])}: {problem}" for problem in problems])
    return Suite(**{**values, "presets": _expanded(values["presets"])})


def _expanded(rows: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """The presets that the rows name or match; where several rows do, values of the later ones win."""
    found: dict[str, dict[str, Any]] = {}
    for key, row in rows.items():
        for name in _matching(key):
            found[name] = {**found.get(name, {}), **(row or {})}
    return found


def _matching(key: str) -> list[str]:
    return [name for name in preset_names() if fnmatchcase(name, key)]


def _seed_problems(seeds: Sequence[float]) -> list[str]:
    """Each seed is a run in a folder of its own."""
    twice = [seed for seed, count in Counter(seeds).items() if count > 1]
    problems = [f"seeds: {seed:g} is there more than once" for seed in twice]
    return problems if seeds else ["seeds: none given; leave the line out for 1 to 5"]


def _row_problems(key: str, row: Any) -> list[str]:
    at = ("presets", key)
    if not _matching(key):
        return [f"{'.'.join(at)}: {UnknownNameError('preset', key, preset_names())}"]
    if row is None:
        return []
    if not isinstance(row, dict):
        return [f"{'.'.join(at)}: expected a mapping, as in {{band: [475, 500]}}, or nothing, got {row!r}"]
    if problems := section_problems(Entry, {"steps": 1, **row}, at):
        return problems
    refused = {name: NOT_OVERRIDDEN.get(name.replace("-", "_")) for name in row.get("overrides") or ()}
    if problems := [f"{'.'.join(at)}.overrides.{n}: not here; {why}" for n, why in refused.items() if why]:
        return problems
    low, high = row.get("band") or (None, None)
    if low is not None and high is not None and low > high:
        return [f"{'.'.join(at)}.band: the least, {low}, is more than the most, {high}"]
    return []
