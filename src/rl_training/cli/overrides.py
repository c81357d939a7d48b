"""From the arguments of `train` and `config` to a configuration: what to build on, then typed overrides.

Read in two steps: first which algorithm is meant, then the options of that algorithm's dataclasses. The
values become the topmost layer of the configuration, so that mistakes in files and arguments are found by
the same validation and reported together.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training import registry
from rl_training.cli.options import Option, config_options, render_help
from rl_training.cli.parser import Parser, add_import, import_modules, is_option
from rl_training.errors import ConfigError
from rl_training.experiment.config import KeyPath
from rl_training.experiment.layers import Layer, Resolved, file_layers, preset_layers, resolve_layers

ORIGIN = "command line"
NOTHING_CHOSEN = "nothing chosen: give --preset NAME, --config FILE, or --algo ALGORITHM --env-id ENV"
HOW_TO_SEE_ALL = """
Every field of the configuration is an option. To see the rest, with the algorithm's hyperparameters:
  axiomrl {command} --algo ppo --help
  axiomrl {command} --preset ppo/cartpole --help
Values are written as in YAML: --hyperparams.learning-rate 1e-3  --network.hidden 64 64  --tags a b
  --env.normalize-obs  --no-logging.tensorboard  --env-kwargs.g 9.8  --network.activation null
