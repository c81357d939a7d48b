"""A study on one page: what came out, how it went, what mattered."""

from __future__ import annotations

import shlex
from html import escape

from rl_training import __version__
from rl_training.zoo import formatting as fmt
from rl_training.zoo.page import command as command_box
from rl_training.zoo.page import figures, notice, page, section, table
from rl_training.zoo.statistics import Estimate
from rl_training.zoo.strips import Strip, strips
from rl_training.zoo.tuning import drawings
from rl_training.zoo.tuning.importance import MIN_TRIALS, importances
from rl_training.zoo.tuning.record import PRESET, StudyRecord
from rl_training.zoo.tuning.report import parameter_table, trial_table
from rl_training.zoo.tuning.summary import (
    counts,
    origin,
    score_words,
    short_names,
    signed,
    states,
    train_command,
    verdict_sentence,
)

MAX_ROWS = 1000
TONES = {
    "better": "completed",
    "worse": "failed",
    "no difference": "interrupted",
    "cannot tell": "interrupted",
}


def study_page(record: StudyRecord, *, command: str = "") -> str:
    """The whole page."""
    parts = (
        header, notices, key_figures, held_out, best, history, importance, slices, parallel, on_the_way,
        trials,
    )  # fmt: skip
    body = "\n".join(text for part in parts if (text := part(record))) + commands(record, command)
    footer = f"<footer>{escape(record.name)} · written by axiomrl {__version__}</footer>"
    return page(f"Study {record.name}", f"{body}\n{footer}", broad=True)


def header(record: StudyRecord) -> str:
    """What was tuned, and how."""
    data, base = record.data, record.data["base"]
    facts = [
        ("tuned from", origin(record)),
        ("algorithm", base.get("algo")),
        ("env", base.get("env_id")),
        ("sampler", (data.get("sampler") or {}).get("kind")),
        ("pruner", (data.get("pruner") or {}).get("kind")),
        ("seeds", ", ".join(map(str, data["seeds"]))),
        ("steps a run", fmt.count(data["steps"])),
    ]
    items = "".join(f"<li>{key} <b>{escape(str(value))}</b></li>" for key, value in facts if value)
    text = f'<p class="muted">{escape(str(data["description"]))}</p>' if data.get("description") else ""
    head = f'<div class="head"><h1>Study {escape(record.name)}</h1></div>{text}'
    return f'<header>{head}<ul class="facts">{items}</ul></header>'


def notices(record: StudyRecord) -> str:
    """The verdict, and whatever makes this less than a finished study."""
    found = []
    if len(record.trials) < record.data["asked"] or record.count("running"):
        text = f"This study is not finished: {counts(record)}."
        found.append(notice(text, ["`axiomrl tune` goes on with it."], "running"))
    if warnings := record.data.get("warnings"):
        found.append(notice("Warning", warnings, "interrupted"))
    tone = TONES.get(str(record.validation.get("verdict")), "")
    found.append(notice("Verdict", [verdict_sentence(record)], tone))
    return "".join(found)


def key_figures(record: StudyRecord) -> str:
    """The numbers one looks for first."""
    top, found = record.best, record.validation
    cells = [
        ("Best score", fmt.known(top.value if top else None), f"trial {top.number}" if top else ""),
        ("Trials", str(len(record.trials)), _spent(record)),
        ("Held-out, base", fmt.known(found.get("mean_a")), "mean return"),
        ("Held-out, best", fmt.known(found.get("mean_b")), "mean return"),
        ("Difference", signed(found["difference"]) if found else fmt.NONE, _bounds(record)),
        (
            "P(better)",
            fmt.chance(found["probability_of_improvement"]) if found else fmt.NONE,
            "a run of the best against one of the base",
        ),
    ]
    return figures(cells)


def held_out(record: StudyRecord) -> str:
    """Base and best on seeds that no trial has seen."""
    found = record.validation
    if not found:
        return ""
    rows = [
        Strip(name, kind, Estimate(side["iqm"], side.get("iqm_low"), side.get("iqm_high")), side["scores"])
        for name, kind, side in (
            ("base", "g0", found["base"]),
            (f"trial {found['trial']}", "g1", found["best"]),
        )
    ]
    seeds = ", ".join(map(str, found.get("seeds") or ()))
    note = (
        f'<p class="below">Seeds {escape(seeds)}, on which nothing was chosen. A dot a run; the '
        "interquartile mean as a stroke, its 95 % bootstrap interval as a bar.</p>"
    )
    return section("Held-out seeds", strips(rows, title="Scores on held-out seeds") + note, name="held-out")


