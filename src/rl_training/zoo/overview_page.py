"""The page over many runs: results, curves with bands, final scores, what differs, and what was damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from rl_training import __version__
from rl_training.zoo import formatting as fmt
from rl_training.zoo.charts import Line, chart
from rl_training.zoo.drift import drift_of
from rl_training.zoo.groups import STATUSES, Group, config_differences
from rl_training.zoo.overview import Overview, decimals_for, group_table, mixtures, repeats
from rl_training.zoo.page import command as command_box
from rl_training.zoo.page import notice, page, section, table
from rl_training.zoo.records import STEPS
from rl_training.zoo.series import Panel, panels
from rl_training.zoo.strips import Strip, strips
from rl_training.zoo.videos import video_section

MAX_ROWS, MAX_LISTED, MAX_COMPARED = 2000, 100, 60


def overview_page(view: Overview, *, command: str = "") -> str:
    """The whole page."""
    drawn = panels(view.groups)
    videos = video_section(view.runs)
    parts = [
        _header(view), _notices(view), _results(view, drawn), _curves(view, drawn), _scores(view, drawn),
        videos, _differences(view), _drift(view), _runs(view), _problems(view), _command(command),
    ]  # fmt: skip
    body = "\n".join(part for part in parts if part)
    footer = f"<footer>written by axiomrl {__version__}</footer>"
    return page(_title(view), f"{body}\n{footer}", media=bool(videos), broad=True)


def _title(view: Overview) -> str:
    count = len(view.runs)
    return f"{fmt.count(count)} run{'s' * (count != 1)}"


def _header(view: Overview) -> str:
    runs = view.runs
    stamps = sorted(run.created for run in runs if run.created)
    facts = [
        ("from", ", ".join(view.sources)),
        ("algorithms", fmt.count(len({run.algo for run in runs}))),
        ("envs", fmt.count(len({run.env_id for run in runs}))),
        ("newest", fmt.utc(stamps[-1]) if stamps else ""),
    ]
    items = "".join(f"<li>{key} <b>{escape(value)}</b></li>" for key, value in facts if value)
    return f'<header><div class="head"><h1>{_title(view)}</h1></div><ul class="facts">{items}</ul></header>'


def _notices(view: Overview) -> str:
    runs, found = view.runs, []
    if drifted := sum(bool(drift_of(run)) for run in runs):
        verb = "is" if drifted == 1 else "are"
        text = f"{drifted} of {len(runs)} runs {verb} not what their preset or manifest says."
        found.append(notice(text, ["What differs is listed under Drift."], "interrupted"))
    if mixed := mixtures(view):
        more = ["…", mixed[-1]] if len(mixed) > 5 else mixed[4:]
        found.append(notice("Groups hold runs of different settings.", [*mixed[:4], *more], "interrupted"))
    if repeated := repeats(view):
        more = [f"… and {len(repeated) - 5} more"] if len(repeated) > 5 else []
        text = "The same seed is counted more than once: intervals are too narrow."
        found.append(notice(text, [*repeated[:5], *more], "interrupted"))
    if damaged := sum(bool(run.problems) for run in runs):
        text = f"Parts of {damaged} run{'s' * (damaged > 1)} could not be read."
        found.append(notice(text, ["They are listed under Problems."]))
    return "".join(found)


def _results(view: Overview, drawn: Sequence[Panel]) -> str:
    """The table of groups, with the colours of the charts."""
    kinds = {id(series.group): series.kind for panel in drawn for series in panel.series}
    made = group_table(view)
    columns, names = [column.title for column in made.columns], [column.key for column in made.columns]
    rows = []
    for group, cells in zip(view.groups, made.shown, strict=True):
        swatch = f'<i class="swatch {kinds.get(id(group), "")}"></i>'
        shown = [escape(cell) for cell in cells]
        shown[names.index("status")] = _states(group)
        if made.columns[-1].key == "drift" and group.drifted:  # which keys is told further down
            shown[-1] = f'<span class="warn">{group.drifted} of {len(group.runs)}</span>'
        rows.append([swatch + shown[0], *shown[1:]])
    numeric = [i for i, column in enumerate(made.columns) if column.numeric]
    note = (
        f'<p class="below">{view.title.partition(" [")[0]} over runs of the {view.groups[0].which} '
        f"evaluation, in brackets its {100 * view.confidence:g} % bootstrap interval over runs. Best is the "
        "highest best score of any run; time and steps a second are medians.</p>"
    )
    return section(
        "Results", f'<div class="wide">{table(columns, rows, numeric=numeric)}</div>{note}', name="results"
    )


def _states(group: Group) -> str:
    """How its runs ended, in the colours of a run's own page."""
    badges = (
        f'<span class="badge {status if status in STATUSES else ""}">{count} {escape(status)}</span>'
        for status, count in group.statuses.items()
    )
    return f'<div class="states">{"".join(badges)}</div>'


