"""Which runs to look at: conditions such as `env=CartPole*`, `status!=failed`, `hyperparams.gamma>=0.98`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rl_training.errors import ConfigError
from rl_training.zoo.configs import shown
from rl_training.zoo.keys import as_number, require_keys
from rl_training.zoo.summaries import RunSummary

_SYNTAX = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*")
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A key, how it is compared, and with what: text with `*` and `?`, or a number."""

    key: str
    relation: str
    wanted: str

    def holds(self, run: RunSummary) -> bool:
        """Does the run meet it? A value that is not there meets no comparison but `!=`."""
        value = run.value(self.key)
        if self.relation in _ORDER:
            number = as_number(value)
            return number is not None and _ORDER[self.relation](number, float(self.wanted))
        values = value if isinstance(value, list | tuple) else (value,)
        matched = any(self._matches(one) for one in values)
        return matched if self.relation == "=" else not matched

    def _matches(self, value: Any) -> bool:
        number, wanted = as_number(value), as_number(self.wanted)
        if number is not None and wanted is not None:
            return number == wanted
        return fnmatchcase(shown(value), self.wanted)


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions as they are written on the command line."""
    conditions = []
    for text in texts:
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ConfigError(f"command line: --filter {text!r}: expected KEY=VALUE, as in env=CartPole-v1")
        key, relation, wanted = match.groups()
        if relation in _ORDER and as_number(wanted) is None:
            raise ConfigError(f"command line: --filter {text!r}: {relation} needs a number, got {wanted!r}")
        conditions.append(Condition(key, relation, wanted))
    return conditions


def select(runs: Sequence[RunSummary], conditions: Sequence[Condition]) -> list[RunSummary]:
    """The runs that meet every condition; one on a key that no run has is an error."""
    require_keys(runs, [condition.key for condition in conditions], "--filter")
    return [run for run in runs if all(condition.holds(run) for condition in conditions)]
