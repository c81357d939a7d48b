"""A study as text for people, and as JSON and CSV for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.files import to_json
from rl_training.zoo import formatting as fmt
from rl_training.zoo.configs import shown
from rl_training.zoo.tables import Column, Table
from rl_training.zoo.tuning.importance import MIN_TRIALS, importances
from rl_training.zoo.tuning.record import StudyRecord, TrialRecord
from rl_training.zoo.tuning.summary import counts, origin, param, score_words, short_names, verdict_sentence

LISTED = 10


def best_so_far(trials: Sequence[TrialRecord]) -> list[float | None]:
    """The highest score of a completed trial up to each trial, by number."""
    found: list[float | None] = []
    best: float | None = None
    for trial in trials:
        if trial.state == "completed" and trial.value is not None:
            best = trial.value if best is None else max(best, trial.value)
        found.append(best)
    return found


def slices(record: StudyRecord) -> dict[str, list[dict[str, Any]]]:
    """Of each parameter, the values tried and what they came to."""
    trials = record.of("completed", "pruned")
    return {key: [_point(trial, key) for trial in trials if key in trial.params] for key in record.space}


def as_json(record: StudyRecord) -> str:
    """Everything: the record, and what is computed from it."""
    best = record.best
    history = zip(record.trials, best_so_far(record.trials), strict=True)
    data = {
        **record.data,
        "best": None if best is None else {"trial": best.number, "value": best.value, "params": best.params},
        "history": [
            {"trial": t.number, "state": t.state, "value": t.value, "best_so_far": so_far}
            for t, so_far in history
        ],
        "importances": [{"key": i.key, "share": i.share, "p": i.p} for i in importances(record)],
        "slices": slices(record),
        "sentence": verdict_sentence(record),
    }
    return to_json(data, indent=1) + "\n"


def as_csv(record: StudyRecord) -> str:
    """One line a trial."""
    return trial_table(record, record.trials).csv()


def as_text(record: StudyRecord) -> str:
    """What came out, on a screen."""
    base = record.data["base"]
    lines = [
        f"{record.name}: {base.get('algo')} on {base.get('env_id')}, tuned from {origin(record)}",
        counts(record),
        *(f"warning: {warning}" for warning in record.data.get("warnings") or ()),
    ]
    best = record.best
    if best is not None:
        lines += ["", f"best: trial {best.number}, {fmt.number(best.value or 0.0)} ({score_words(record)})"]
    lines += ["", parameter_table(record).text()]
    if best is not None and len(record.of("completed", "pruned")) < MIN_TRIALS:
        lines.append(f"(importances need {MIN_TRIALS} trials)\n")
    lines += _history(record)
    if record.validation:
        lines.append(validation_table(record).text())
    failed = [t for t in record.trials if t.state == "failed"]
    lines += [f"failed: trial {t.number}: {t.error}" for t in failed[:LISTED]]
    lines += [f"… and {len(failed) - LISTED} more"] if len(failed) > LISTED else []
    return "\n".join([*lines, verdict_sentence(record)]) + "\n"


def parameter_table(record: StudyRecord) -> Table:
    """Each parameter: what the best has, what the base has, and how much it matters."""
    best, known = record.best, {item.key: item for item in importances(record)}
    columns = [
        Column("key", "parameter", numeric=False), Column("best", "best"), Column("base", "base"),
        Column("space", "searched", numeric=False), Column("importance", "importance"), Column("p", "p"),
    ]  # fmt: skip
    keys = sorted(record.space, key=lambda key: -known[key].share if key in known else 0.0)
    rows = []
    for key in keys:
        item = known.get(key)
        figures = ["", ""] if item is None else [f"{item.share:.2f}", fmt.p_value(item.p)]
        mine = param(best.params.get(key)) if best is not None else fmt.NONE
        rows.append([key, mine, param(record.base.get(key)), space_words(record.space[key]), *figures])
    return Table(columns, rows, [])


def trial_table(record: StudyRecord, trials: Sequence[TrialRecord]) -> Table:
    """Trials with their parameters."""
    so_far = dict(zip((t.number for t in record.trials), best_so_far(record.trials), strict=True))
    columns = [
        Column("trial", "trial"), Column("state", "state", numeric=False), Column("value", "score"),
        Column("best_so_far", "best so far"), Column("seconds", "time"),
        *(Column(key, name) for key, name in short_names(record.space).items()),
    ]  # fmt: skip
    rows, data = [], []
    for t in trials:
        rows.append([
            str(t.number), t.state, fmt.known(t.value), fmt.known(so_far[t.number]),
            fmt.duration(t.seconds) if t.seconds is not None else fmt.NONE,
            *(param(t.params.get(key)) for key in record.space),
        ])  # fmt: skip
        data.append({
            "trial": t.number, "state": t.state, "value": t.value, "best_so_far": so_far[t.number],
            "seconds": t.seconds, **{key: _cell(t.params.get(key)) for key in record.space},
            **{f"seed_{seed}": score for seed, score in t.scores.items()}, "error": t.error,
        })  # fmt: skip
    return Table(columns, rows, data)


def validation_table(record: StudyRecord) -> Table:
    """Base and best on the held-out seeds."""
    found = record.validation
    columns = [
        Column("who", "held-out seeds", numeric=False), Column("n", "runs"), Column("mean", "mean"),
        Column("iqm", "IQM [95 %]"), Column("worst", "worst"), Column("best", "best"),
    ]  # fmt: skip
    rows = []
    for name, key, mean in (("base", "base", "mean_a"), (f"trial {found['trial']}", "best", "mean_b")):
        side = found[key]
        low, high = side.get("iqm_low"), side.get("iqm_high")
        bounds = "" if low is None or high is None else f" [{fmt.number(low)}, {fmt.number(high)}]"
        scores = side["scores"]
        ends = [fmt.number(min(scores)), fmt.number(max(scores))]
        rows.append(
            [name, str(len(scores)), fmt.number(found[mean]), f"{fmt.number(side['iqm'])}{bounds}", *ends]
        )
    return Table(columns, rows, [])


def space_words(dimension: Mapping[str, Any]) -> str:
    """`1e-05 to 0.01, log`, or the choices."""
    if dimension.get("kind") == "choice":
        return " | ".join(shown(choice) for choice in dimension.get("choices") or ())
    step = f", step {dimension['step']:g}" if dimension.get("step") else ""
    return (
        f"{dimension.get('low'):g} to {dimension.get('high'):g}{', log' * bool(dimension.get('log'))}{step}"
    )


def _history(record: StudyRecord) -> list[str]:
    """The trials that were the best when they ended."""
    columns = [Column("trial", "best so far: trial"), Column("value", "score")]
    rows, best = [], None
    for trial, now in zip(record.trials, best_so_far(record.trials), strict=True):
        if now != best:
            rows.append([str(trial.number), fmt.known(trial.value)])
            best = now
    return [Table(columns, rows, []).text()] if rows else []


def _point(trial: TrialRecord, key: str) -> dict[str, Any]:
    known = {"trial": trial.number, "value": trial.value, "state": trial.state}
    return {**known, "param": trial.params[key]}


def _cell(value: Any) -> Any:
    return shown(value) if isinstance(value, list | tuple | dict) else value
