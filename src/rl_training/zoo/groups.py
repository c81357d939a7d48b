"""Runs by group (algorithm, env and preset, unless asked otherwise) with the numbers a reader looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rl_training.errors import ConfigError
from rl_training.zoo import formatting as fmt
from rl_training.zoo.configs import Config, flat, is_free, is_open, shown
from rl_training.zoo.curves import Curve, first_reached, sample_efficiency, typical_time
from rl_training.zoo.drift import drift_of
from rl_training.zoo.keys import in_order, require_keys
from rl_training.zoo.statistics import CONFIDENCE, Estimate, Statistic, estimate, iqm
from rl_training.zoo.summaries import RunSummary

GROUP_BY = ("algo", "env", "preset")
ORDERS = ("name", "runs", "steps", "score", "best", "time", "speed")
STATUSES = ("completed", "running", "interrupted", "failed")


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their seed alone, as far as the grouping tells."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    runs: tuple[RunSummary, ...]
    score: Estimate | None
    best: float | None
    which: str = "final"

    @property
    def label(self) -> str:
        """The values that tell it apart, in one line."""
        return " · ".join(value for value in self.values if value not in ("", fmt.NONE)) or "all"

    @property
    def scores(self) -> list[float]:
        """The score of each run that has one."""
        return [score for run in self.runs if (score := run.score(self.which)) is not None]

    @property
    def episodes(self) -> tuple[int, int] | None:
        """The fewest and the most episodes behind a run's score, as far as they are known."""
        scored = [run for run in self.runs if run.score(self.which) is not None]
        known = [count for run in scored if (count := run.episodes(self.which))]
        return (min(known), max(known)) if known else None

    @property
    def evaluated(self) -> int:
        """How many runs have a learning curve."""
        return sum(bool(run.eval_steps) for run in self.runs)

    @property
    def steps(self) -> tuple[int, int]:
        """The fewest and the most steps of a run."""
        steps = [run.steps for run in self.runs]
        return min(steps), max(steps)

    @property
    def wall_seconds(self) -> float | None:
        """The median over runs."""
        return median(times) if (times := [r.wall_seconds for r in self.runs if r.wall_seconds]) else None

    @property
    def steps_per_second(self) -> float | None:
        """The median over runs."""
        rates = [run.steps_per_second for run in self.runs if run.steps_per_second]
        return median(rates) if rates else None

    @property
    def seeds(self) -> int:
        """How many seeds its scores come from: one run again with the same settings counts once.

        A result without a config, as a manifest may hold it, is taken for one of the same settings.
        """
        scored = [run for run in self.runs if run.score(self.which) is not None]
        named = [run for run in scored if run.seed != "unknown"]
        keys = [(run.algo, run.env_id, run.preset, run.seed) for run in named]
        if len(set(keys)) == len(keys):
            return len(scored)
        settings = {id(run.config): _decisive(run.config) for run in named}
        known = {(key, settings[id(run.config)]) for key, run in zip(keys, named, strict=True) if run.config}
        bare = set(keys) - {key for key, _ in known}
        return len(known) + len(bare) + len(scored) - len(named)

    @property
    def statuses(self) -> dict[str, int]:
        """How many runs ended how."""
        counted = Counter(run.status for run in self.runs)
        ordered = [*STATUSES, *sorted(set(counted) - set(STATUSES))]
        return {status: counted[status] for status in ordered if counted[status]}

    @property
    def envs(self) -> list[str]:
        """The envs of its runs."""
        return sorted({run.env_id for run in self.runs})

    @property
    def drift(self) -> dict[str, int]:
        """What is not as was laid down, and in how many runs; what is trained before how long."""
        counted = Counter(change for run in self.runs for change in drift_of(run))
        return {str(change): counted[change] for change in sorted(counted, key=lambda change: change.kind)}

    @property
    def drifted(self) -> int:
        """How many runs are not what their preset or manifest says."""
        return sum(bool(drift_of(run)) for run in self.runs)

    @property
    def mixed(self) -> dict[str, list[str]]:
        """What makes its runs different experiments, where the grouping was to keep those apart."""
        if not {"algo", "env"} <= set(self.keys):
            return {}
        found = _settings(self).items()
        return {
            key: sorted(texts, key=in_order) for key, texts in found if len(texts) > 1 and not is_free(key)
        }

    def curve(self, confidence: float = CONFIDENCE) -> Curve:
        """Evaluations over steps."""
        runs = [(run.eval_steps, run.eval_means) for run in self.runs]
        return sample_efficiency(runs, confidence=confidence)

    def reached(self, threshold: float) -> Reached:
        """How many runs got to a return, and when."""
        steps = [first_reached(run.eval_steps, run.eval_means, threshold) for run in self.runs]
        seconds = [
            first_reached(
                [s if s is not None else float("inf") for s in run.eval_seconds], run.eval_means, threshold
            )
            for run in self.runs
        ]
        count = sum(step < float("inf") for step in steps)
        return Reached(count, typical_time(steps), typical_time(seconds))