def _curves(view: Overview, drawn: Sequence[Panel]) -> str:
    """Evaluations over steps, one chart an env."""
    charts = []
    for panel in (panel for panel in drawn if panel.lines):
        lines = []
        for series in panel.lines:
            curve = series.group.curve(view.confidence)
            points = list(zip(curve.steps.tolist(), curve.value.tolist(), strict=True))
            lines.append(Line(series.label, points, series.kind, curve.band))
        keys = "".join(
            f'<span><i class="swatch {s.kind}"></i>{escape(s.label)} ({s.group.evaluated})</span>'
            for s in panel.lines
        )
        title = f"Evaluation return over {STEPS}, {panel.title}"
        plot = chart(lines, title=title, y_label="return", x_label=STEPS, x_ticks=6, y_ticks=5)
        more = f'<p class="below">{panel.left_out}.</p>' if panel.left_out else ""
        charts.append(
            f'<div><h3>{escape(panel.title)}</h3><div class="legend">{keys}</div>{plot}{more}</div>'
        )
    if not charts:
        text = '<p class="muted">No evaluation has been recorded.</p>'
        return section("Learning curves", text, name="curves")
    note = (
        f'<p class="below">Interquartile mean of the evaluations, with its {100 * view.confidence:g} % '
        "bootstrap interval over runs (their number in brackets). A curve ends where half of its runs have "
        "ended.</p>"
    )
    return section("Learning curves", f'<div class="envs">{"".join(charts)}</div>{note}', name="curves")


def _scores(view: Overview, drawn: Sequence[Panel]) -> str:
    """Every run's score, the statistic and its interval."""
    plots = []
    for panel in drawn:
        rows = [Strip(s.label, s.kind, s.group.score, s.group.scores) for s in panel.series if s.group.score]
        decimals = max(decimals_for(row.score) for row in rows)
        plot = strips(rows, title=f"Scores on {panel.title}", decimals=decimals)
        plots.append(f"<div><h3>{escape(panel.title)}</h3>{plot}</div>")
    if not plots:
        return ""
    which = f"{view.groups[0].which.capitalize()} scores"
    note = '<p class="below">A dot a run, the statistic as a stroke, its interval as a bar.</p>'
    return section(which, f'<div class="envs">{"".join(plots)}</div>{note}', name="scores")


def _differences(view: Overview) -> str:
    """Config keys whose values are not the same everywhere."""
    rows = config_differences(view.groups, ignore=("algo", "env_id"))
    if not rows:
        return ""
    cells = []
    for key, values in rows:
        common = Counter(values).most_common(1)[0][0]
        shown = values[:MAX_COMPARED]
        faint = [f'<span class="same">{escape(v)}</span>' if v == common else escape(v) for v in shown]
        cells.append([f"<code>{escape(key)}</code>", *faint])
    columns = ["Key", *(group.label for group in view.groups[:MAX_COMPARED])]
    content = f'<div class="keyed">{table(columns, cells)}</div>'
    summary = f"{len(rows)} key{'s' * (len(rows) != 1)}"
    if len(view.groups) > MAX_COMPARED:
        summary += f", the first {MAX_COMPARED} of {len(view.groups)} groups"
    return section("Configuration differences", content, summary=summary, name="differences")


def _drift(view: Overview) -> str:
    """Groups whose runs are not what their preset or manifest says."""
    rows = [
        [escape(group.label), escape(change), f"{count} of {len(group.runs)}"]
        for group in view.groups
        for change, count in group.drift.items()
    ]
    if not rows:
        return ""
    content = table(("Group", "Difference", "Runs"), rows[:MAX_LISTED], numeric=(2,))
    if len(rows) > MAX_LISTED:
        content += f'<p class="below">The first {MAX_LISTED} of {fmt.count(len(rows))}.</p>'
    return section("Drift", content, summary=f"{len(rows)} differences", name="drift")


def _runs(view: Overview) -> str:
    """Every run as a row."""
    which = view.groups[0].which if view.groups else "final"
    rows = []
    for run in view.runs[:MAX_ROWS]:
        score, kind = run.score(which), run.status if run.status in STATUSES else ""
        cells = [
            escape(run.algo), escape(run.env_id), escape(run.preset or fmt.NONE), escape(run.seed),
            fmt.count(run.steps), fmt.number(score) if score is not None else fmt.NONE,
            str(run.episodes(which) or fmt.NONE) if score is not None else fmt.NONE,
            fmt.duration(run.wall_seconds) if run.wall_seconds else fmt.NONE,
            f'<span class="badge {kind}">{escape(run.status)}</span>', f"<code>{escape(run.path)}</code>",
        ]  # fmt: skip
        rows.append(cells)
    columns = ("Algorithm", "Env", "Preset", "Seed", "Steps", "Score", "Episodes", "Time", "Status", "Path")
    content = f'<div class="wide">{table(columns, rows, numeric=(3, 4, 5, 6, 7))}</div>'
    if len(view.runs) > MAX_ROWS:
        content += f'<p class="below">The first {fmt.count(MAX_ROWS)} of {fmt.count(len(view.runs))}.</p>'
    return section("Runs", content, summary=fmt.count(len(view.runs)), name="runs")


def _problems(view: Overview) -> str:
    """Damaged runs and directories that hold none."""
    damaged = [f"{run.path}: {'; '.join(run.problems)}" for run in view.runs if run.problems]
    foreign = [f"{path}: {reason}" for path, reason in view.scan.foreign]
    if not damaged and not foreign:
        return ""
    content = ""
    for title, items in (("Damaged runs", damaged), ("Directories without a run", foreign)):
        if items:
            lines = "".join(f"<li>{escape(item)}</li>" for item in items[:MAX_LISTED])
            more = f"<li>… and {len(items) - MAX_LISTED} more</li>" if len(items) > MAX_LISTED else ""
            content += f'<h3>{title}</h3><ul class="list">{lines}{more}</ul>'
    return section("Problems", content, summary=str(len(damaged) + len(foreign)), name="problems")


def _command(text: str) -> str:
    return section("Command", command_box("This page was written by", text), name="command") if text else ""
