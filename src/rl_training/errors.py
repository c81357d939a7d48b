"""Errors a user can do something about. The command line prints them without a traceback and exits 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class AxiomError(Exception):
    """Base of every error that is explained to the user rather than traced."""


class ConfigError(AxiomError):
    """One or more mistakes in a configuration, all reported together."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UnknownNameError(ConfigError):
    """A name that is not registered (algorithm, preset, env, encoder, …)."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        message = f"unknown {kind} {name!r}"
        if near := nearest(name, known):
            message += f"; did you mean {near!r}?"
        elif known:
            message += f"; known: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
        stop = "" if near or not hint else "."
        super().__init__(f"{message}{stop}{' ' + hint if hint else ''}")


class EnvError(AxiomError):
    """An environment that cannot be made, breaks the Gymnasium API, or failed while running."""


class MissingExtraError(AxiomError):
    """Something needs an optional dependency that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f'{what} needs an optional dependency: pip install "axiomrl[{extra}]"')


class CheckpointError(AxiomError):
    """A checkpoint or run directory that is missing, damaged or not ours."""


class SaveError(CheckpointError):
    """A file of a run that could not be written: a full or read-only disk, an I/O error."""


class ExportError(AxiomError):
    """A policy or a dataset that could not be exported."""


class NonFiniteError(AxiomError):
    """NaN or infinity where training needs a number."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The closest known spelling of `name`, or None when nothing is close."""
    names = list(known)
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None
