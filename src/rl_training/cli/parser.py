"""What all commands share: how arguments are read and mistakes reported, and what is imported first."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from rl_training.errors import AxiomError, ConfigError, nearest

_ELSEWHERE = {
    "lr": "learning-rate",
    "n-steps": "num-steps",
    "n-epochs": "update-epochs",
    "n-envs": "num-envs",
    "n-minibatches": "num-minibatches",
    "total-steps": "total-timesteps",
    "clip-range": "clip-coef",
    "entropy-coef": "ent-coef",
    "value-coef": "vf-coef",
    "discount": "gamma",
    "env": "env-id",
}
"""What other packages call some options, and what they are called here."""


class UsageError(AxiomError):
    """A command that was called in a way it does not understand."""


class Parser(argparse.ArgumentParser):
    """Argparse with errors that are raised, suggestions, and help that may depend on the other arguments."""

    overrides: bool = False
    details: Callable[[Sequence[str]], str] | None = None

    def __init__(self, command: str, help_text: str, argv: Sequence[str] = ()) -> None:
        super().__init__(
            prog=f"axiomrl {command}",
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._argv = argv

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments; what the command leaves to the configuration is in `extra`."""
        known = self.option_names()
        unknown = [word for word in argv if is_option(word) and word.partition("=")[0] not in known]
        if (
            unknown and not self.overrides
        ):  # before argparse complains of what is missing for that very reason
            raise ConfigError([self.unknown(word) for word in unknown])
        args, extra = self.parse_known_args(argv)
        if extra and not self.overrides:
            raise ConfigError([f"command line: {word!r}: unexpected argument" for word in extra])
        args.extra, args.parser = extra, self
        return args

    def unknown(self, option: str, others: Sequence[str] = ()) -> str:
        """What to say about an option that does not exist."""
        option = option.partition("=")[0]
        near = _meant(option, [*self.option_names(), *others])
        advice = f"did you mean {near}?" if near else f"`{self.prog} --help` shows all of them"
        return f"command line: {option}: unknown option; {advice}"

    def option_names(self) -> list[str]:
        """The long options of the command itself."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def format_help(self) -> str:
        """The help, with the details that depend on the other arguments."""
        details = self.details(self._argv) if self.details is not None else ""
        return super().format_help() + details

    def error(self, message: str) -> NoReturn:
        """Argparse's way to give up."""
        raise UsageError(f"{message}\n`{self.prog} --help` shows how it is used.")


def normalized(argv: Sequence[str]) -> list[str]:
    """The arguments with options spelled with dashes, whichever way they were given."""
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        words.append(f"{name.replace('_', '-')}{equals}{value}" if is_option(word) else word)
    return words


def is_option(word: str) -> bool:
    """Is it the name of an option rather than a value? Numbers below zero are values."""
    return word.startswith("--") and len(word) > 2


def _meant(option: str, known: Sequence[str]) -> str | None:
    """The option, or the few, that somebody may have meant who wrote one that does not exist."""
    section, _, key = option.rpartition(".")
    parts = {name: (name.rpartition(".")[0], name.lstrip("-").rpartition(".")[2]) for name in known}
    inside = {own: name for name, (where, own) in parts.items() if section and where == section}
    for wanted in (key.lstrip("-"), _ELSEWHERE.get(key.lstrip("-"))):
        if wanted in inside:
            return inside[wanted]
        same = [name for name, (_, own) in parts.items() if own == wanted]
        if 1 <= len(same) <= 3:
            return " or ".join(sorted(same, key=lambda name: not name.startswith("--hyperparams.")))
    if inside:  # the section is right; compared with it, all that it holds would look alike
        return inside.get(nearest(key, inside) or "")
    return nearest(option, known)


def positive_int(text: str) -> int:
    """A whole number from 1 up, also written 1e6 or 100_000."""
    return _whole(text, 1)


def non_negative_int(text: str) -> int:
    """A whole number from 0 up."""
    return _whole(text, 0)


def non_negative_float(text: str) -> float:
    """A number from 0 up."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")
    return number


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def finite_float(text: str) -> float:
    """Any number, but neither infinity nor NaN."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return number


def _whole(text: str, least: int) -> int:
    try:
        number = float(text)
        if not number.is_integer() or number < least:
            raise ValueError
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, got {text!r}"
        ) from None
    return int(text) if text.replace("_", "").isdigit() else int(number)


def add_import(parser: Parser) -> None:
    """The option that makes a user's own envs, encoders and algorithms known."""
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="PKG",
        action="append",
        default=[],
        help="import this module first, for the envs, encoders or algorithms it registers (repeatable)",
    )


def import_modules(names: Sequence[str]) -> None:
    """Import what the user named, also from the working directory."""
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # it was found; what it imports was not
            raise ConfigError(f"command line: --import {name}: no such module") from None