"""


def add_selectors(parser: Parser) -> None:
    """What a configuration is built on, and the promise that any of its fields can be overridden."""
    command = parser.prog.rpartition(" ")[2]
    choice = "(--preset NAME | --config FILE | --algo ALGORITHM --env-id ENV)"
    parser.usage = f"{parser.prog} {choice}\n{'':>{8 + len(parser.prog)}}[options] [--FIELD VALUE ...]"
    parser.add_argument(
        "--preset", metavar="NAME", help="a packaged preset; `axiomrl list presets` shows them"
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file; with --preset, its values win")
    add_import(parser)
    parser.overrides = True
    parser.details = lambda argv: _details(command, argv)


def resolve(args: argparse.Namespace) -> Resolved:
    """The configuration that the arguments describe, or every mistake in it."""
    import_modules(args.imports)
    layers = _sources(args)
    entry = _entry(_algorithm(layers, args))
    values, problems = read_overrides(args.extra, args.parser, config_options(entry), _open(entry))
    if not layers and "algo" not in values and "env_id" not in values:
        raise ConfigError([*problems, NOTHING_CHOSEN])
    try:
        resolved = resolve_layers([*layers, Layer(ORIGIN, values)])
    except ConfigError as error:
        raise ConfigError([*error.problems, *problems]) from None
    problems += module_problems(resolved, args.imports)
    if problems:
        raise ConfigError(problems)
    return resolved


def override_layer(args: argparse.Namespace, algo: str, **more: Any) -> Layer:
    """The overrides for a configuration whose algorithm is known."""
    entry = _entry(algo)
    values, problems = read_overrides(args.extra, args.parser, config_options(entry), _open(entry))
    if problems:
        raise ConfigError(problems)
    return Layer(ORIGIN, {**values, **{key: value for key, value in more.items() if value is not None}})


def read_overrides(
    words: Sequence[str], parser: Parser, options: Mapping[str, Option], open_sections: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Arguments as nested values, and everything that is wrong with them; the last of a kind wins."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    queue = deque(words)
    while queue:
        word = queue.popleft()
        if not is_option(word):
            problems.append(f"{ORIGIN}: {word!r}: unexpected argument")
            continue
        name, equals, value = word.partition("=")
        option, negated = _find(name, options, open_sections)
        limit = sys.maxsize if option is None or option.takes_many else 1
        given = [value] if equals else [] if negated else _take(queue, limit)
        if option is None:
            problems.append(parser.unknown(name, list(options)))
            continue
        try:
            _put(values, option.path, False if negated else option.read(given))
        except ConfigError as error:
            problems += error.problems
    return values, problems


def _find(
    name: str, options: Mapping[str, Option], open_sections: Sequence[str]
) -> tuple[Option | None, bool]:
    """The option of this name, and whether it is said to be off (`--no-…`)."""
    if name in options:
        return options[name], False
    positive = options.get(f"--{name.removeprefix('--no-')}")
    if name.startswith("--no-") and positive is not None and positive.is_flag:
        return positive, True
    path = tuple(name.removeprefix("--").replace("-", "_").split("."))
    is_open = len(path) > 1 and path[0] in open_sections and all(path)
    return (Option(path) if is_open else None), False


def _take(queue: deque[str], limit: int) -> list[str]:
    taken: list[str] = []
    while queue and len(taken) < limit and not is_option(queue[0]):
        taken.append(queue.popleft())
    return taken


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for step in path[:-1]:
        if not isinstance(values.get(step), dict):
            values[step] = {}
        values = values[step]
    before = values.get(path[-1])
    values[path[-1]] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value


def _sources(args: argparse.Namespace) -> list[Layer]:
    """The layers below the command line."""
    layers: list[Layer] = []
    problems: list[str] = []
    for load, name in ((preset_layers, args.preset), (lambda path: file_layers(Path(path)), args.config)):
        try:
            layers += [] if name is None else load(name)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return layers


def _algorithm(layers: Sequence[Layer], args: argparse.Namespace) -> str | None:
    """Which algorithm is meant, if any."""
    chosen, _ = read_overrides(args.extra, args.parser, config_options(), ("env_kwargs", "hyperparams"))
    named = [values["algo"] for values in (*(layer.values for layer in layers), chosen) if "algo" in values]
    return named[-1] if named and isinstance(named[-1], str) else None


def _entry(algo: str | None) -> registry.AlgorithmEntry | None:
    """Its entry; a name that does not exist is reported with everything else, by the validation."""
    try:
        return None if algo is None else registry.algorithm(algo)
    except ConfigError:
        return None


def _open(entry: registry.AlgorithmEntry | None) -> tuple[str, ...]:
    """Sections whose keys are not known beforehand; hyperparameters while it is unknown whose they are."""
    return ("env_kwargs", "hyperparams") if entry is None else ("env_kwargs",)


def module_problems(resolved: Resolved, imports: Sequence[str]) -> list[str]:
    """A file must not decide what code is imported: `module:Env-v0` in it needs `--import`."""
    module = resolved.config.env_id.rpartition(":")[0]
    origin = resolved.origins.get(("env_id",), ORIGIN)
    if not module or origin == ORIGIN or module in imports or module in sys.modules:
        return []
    return [f"{origin}: env_id: {resolved.config.env_id!r} imports code; allow it with --import {module}"]


def _details(command: str, argv: Sequence[str]) -> str:
    """The options of the chosen algorithm with their values so far; without a choice, the common ones."""
    parser = Parser(command, "help")
    add_selectors(parser)
    args, extra = parser.parse_known_args([word for word in argv if word not in ("-h", "--help")])
    args.extra, args.parser = extra, parser
    import_modules(args.imports)
    layers = _sources(args)
    algo = _algorithm(layers, args)
    entry = None if algo is None else registry.algorithm(algo)
    options = config_options(entry)
    if entry is None:
        common = [option for option in options.values() if len(option.path) == 1]
        return render_help(common, {}) + HOW_TO_SEE_ALL.format(command=command)
    values, _ = read_overrides(extra, parser, options, _open(entry))
    return render_help(list(options.values()), _given([*layers, Layer(ORIGIN, values)]))


def _given(layers: Sequence[Layer]) -> dict[KeyPath, tuple[Any, str]]:
    """The values of all layers and where each comes from."""
    found: dict[KeyPath, tuple[Any, str]] = {}

    def visit(values: Mapping[str, Any], origin: str, at: KeyPath) -> None:
        for key, value in values.items():
            found[(*at, key)] = (value, origin)
            if isinstance(value, Mapping):
                visit(value, origin, (*at, key))

    for layer in layers:
        visit(layer.values, layer.origin, ())
    return found
