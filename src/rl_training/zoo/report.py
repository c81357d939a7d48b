"""`report.html`: what a run did, on one page that needs no network, no server and no torch."""

from __future__ import annotations

from html import escape
from pathlib import Path

from rl_training import __version__
from rl_training.errors import AxiomError
from rl_training.experiment.files import replace_atomically
from rl_training.zoo import formatting as fmt
from rl_training.zoo.charts import Line, Mark, chart, stacked_bar
from rl_training.zoo.evaluations import EvaluationPoint
from rl_training.zoo.groups import STATUSES
from rl_training.zoo.page import figures, notice, page, section, table
from rl_training.zoo.provenance import checkpoints, commands, configuration, environment, resumes, traceback
from rl_training.zoo.records import LENGTH, RETURN, STEPS, RunRecord, read_run
from rl_training.zoo.rows import mapping, number


def write_report(run_dir: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of a run, into its directory unless told otherwise, and answer where it is."""
    run = read_run(run_dir)
    target = run.path / "report.html" if output is None else Path(output)
    if target.exists() and not target.is_file():
        raise AxiomError(f"{target}: not a file; name the file to write with -o")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(target, run_page(run).encode("utf-8", "replace"))
    except OSError as error:
        message = f"{target}: cannot be written: {error.strerror}; choose another place with -o"
        raise AxiomError(message) from None
    return target


def run_page(run: RunRecord) -> str:
    """The whole page of one run."""
    parts = (
        header, notices, key_figures, learning_curve, training, time_spent, evaluations, checkpoints, resumes,
        commands, configuration, environment, traceback,
    )  # fmt: skip
    body = "\n".join(text for part in parts if (text := part(run)))
    footer = f"<footer>{escape(run.name)} · written by axiomrl {__version__}</footer>"
    return page(run.title, f"{body}\n{footer}")


def header(run: RunRecord) -> str:
    """What this is, and how it ended."""
    started = fmt.utc(run.metadata.get("created_at_utc"))
    facts = [("seed", run.seed), ("preset", run.metadata.get("preset")), ("started", started)]
    tags = run.metadata.get("tags")
    if isinstance(tags, list) and tags:
        facts.append(("tags", ", ".join(map(str, tags))))
    items = "".join(f"<li>{key} <b>{escape(str(value))}</b></li>" for key, value in facts if value)
    kind = run.status if run.status in STATUSES else ""
    head = f'<h1>{escape(run.title)}</h1><span class="badge {kind}">{escape(run.status)}</span>'
    return f'<header><div class="head">{head}</div><ul class="facts">{items}</ul></header>'


def notices(run: RunRecord) -> str:
    """Whatever makes this page less than the report of a finished, healthy run."""
    found = []
    reason = run.metadata.get("stop_reason")
    if run.status == "running":
        text = f"This run is not finished. Shown is what it had recorded up to step {fmt.count(run.steps)}."
        advice = "If no process is training it any more, it was killed: resume it."
        found.append(notice(text, [advice], "running"))
    elif run.status == "failed":
        found.append(notice("This run failed.", [str(reason)] if reason else [], "failed"))
    elif reason:
        budget = f" of {_budget(run)}" if _budget(run) else ""
        text = f"Stopped at step {fmt.count(run.steps)}{budget}."
        found.append(notice(text, [str(reason)], "interrupted"))
    if run.problems:
        found.append(notice("Parts of this run could not be read.", run.problems))
    return "".join(found)


def key_figures(run: RunRecord) -> str:
    """The numbers one looks for first."""
    final, best = run.final_evaluation, run.best_evaluation
    wall, rate = run.wall_seconds, run.steps_per_second
    grade = mapping(run.metadata.get("resume_grade"))
    cells = [
        ("Final evaluation", *_score(final)),
        ("Best evaluation", *_score(best)),
        (STEPS.capitalize(), fmt.count(run.steps), f"of {_budget(run)}" if _budget(run) else ""),
        ("Wall time", fmt.duration(wall) if wall else fmt.NONE, "evaluation included"),
        ("Steps per second", fmt.count(round(rate)) if rate else fmt.NONE, "mean, whole run"),
        ("Resume grade", str(grade.get("grade") or fmt.NONE), str(grade.get("reason") or "")),
    ]
    return figures(cells)


def learning_curve(run: RunRecord) -> str:
    """Training return as a line, evaluations as points with their spread."""
    line = Line("training return", run.series(RETURN))
    marks = [Mark(e.step, e.mean, e.low, e.high, _hint(e)) for e in run.evaluations]
    if not line.points and not marks:
        empty = "No episode has been finished and no evaluation recorded."
        return section("Learning curve", f'<p class="muted">{empty}</p>', name="curve")
    keys = []
    if line.points:
        keys.append('<span><i class="key-line"></i>training return, mean of the last 100 episodes</span>')
    if marks:
        spread = "evaluation mean, from its lowest to its highest episode"
        keys.append(f'<span><i class="key-dot"></i>{spread}</span>')
    drawn = chart([line], marks, title=f"Return over {STEPS}", y_label="return", x_label=STEPS, kind="tall")
    note = "" if marks else f'<p class="below">{_no_evaluations(run)}</p>'
    return section("Learning curve", f'<div class="legend">{"".join(keys)}</div>{drawn}{note}', name="curve")


def training(run: RunRecord) -> str:
    """Episode length, losses, then everything else an algorithm reports, as small multiples."""
    losses = [key for key in run.keys("train/") if "loss" in key]
    others = [key for key in run.keys("train/") if "loss" not in key]
    drawn, constant = [], []
    for key in [LENGTH, *losses, *others, "steps_per_second"]:
        points = run.series(key)
        values = {value for _, value in points}
        if len(values) == 1 and len(points) > 1:
            constant.append(f"{_words(key).lower()} {values.pop():.6g}")
        elif points:
            label, last = _words(key), points[-1][1]
            plot = chart([Line(label.lower(), points)], title=label, x_ticks=5, y_ticks=4)
            drawn.append(f"<div><h3>{escape(label)}<span>{fmt.number(last)}</span></h3>{plot}</div>")
    if not drawn and not constant:
        return section("Training", '<p class="muted">No metrics have been logged.</p>', name="training")
    fixed = f'<p class="below">Constant: {escape("; ".join(constant))}.</p>' if constant else ""
    return section("Training", f'<div class="multiples">{"".join(drawn)}</div>{fixed}', name="training")


def time_spent(run: RunRecord) -> str:
    """Shares of the logged time, over the whole run."""
    seconds = run.seconds_by_part()
    total = sum(seconds.values())
    if not total:
        return section("Where the time went", '<p class="muted">No times have been logged.</p>', name="time")
    shares = {part: value / total for part, value in seconds.items()}
    bar = stacked_bar(shares, title="Shares of the training time")
    items = "".join(
        f'<div class="part-{escape(part)}"><dt>{escape(part)}</dt>'
        f"<dd>{fmt.percent(share)}<span>{fmt.duration(seconds[part])}</span></dd></div>"
        for part, share in shares.items()
    )
    return section("Where the time went", f'{bar}<dl class="parts">{items}</dl>', name="time")


def evaluations(run: RunRecord) -> str:
    """Every evaluation as numbers."""
    if not run.evaluations:
        return ""
    rows = []
    for e in run.evaluations:
        score, decimals = fmt.spread(e.mean, e.std), max(1, fmt.decimals_of(e.mean))
        low, high = fmt.number(e.low, decimals), fmt.number(e.high, decimals)
        rows.append((fmt.count(e.step), score, low, high, str(len(e.returns))))
    content = table(("Step", "Return, mean ± std", "Lowest", "Highest", "Episodes"), rows, numeric=range(5))
    return section("Evaluations", content, summary=str(len(rows)), name="evaluations")


def _score(evaluation: EvaluationPoint | None) -> tuple[str, str]:
    if evaluation is None:
        return fmt.NONE, "none recorded"
    value, _, std = fmt.spread(evaluation.mean, evaluation.std).partition(" ± ")
    episodes = f"{len(evaluation.returns)} episodes, " if evaluation.returns else ""
    return value, f"± {std}, {episodes}step {fmt.count(evaluation.step)}"


def _hint(e: EvaluationPoint) -> str:
    text = f"step {fmt.count(e.step)}\nevaluation {fmt.spread(e.mean, e.std)}"
    spread = f"\n{len(e.returns)} episodes, {fmt.number(e.low)} to {fmt.number(e.high)}"
    return text + (spread if e.returns else "")


def _no_evaluations(run: RunRecord) -> str:
    every = number(mapping(run.config.get("evaluation")).get("every_steps"))
    off = "Evaluation is turned off in this run's config."
    return off if every == 0 else "No evaluation has been recorded."


def _budget(run: RunRecord) -> str:
    total = number(run.config.get("total_timesteps"))
    return fmt.count(total) if total else ""


def _words(key: str) -> str:
    """A metric's name in words."""
    known = {LENGTH: "Episode length", "train/approx_kl": "Approximate KL"}
    text = key.removeprefix("train/").replace("_", " ")
    return known.get(key, text[:1].upper() + text[1:])
