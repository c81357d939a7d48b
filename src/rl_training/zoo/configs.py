"""Configs of many runs, read fast: seeds of one experiment share almost every line, which is parsed once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment import sections, yaml
from rl_training.experiment.files import read_at_once
from rl_training.experiment.sections import ABSENT

_MAX_BYTES = 1_000_000
_SECTION = re.compile(r"^(?=\w)", re.MULTILINE)
_WHOLE_NUMBER = re.compile(r"(\w+): (0|[1-9]\d{0,17})\n?")
OWN = ("seed", "output_dir", "tags")
"""Keys that differ between runs of the same experiment."""
FREE = (
    "seed", "output_dir", "tags", "device", "threads", "compile", "deterministic", "on_nan", "checkpoint",
    "logging",
)  # fmt: skip
"""What a run may choose without becoming another experiment."""
FREE_KEYS = (
    "env.atari.threads", "env.backend", "env.max_worker_restarts", "env.worker_timeout",
    "evaluation.num_envs",
)  # fmt: skip
OPEN = ("env_kwargs",)
"""Sections that take any key, so that a key which is not there is a value like others."""

Config = Mapping[str, Any]
Difference = tuple[str, str, str]
"""A key, the value that was expected and the one that was found, as texts."""


class ConfigReader:
    """Reads `config.yaml` files; equal ones (apart from `OWN`) become one object."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, ...], Config] = {}

    def read(self, path: str) -> tuple[Config, Config]:
        """What the run shares with its siblings, and what is its own. Same data as `yaml.load_file`."""
        found = _sections(read_at_once(path, _MAX_BYTES).decode("utf-8", "surrogateescape"))
        if found is None:
            document = yaml.load_file(path).data
            return {k: v for k, v in document.items() if k not in OWN}, _own(document)
        chunks = tuple(chunk for key, (chunk, _) in found.items() if key not in OWN)
        shared = self._shared.get(chunks)
        if shared is None:
            shared = {key: value for key, (_, value) in found.items() if key not in OWN}
            self._shared[chunks] = shared
        return shared, _own({key: value for key, (_, value) in found.items() if key in OWN})


def value_at(config: Config, key: str) -> Any:
    """A value by its dotted name, or None."""
    found: Any = config
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def flat(config: Config) -> Iterator[tuple[str, Any]]:
    """Every value by its dotted name; an empty section has none."""
    return ((".".join(map(str, path)), value) for path, value in sections.flat(config))


def is_free(key: str) -> bool:
    """May a run choose this without becoming another experiment?"""
    return key.split(".")[0] in FREE or key in FREE_KEYS


def is_open(key: str) -> bool:
    """Does it belong to a section that takes any key?"""
    return key.split(".")[0] in OPEN


def difference(key: str, expected: Any, found: Any) -> Difference:
    """A difference as it is told; what is not there is left to the default."""
    wanted, own = ("the default" if value is ABSENT else shown(value) for value in (expected, found))
    return key, wanted, own


def shown(value: Any) -> str:
    """A value as it would stand in a config file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _own(document: Config) -> Config:
    return {key: document[key] for key in OWN if key in document}


def _sections(text: str) -> dict[str, tuple[str, Any]] | None:
    """Top-level keys with their text and value; None for what only a whole parse can judge."""
    chunks = _SECTION.split(text)
    if chunks[0].strip():
        return None
    found: dict[str, tuple[str, Any]] = {}
    for chunk in chunks[1:]:
        try:
            key, value = _parsed(chunk)
        except (ConfigError, RecursionError, ValueError):
            return None
        if key in found:
            return None
        found[key] = (chunk, value)
    return found


@lru_cache(maxsize=20_000)
def _parsed(chunk: str) -> tuple[str, Any]:
    """One top-level key and its value."""
    if number := _WHOLE_NUMBER.fullmatch(chunk):
        return number[1], int(number[2])
    ((key, value),) = yaml.load_text(chunk, "config").data.items()
    return key, value