def best(record: StudyRecord) -> str:
    """What the best trial has, beside the base."""
    made = parameter_table(record)
    rows = [[f"<code>{escape(row[0])}</code>", *map(escape, row[1:4])] for row in made.shown]
    columns = [column.title.capitalize() for column in made.columns[:4]]
    return section("Best configuration", table(columns, rows, numeric=(1, 2)), name="best")


def history(record: StudyRecord) -> str:
    """Scores over trials."""
    if not record.of("completed", "pruned"):
        return section("History", '<p class="muted">No trial has a score yet.</p>', name="history")
    note = f'<p class="below">A score is the {escape(score_words(record))}. The line is the best so far.</p>'
    return section("History", f"{drawings.LEGEND}{drawings.history(record)}{note}", name="history")


def importance(record: StudyRecord) -> str:
    """How much each parameter matters by itself."""
    found = importances(record)
    if not found:
        text = f'<p class="muted">At least {MIN_TRIALS} trials are needed.</p>'
        return section("Importances", text, name="importances")
    rows = [
        [
            f"<code>{escape(item.key)}</code>",
            f"{item.share:.2f}",
            escape(fmt.p_value(item.p)),
            f'<i class="share" style="width:{100 * item.share:.1f}%"></i>',
        ]
        for item in found
    ]
    note = (
        '<p class="below">The share of the trials\' ranks that a parameter explains by itself (epsilon '
        "squared over its choices or quantiles), pruned trials ranking below completed ones; p is how often "
        "chance gives as much. What two parameters only do together is not seen.</p>"
    )
    drawn = table(("Parameter", "Share", "p", ""), rows, numeric=(1, 2))
    return section("Importances", drawn + note, name="importances")


def slices(record: StudyRecord) -> str:
    """Score over each parameter."""
    if not record.of("completed", "pruned"):
        return ""
    names = short_names(record.space)
    drawn = [
        f"<div><h3>{escape(names[key])}</h3>{drawings.slice_of(record, key)}</div>" for key in record.space
    ]
    return section("Slices", f'{drawings.LEGEND}<div class="multiples">{"".join(drawn)}</div>', name="slices")


def parallel(record: StudyRecord) -> str:
    """All parameters at once."""
    drawn = drawings.parallel(record)
    note = '<p class="below">A line a completed trial; the best tenth stands out.</p>'
    return section("All parameters", drawn + note, name="parallel") if drawn else ""


def on_the_way(record: StudyRecord) -> str:
    """Values that pruning judged by."""
    drawn = drawings.on_the_way(record)
    note = (
        '<p class="below">What each trial reported after each evaluation of its runs, one seed after the '
        "other. A line that ends early was pruned; the best stands out.</p>"
    )
    return section("On the way", drawn + note, name="on-the-way") if drawn else ""


def trials(record: StudyRecord) -> str:
    """Every trial as a row."""
    made = trial_table(record, record.trials[:MAX_ROWS])
    top = record.best
    rows = []
    for trial, cells in zip(record.trials, made.shown, strict=False):
        shown = [escape(cell) for cell in cells]
        kind = "interrupted" if trial.state == "pruned" else trial.state
        mark = '<span class="chip">best</span>' if trial is top else ""
        error = f'<br><span class="warn">{escape(trial.error)}</span>' if trial.error else ""
        shown[1] = f'<span class="badge {escape(kind)}">{shown[1]}</span> {mark}{error}'
        rows.append(shown)
    numeric = [index for index, column in enumerate(made.columns) if column.numeric]
    columns = [column.title.capitalize() if i < 5 else column.title for i, column in enumerate(made.columns)]
    content = f'<div class="wide">{table(columns, rows, numeric=numeric)}</div>'
    if len(record.trials) > MAX_ROWS:
        content += f'<p class="below">The first {fmt.count(MAX_ROWS)} of {fmt.count(len(record.trials))}.</p>'
    return section("Trials", content, summary=counts(record), name="trials")


def commands(record: StudyRecord, written_by: str = "") -> str:
    """What to type next, and what was typed."""
    shown = []
    if (record.path / PRESET).is_file():  # written with the verdict
        shown.append(command_box("Train with the best configuration", shlex.join(train_command(record))))
    if started := record.data.get("command"):
        shown.append(command_box("As the study was started", shlex.join(started)))
    if written_by:
        shown.append(command_box("This page was written by", written_by))
    return section("Commands", "".join(shown), name="commands") if shown else ""


def _spent(record: StudyRecord) -> str:
    seconds = sum(trial.seconds or 0.0 for trial in record.trials)
    return f"{states(record)}; {fmt.duration(seconds)} in all" if record.trials else ""


def _bounds(record: StudyRecord) -> str:
    found = record.validation
    if not found or found.get("low") is None or found.get("high") is None:
        return ""
    return f"95 %: {signed(found['low'])} to {signed(found['high'])}"
