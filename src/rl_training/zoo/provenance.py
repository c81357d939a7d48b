"""The sections of a report that say where a run came from and how to get it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from rl_training.experiment.runs import CONFIG
from rl_training.zoo import formatting as fmt
from rl_training.zoo.page import command, pairs, section, table
from rl_training.zoo.records import RunRecord
from rl_training.zoo.rows import mapping, number

TIMES = (("started", "created"), ("ended", "ended"))


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
        cells = (marks, scores.get(entry.step, fmt.NONE), fmt.size(entry.size), f"<code>{relative}</code>")
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
            escape(fmt.utc(entry.get("at_utc"))),
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
    shown: list[tuple[str, list[str]]] = []
    if run.config:
        shown.append(("Train it again", ["axiomrl", "train", "--config", str(run.path / CONFIG)]))
    if run.checkpoints:
        evaluate = ["axiomrl", "eval", "--checkpoint", path, "--num-episodes", "20"]
        shown.append(("Evaluate the best checkpoint", evaluate))
        if run.status != "completed":
            shown.append(("Go on from the latest checkpoint", ["axiomrl", "resume", "--checkpoint", path]))
    started = run.metadata.get("command")
    if isinstance(started, list) and started:
        shown.append(("As it was started", [str(word) for word in started]))
    content = "".join(command(label, shlex.join(words)) for label, words in shown)
    return section("Commands", content, name="commands") if shown else ""


def configuration(run: RunRecord) -> str:
    """The resolved config, by section."""
    if not run.config:
        return ""
    top = [(key, _value(value)) for key, value in run.config.items() if not isinstance(value, dict)]
    groups = [(key, value) for key, value in run.config.items() if isinstance(value, dict) and value]
    groups.sort(key=lambda item: item[0] != "hyperparams")
    lists = [pairs("run", top)]
    lists += [pairs(key, [(name, _value(v)) for name, v in value.items()]) for key, value in groups]
    content = f'<div class="pairs">{"".join(lists)}</div>'
    return section("Configuration", content, summary=CONFIG, name="config")


def environment(run: RunRecord) -> str:
    """Versions, machine, commit and times."""
    data = run.metadata
    versions = [(name, str(version)) for name, version in mapping(data.get("versions")).items()]
    git = mapping(data.get("git"))
    commit = [("commit", str(git.get("commit"))), ("changed files", "yes" if git.get("is_dirty") else "no")]
    times = [(word, fmt.utc(data.get(f"{key}_at_utc")) or fmt.NONE) for word, key in TIMES]
    lists = [
        pairs("versions", versions),
        pairs("machine", _machine(mapping(data.get("system")), mapping(data.get("hardware")))),
        pairs("git", commit if git else [("commit", "not run inside a git repository")]),
        pairs("time", times),
    ]
    content = f'<div class="pairs">{"".join(lists)}</div>'
    return section("Versions and hardware", content, name="environment")


def traceback(run: RunRecord) -> str:
    """The traceback that a failed run left behind."""
    try:
        text = (run.path / "traceback.txt").read_text("utf-8", "replace")
    except OSError:
        return ""
    content = f'<pre class="log">{escape(text)}</pre>'
    return section("Traceback", content, summary="traceback.txt", name="traceback")


def _machine(system: Mapping[str, Any], hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    memory, gpus = number(hardware.get("ram_bytes")), hardware.get("gpus")
    facts = [(key, str(system[key])) for key in ("platform", "python") if key in system]
    if "cpu" in hardware:
        facts.append(("processor", f"{hardware['cpu']}, {hardware.get('cores')} cores"))
    if memory:
        facts.append(("memory", fmt.size(memory)))
    if isinstance(gpus, list):
        facts.append(("GPU", ", ".join(map(str, gpus)) or "none"))
    return facts


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