@dataclass(frozen=True, slots=True)
class Reached:
    """How many runs got to a threshold, and the median of when; None if fewer than half did."""

    runs: int
    steps: float | None
    seconds: float | None


def group_runs(
    runs: Sequence[RunSummary],
    by: Sequence[str] = GROUP_BY,
    *,
    which: str = "final",
    statistic: Statistic = iqm,
    confidence: float = CONFIDENCE,
) -> list[Group]:
    """Groups in the order of their names."""
    require_keys(runs, by, "--group-by")
    members: dict[tuple[str, ...], list[RunSummary]] = {}
    for run in runs:
        members.setdefault(tuple(_text(run, key) for key in by), []).append(run)
    groups = []
    for values, own in sorted(members.items(), key=lambda item: _in_order(item[0])):
        scores = [score for run in own if (score := run.score(which)) is not None]
        found = estimate([scores], statistic, confidence=confidence) if scores else None
        best = max((run.best for run in own if run.best is not None), default=None)
        groups.append(Group(tuple(by), values, tuple(own), found, best, which))
    return groups


def sort_groups(groups: Sequence[Group], order: str) -> list[Group]:
    """By one column: numbers from the largest down, names from A; `-` before it turns that round."""
    name = order.removeprefix("-")
    if name not in ORDERS:
        raise ConfigError(f"command line: --sort {order}: expected one of {', '.join(ORDERS)}")
    if name == "name":
        return sorted(groups, key=lambda g: _in_order(g.values), reverse=order.startswith("-"))
    known = [group for group in groups if _number(group, name) is not None]
    unknown = [group for group in groups if _number(group, name) is None]
    return [
        *sorted(known, key=lambda g: _number(g, name) or 0.0, reverse=not order.startswith("-")),
        *unknown,
    ]


def config_differences(groups: Sequence[Group], ignore: Sequence[str] = ()) -> list[tuple[str, list[str]]]:
    """Config keys that are not the same everywhere: the key, and for each group its value or values.

    Keys that all groups have come first: those of one algorithm alone are many, and tell little.
    """
    per_group = [_settings(group) for group in groups]
    keys = dict.fromkeys(key for found in per_group for key in found if key not in ignore)
    rows = []
    for key in keys:
        cells = [" | ".join(sorted(found.get(key, [fmt.NONE]), key=in_order)) for found in per_group]
        if len(set(cells)) > 1 or any(" | " in cell for cell in cells):
            rows.append((key, cells))
    return sorted(rows, key=lambda row: row[1].count(fmt.NONE))


def _settings(group: Group) -> dict[str, list[str]]:
    """Every key of the configs of a group's runs, with the values that it has among them."""
    found: dict[str, dict[str, None]] = {}
    configs = [dict(flat(config)) for config in {id(run.config): run.config for run in group.runs}.values()]
    for config in configs:
        for key, value in config.items():
            found.setdefault(key, {})[shown(value)] = None
    for key in filter(is_open, found):
        if any(key not in config for config in configs):
            found[key][fmt.NONE] = None
    return {key: list(texts) for key, texts in found.items()}


def _decisive(config: Config) -> frozenset[tuple[str, str]]:
    """What makes a config the experiment that it is."""
    return frozenset((key, shown(value)) for key, value in flat(config) if not is_free(key))


def _in_order(values: Sequence[str]) -> list[tuple[bool, float, str]]:
    return [in_order(value) for value in values]


def _number(group: Group, name: str) -> float | None:
    match name:
        case "runs":
            return float(len(group.runs))
        case "steps":
            return float(group.steps[1])
        case "score":
            return group.score.value if group.score else None
        case "best":
            return group.best
        case "time":
            return group.wall_seconds
        case _:
            return group.steps_per_second


def _text(run: RunSummary, key: str) -> str:
    value = run.value(key)
    if value is None:
        return fmt.NONE
    return ", ".join(value) if key == "tags" else shown(value)
