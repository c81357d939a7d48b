"""`report.html`: what a run did, on one page that needs no network, no server and no torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rl_training import __version__
from rl_training.errors import AxiomError
from rl_training.experiment.files import replace_atomically
from rl_training.experiment.runs import CONFIG
from rl_training.zoo import formatting as fmt
from rl_training.zoo.charts import Line, Mark, chart, stacked_bar
from rl_training.zoo.page import command, notice, page, pairs, section, table
from rl_training.zoo.records import EvaluationPoint, RunRecord, mapping, number, read_run

STATUSES = ("completed", "running", "interrupted", "failed")
RETURN, LENGTH = "rollout/return_mean", "rollout/length_mean"
STEPS = "environment steps"


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
        raise AxiomError(f"{target}: cannot be written: {error.strerror}; choose another place with -o") from None
    return target


def run_page(run: RunRecord) -> str:
    """The whole page of one run."""
    parts = (
        header, notices, key_figures, learning_curve, training, time_spent, evaluations, checkpoints, resumes,
        commands, configuration, environment, traceback,
    )  # fmt: skip
    body = "\n".join(text for part in parts if (text := part(run)))
    footer = f"<footer>{escape(run.name)} · written by axiomrl {__version__}</footer>"
    return page(title(run), f"{body}\n{footer}")


def title(run: RunRecord) -> str:
    """Algorithm on environment."""
    short = run.algo.isalnum() and len(run.algo) <= 4
    return f"{run.algo.upper() if short else run.algo} on {run.env_id}"


def header(run: RunRecord) -> str:
    """What this is, and how it ended."""
    facts = [("seed", run.seed), ("preset", run.metadata.get("preset")), ("started", _time(run, "created_at_utc"))]
    tags = run.metadata.get("tags")
    if isinstance(tags, list) and tags:
        facts.append(("tags", ", ".join(map(str, tags))))
    items = "".join(f"<li>{key} <b>{escape(str(value))}</b></li>" for key, value in facts if value)
    kind = run.status if run.status in STATUSES else ""
    badge = f'<span class="badge {kind}">{escape(run.status)}</span>'
    return f'<header><div class="head"><h1>{escape(title(run))}</h1>{badge}</div><ul class="facts">{items}</ul></header>'


def notices(run: RunRecord) -> str:
    """Whatever makes this page less than the report of a finished, healthy run."""
    found = []
    reason = run.metadata.get("stop_reason")
    if run.status == "running":
        text = f"This run is not finished. Shown is what it had recorded up to step {fmt.count(run.steps)}."
        found.append(notice(text, ["If no process is training it any more, it was killed: resume it."], "running"))
    elif run.status == "failed":
        found.append(notice("This run failed.", [str(reason)] if reason else [], "failed"))
    elif reason:
        found.append(notice(f"Stopped before its {_budget(run)} steps.", [str(reason)], "interrupted"))
    if run.problems:
        found.append(notice("Parts of this run could not be read.", run.problems))
    return "".join(found)


def key_figures(run: RunRecord) -> str:
    """The numbers one looks for first."""
    final, best = run.final_evaluation, run.best_evaluation
    wall, rate = run.wall_seconds, run.steps_per_second
    grade = mapping(run.metadata.get("resume_grade"))
    figures = [
        ("Final evaluation", *_score(final)),
        ("Best evaluation", *_score(best)),
        (STEPS.capitalize(), fmt.count(run.steps), f"of {_budget(run)}" if _budget(run) else ""),
        ("Wall time", fmt.duration(wall) if wall else "–", "evaluation included"),
        ("Steps per second", fmt.count(round(rate)) if rate else "–", "mean, whole run"),
        ("Resume grade", str(grade.get("grade") or "–"), str(grade.get("reason") or "")),
    ]
    cells = "".join(
        f'<div><dt>{escape(label)}</dt><dd class="value">{escape(value)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for label, value, note in figures
    )
    return f'<dl id="figures" class="figures">{cells}</dl>'


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
        keys.append('<span><i class="key-dot"></i>evaluation mean, from its lowest to its highest episode</span>')
    drawn = chart([line], marks, title="Return over environment steps", y_label="return", x_label=STEPS, kind="tall")
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
            constant.append(f"{_words(key)} {fmt.number(values.pop())}")
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
    rows = [
        (fmt.count(e.step), fmt.spread(e.mean, e.std), fmt.number(e.low), fmt.number(e.high), str(len(e.returns)))
        for e in run.evaluations
    ]
    columns = ("Step", "Return, mean ± std", "Lowest", "Highest", "Episodes")
    return section("Evaluations", table(columns, rows, numeric=range(5)), summary=str(len(rows)), name="evaluations")


def checkpoints(run: RunRecord) -> str:
    """What can be evaluated or resumed from."""
    if not run.checkpoints:
        return section("Checkpoints", '<p class="muted">None has been saved.</p>', name="checkpoints")
    scores = {e.step: fmt.spread(e.mean, e.std) for e in run.evaluations}
    rows = []
    for entry in run.checkpoints:
        relative = f"checkpoints/step_{entry.step}"
        chips = [w for w in ("best", "latest") if run.metadata.get(f"{w}_checkpoint") == relative]
        chips += [] if entry.complete else ["incomplete"]
        marks = "".join(f'<span class="chip">{chip}</span>' for chip in chips)
        cells = (marks, scores.get(entry.step, "–"), fmt.size(entry.size), f"<code>{relative}</code>")
        rows.append((fmt.count(entry.step), *cells))
    columns = ("Step", "", "Evaluation", "Size", "Path in the run")
    return section("Checkpoints", table(columns, rows, numeric=(0, 2, 3)), name="checkpoints")


def resumes(run: RunRecord) -> str:
    """When the run was picked up again, and how exactly."""
    records = run.metadata.get("resumes")
    entries = [mapping(record) for record in records] if isinstance(records, list) else []
    if not entries:
        return ""
    rows = [
        (
            fmt.count(number(entry.get("step")) or 0),
            escape(_utc(entry.get("at_utc"))),
            f'<span class="chip">{escape(str(entry.get("grade")))}</span>',
            escape(str(entry.get("reason") or "")),
        )
        for entry in entries
    ]
    columns = ("From step", "When", "Grade", "Why")
    return section("Resumes", table(columns, rows, numeric=(0,)), name="resumes")


def commands(run: RunRecord) -> str:
    """What to type to get this again, measure it, or go on with it."""
    path = str(run.path)
    shown = [("Train it again", ["axiomrl", "train", "--config", str(run.path / CONFIG)])] if run.config else []
    if run.checkpoints:
        shown.append(("Evaluate the best checkpoint", ["axiomrl", "eval", "--checkpoint", path, "--num-episodes", "20"]))
        if run.status != "completed":
            shown.append(("Go on from the latest checkpoint", ["axiomrl", "resume", "--checkpoint", path]))
    started = run.metadata.get("command")
    if isinstance(started, list) and started:
        shown.append(("As it was started", [str(word) for word in started]))
    return section("Commands", "".join(command(label, shlex.join(words)) for label, words in shown), name="commands")


def configuration(run: RunRecord) -> str:
    """The resolved config, by section."""
    if not run.config:
        return ""
    top = [(key, _value(value)) for key, value in run.config.items() if not isinstance(value, dict)]
    groups = [(key, value) for key, value in run.config.items() if isinstance(value, dict) and value]
    groups.sort(key=lambda item: item[0] != "hyperparams")
    lists = [pairs("run", top)]
    lists += [pairs(key, [(name, _value(v)) for name, v in value.items()]) for key, value in groups]
    return section("Configuration", f'<div class="pairs">{"".join(lists)}</div>', summary=CONFIG, name="config")


def environment(run: RunRecord) -> str:
    """Versions, machine and commit."""
    git, hardware = mapping(run.metadata.get("git")), mapping(run.metadata.get("hardware"))
    system = mapping(run.metadata.get("system"))
    memory = number(hardware.get("ram_bytes"))
    gpus = hardware.get("gpus")
    machine = [(key, str(system[key])) for key in ("platform", "python") if key in system]
    machine += [("processor", f"{hardware['cpu']}, {hardware.get('cores')} cores")] if "cpu" in hardware else []
    machine += [("memory", fmt.size(memory))] if memory else []
    machine += [("GPU", ", ".join(map(str, gpus)) if gpus else "none")] if isinstance(gpus, list) else []
    commit = [("commit", str(git.get("commit"))), ("changed files", "yes" if git.get("is_dirty") else "no")]
    times = [(word, _time(run, f"{key}_at_utc")) for word, key in (("started", "created"), ("ended", "ended"))]
    lists = [
        pairs("versions", [(key, str(value)) for key, value in mapping(run.metadata.get("versions")).items()]),
        pairs("machine", machine),
        pairs("git", commit if git else [("commit", "not run inside a git repository")]),
        pairs("time", [(word, when or "–") for word, when in times]),
    ]
    return section("Versions and hardware", f'<div class="pairs">{"".join(lists)}</div>', name="environment")


def traceback(run: RunRecord) -> str:
    """The traceback that a failed run left behind."""
    try:
        text = (run.path / "traceback.txt").read_text("utf-8", "replace")
    except OSError:
        return ""
    return section("Traceback", f'<pre class="log">{escape(text)}</pre>', summary="traceback.txt", name="traceback")


def _score(evaluation: EvaluationPoint | None) -> tuple[str, str]:
    if evaluation is None:
        return "–", "none recorded"
    value, _, std = fmt.spread(evaluation.mean, evaluation.std).partition(" ± ")
    return value, f"± {std}, step {fmt.count(evaluation.step)}"


def _hint(e: EvaluationPoint) -> str:
    episodes = f"\n{len(e.returns)} episodes, {fmt.number(e.low)} to {fmt.number(e.high)}" if e.returns else ""
    return f"step {fmt.count(e.step)}\nevaluation {fmt.spread(e.mean, e.std)}{episodes}"


def _no_evaluations(run: RunRecord) -> str:
    every = number(mapping(run.config.get("evaluation")).get("every_steps"))
    return "Evaluation is turned off in this run's config." if every == 0 else "No evaluation has been recorded."


def _budget(run: RunRecord) -> str:
    total = number(run.config.get("total_timesteps"))
    return fmt.count(total) if total else ""


def _time(run: RunRecord, key: str) -> str:
    return _utc(run.metadata.get(key))


def _utc(stamp: Any) -> str:
    """`2026-11-16T02:26:42+00:00` as people write it."""
    return str(stamp).replace("T", " ").replace("+00:00", " UTC") if stamp else ""


def _words(key: str) -> str:
    """A metric's name in words."""
    known = {LENGTH: "Episode length", "train/approx_kl": "Approximate KL"}
    text = key.removeprefix("train/").replace("_", " ")
    return known.get(key, text[:1].upper() + text[1:])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
