"""`axiomrl report DIR…`: many runs as a table of groups, in every notation but HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_training.experiment.files import to_json
from rl_training.zoo import formatting as fmt
from rl_training.zoo.drift import drift_of
from rl_training.zoo.groups import GROUP_BY, Group, group_runs, sort_groups
from rl_training.zoo.scan import Scan
from rl_training.zoo.statistics import STATISTICS, Estimate
from rl_training.zoo.summaries import RunSummary
from rl_training.zoo.tables import Column, Table

LISTED = 20
TITLES = {"iqm": "IQM", "mean": "mean", "median": "median"}


@dataclass(frozen=True, slots=True)
class Overview:
    """Grouped runs and what was met on the way."""

    groups: Sequence[Group]
    scan: Scan
    statistic: str = "iqm"
    confidence: float = 0.95
    threshold: float | None = None
    sources: Sequence[str] = field(default_factory=tuple)

    @property
    def runs(self) -> list[RunSummary]:
        """Every run shown."""
        return [run for group in self.groups for run in group.runs]

    @property
    def title(self) -> str:
        """`IQM, 95 %`."""
        return f"{TITLES[self.statistic]} [{100 * self.confidence:g} %]"


def overview(
    scan: Scan,
    runs: Sequence[RunSummary],
    *,
    by: Sequence[str] = GROUP_BY,
    sort: str = "name",
    which: str = "final",
    statistic: str = "iqm",
    confidence: float = 0.95,
    threshold: float | None = None,
    sources: Sequence[str] = (),
) -> Overview:
    """Group and sort the runs."""
    groups = group_runs(runs, by, which=which, statistic=STATISTICS[statistic], confidence=confidence)
    return Overview(sort_groups(groups, sort), scan, statistic, confidence, threshold, tuple(sources))


def group_table(view: Overview) -> Table:
    """One row a group."""
    keys = view.groups[0].keys if view.groups else GROUP_BY
    columns = [Column(key, key.rpartition(".")[2], numeric=False) for key in keys]
    columns += [
        Column("runs", "runs"), Column("steps", "steps"), Column("score", view.title),
        Column("episodes", "episodes"), Column("best", "best"),
    ]  # fmt: skip
    if view.threshold is not None:
        at = fmt.number(view.threshold)
        columns += [
            Column("reached", f"≥ {at}"),
            Column("steps_to", "in steps"),
            Column("seconds_to", "in time"),
        ]
    columns += [Column("time", "time"), Column("speed", "steps/s"), Column("status", "status", numeric=False)]
    if any(group.drifted for group in view.groups):
        columns.append(Column("drift", "drift", numeric=False))
    names = [column.key for column in columns]
    shown = [[cells[name] for name in names] for group in view.groups if (cells := _cells(group, view))]
    return Table(columns, shown, [group_data(group, view) for group in view.groups])


def group_data(group: Group, view: Overview) -> dict[str, Any]:
    """A group for programs."""
    low, high = (group.score.low, group.score.high) if group.score else (None, None)
    data: dict[str, Any] = {
        **dict(zip(group.keys, group.values, strict=True)),
        "runs": len(group.runs),
        "scored_runs": len(group.scores),
        "seeds": group.seeds,
        "min_steps": group.steps[0],
        "max_steps": group.steps[1],
        view.statistic: group.score.value if group.score else None,
        "low": low,
        "high": high,
        "min_episodes": group.episodes[0] if group.episodes else None,
        "max_episodes": group.episodes[1] if group.episodes else None,
        "best": group.best,
        "median_seconds": group.wall_seconds,
        "median_steps_per_second": group.steps_per_second,
        "status": group.statuses,
        "drifted_runs": group.drifted,
        "drift": list(group.drift),
        "mixed": group.mixed,
    }
    if view.threshold is not None:
        reached = group.reached(view.threshold)
        data |= {"reached": reached.runs, "steps_to": reached.steps, "seconds_to": reached.seconds}
    return data


def run_data(run: RunSummary, which: str = "final") -> dict[str, Any]:
    """A run for programs."""
    return {
        "path": run.path, "algo": run.algo, "env": run.env_id, "preset": run.preset, "seed": run.seed,
        "status": run.status, "created": run.created, "steps": run.steps, "score": run.score(which),
        "episodes": run.episodes(which), "best": run.best, "seconds": run.wall_seconds,
        "steps_per_second": run.steps_per_second,
        "drift": [str(change) for change in drift_of(run)], "problems": list(run.problems),
    }  # fmt: skip


def as_text(view: Overview) -> str:
    """The table, and under it what a reader must know."""
    return (group_table(view).text() if view.groups else "no runs\n") + _notes(view)


def as_markdown(view: Overview) -> str:
    """The table as Markdown, notes as paragraphs."""
    notes = "".join(f"\n- {line.strip()}" for line in _notes(view).splitlines() if line.strip())
    return (group_table(view).markdown() if view.groups else "no runs\n") + (f"{notes}\n" if notes else "")


def as_csv(view: Overview) -> str:
    """One line a group."""
    return group_table(view).csv()


def as_json(view: Overview) -> str:
    """Everything: groups, runs, damaged runs and directories without any."""
    which = view.groups[0].which if view.groups else "final"
    data = {
        "statistic": view.statistic,
        "confidence": view.confidence,
        "score": which,
        "groups": [group_data(group, view) for group in view.groups],
        "runs": [run_data(run, which) for run in view.runs],
        "foreign": [{"path": path, "reason": reason} for path, reason in view.scan.foreign],
    }
    return to_json(data, indent=1) + "\n"


def score_text(score: Estimate | None) -> str:
    """`453.2 [410.0, 487.1]`, all with the same decimals."""
    if score is None:
        return fmt.NONE
    decimals = decimals_for(score)
    if score.low is None or score.high is None:
        return fmt.number(score.value, decimals)
    low, high = fmt.number(score.low, decimals), fmt.number(score.high, decimals)
    return f"{fmt.number(score.value, decimals)} [{low}, {high}]"


def decimals_for(score: Estimate) -> int:
    """Enough for the value and to tell the bounds apart, and no more."""
    low, high = score.bounds
    return fmt.decimals_to_tell(max(abs(score.value), abs(low), abs(high)), low, high)


def steps_text(group: Group) -> str:
    """`100k`, or `10k–100k` where runs differ."""
    low, high = (fmt.compact(float(f"{steps:.3g}")) for steps in group.steps)
    return high if low == high else f"{low}{fmt.NONE}{high}"


def episodes_text(group: Group) -> str:
    """`100`, or `10–100` where runs were judged by different numbers of episodes."""
    low, high = group.episodes or (0, 0)
    return fmt.NONE if not high else str(high) if low == high else f"{low}{fmt.NONE}{high}"


def status_text(group: Group) -> str:
    """`completed`, or `4 completed, 1 failed`."""
    statuses = group.statuses
    if len(statuses) == 1:
        return next(iter(statuses))
    return ", ".join(f"{count} {status}" for status, count in statuses.items())


def drift_text(group: Group) -> str:
    """What is not as in the preset or the manifest, in short."""
    if not group.drift:
        return ""
    keys = list(dict.fromkeys(change.partition(":")[0].partition(" was ")[0] for change in group.drift))
    some = ", ".join(keys[:3]) + (f", +{len(keys) - 3}" if len(keys) > 3 else "")
    return f"{group.drifted} of {len(group.runs)}: {some}"


def mixtures(view: Overview) -> list[str]:
    """Groups that hold runs of different settings, with what differs, and how to keep them apart."""
    found = {group.label: mixed for group in view.groups if (mixed := group.mixed)}
    lines = []
    for label, mixed in found.items():
        some = [f"{key} {fmt.listed(values)}" for key, values in list(mixed.items())[:3]]
        lines.append(f"{label}: {'; '.join(some)}{f'; +{len(mixed) - 3}' if len(mixed) > 3 else ''}")
    keys = list(dict.fromkeys(key for mixed in found.values() for key in mixed))
    if lines and len(keys) <= 3:
        lines.append(f"--group-by {','.join([*view.groups[0].keys, *keys])} keeps them apart")
    return lines


def repeats(view: Overview) -> list[str]:
    """Groups in which a seed was run more than once: their runs are not independent."""
    return [
        f"{group.label}: {len(group.scores)} runs, {group.seeds} seed{'s' * (group.seeds != 1)}"
        for group in view.groups
        if group.seeds < len(group.scores) and "seed" not in group.keys
    ]


def _cells(group: Group, view: Overview) -> dict[str, str]:
    scored = len(group.scores)
    cells = {
        **dict(zip(group.keys, group.values, strict=True)),
        "runs": str(len(group.runs)) if scored in (0, len(group.runs)) else f"{scored} of {len(group.runs)}",
        "steps": steps_text(group),
        "score": score_text(group.score),
        "episodes": episodes_text(group),
        "best": fmt.number(group.best, decimals_for(Estimate(group.best)))
        if group.best is not None
        else fmt.NONE,
        "time": fmt.duration(group.wall_seconds) if group.wall_seconds else fmt.NONE,
        "speed": fmt.count(round(group.steps_per_second)) if group.steps_per_second else fmt.NONE,
        "status": status_text(group),
        "drift": drift_text(group),
    }
    if view.threshold is not None:
        reached = group.reached(view.threshold)
        cells["reached"] = f"{reached.runs} of {len(group.runs)}"
        cells["steps_to"] = fmt.compact(reached.steps) if reached.steps is not None else fmt.NONE
        cells["seconds_to"] = fmt.duration(reached.seconds) if reached.seconds is not None else fmt.NONE
    return cells


def _notes(view: Overview) -> str:
    lines: list[str] = []
    if mixed := mixtures(view):
        lines += _listed("runs of different settings in one group", mixed)
    if repeated := repeats(view):
        lines += _listed("the same seed counted more than once, so that intervals are too narrow", repeated)
    if damaged := [run for run in view.runs if run.problems]:
        lines += _listed(f"{len(damaged)} damaged", [f"{r.path}: {'; '.join(r.problems)}" for r in damaged])
    if view.scan.foreign:
        foreign = [f"{path}: {reason}" for path, reason in view.scan.foreign]
        lines += _listed(f"{len(foreign)} without a run", foreign)
    return "".join(f"{line}\n" for line in lines)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    more = [f"  … and {len(items) - LISTED} more"] if len(items) > LISTED else []
    return ["", f"{title}:", *(f"  {item}" for item in items[:LISTED]), *more]
