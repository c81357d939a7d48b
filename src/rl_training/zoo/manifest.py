"""What a set of runs came to, in one file; and the same a preset, as `benchmarks/results` keeps it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.files import replace_atomically, saving, to_json
from rl_training.zoo.asked import MANIFEST
from rl_training.zoo.bands import Band, verdict
from rl_training.zoo.jobs import SURROUNDINGS, Job
from rl_training.zoo.suites import Protocol, folder_name

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs that belong together: what asked for them, where they lie, and what is expected of them."""

    name: str
    folder: Path
    command: Sequence[str]
    jobs: Sequence[Job]
    protocol: Protocol
    bands: Mapping[str, Band] = field(default_factory=dict)
    commit: str | None = None
    """The commit that runs, where there is no repository to ask."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The configuration of each name's runs, but for what each of them has of its own."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the suite changes of each preset, by dotted key."""

    @property
    def names(self) -> list[str]:
        """What is measured, each over several seeds."""
        return list(dict.fromkeys(job.name for job in self.jobs))


def collect(plan: Plan, errors: Mapping[Job, str] | None = None) -> dict[str, Any]:
    """The manifest: a function of what lies on disk, but for the errors of runs that failed just now."""
    errors = errors or {}
    abouts = [_about(plan, job) for job in plan.jobs]
    about = next(filter(None, abouts), {})
    runs: list[dict[str, Any]] = []
    for job, own in zip(plan.jobs, abouts, strict=True):
        different = {key: value for key, value in own.items() if value != about[key]}
        failure = {"status": "failed", "error": errors[job]} if job in errors else {}
        runs.append({**job.result(), **different, **failure})
    return {
        "schema_version": SCHEMA_VERSION,
        "name": plan.name,
        "command": list(plan.command),
        "seeds": list(dict.fromkeys(job.seed for job in plan.jobs)),
        "episodes": plan.protocol.episodes,
        "checkpoint": plan.protocol.checkpoint,
        **about,
        "configs": dict(plan.configs),
        "overrides": {name: dict(values) for name, values in plan.overrides.items() if values},
        "summary": {name: _summary(plan, name, runs) for name in plan.names},
        "runs": runs,
    }


def write_manifest(plan: Plan, errors: Mapping[Job, str] | None = None) -> dict[str, Any]:
    """Bring the manifest up to date, in one step."""
    manifest = collect(plan, errors)
    _write(plan.folder / MANIFEST, manifest)
    return manifest


def write_results(manifest: Mapping[str, Any], folder: Path, label: str | None = None) -> list[Path]:
    """One file a preset whose seeds are all there."""
    written: list[Path] = []
    for name, summary in manifest["summary"].items():
        runs = [run for run in manifest["runs"] if run["name"] == name]
        if any(run["status"] != "completed" for run in runs):
            continue
        left_out = ("preset", "algo", "env_id", "name", "status")
        about, runs = _shared(manifest, runs)
        report = {
            "preset": runs[0]["preset"] or name,
            "episodes": manifest["episodes"],
            **({} if manifest["checkpoint"] == "latest" else {"checkpoint": manifest["checkpoint"]}),
            **about,
            "summary": {
                key: summary[key] for key in ("mean", "min", "max", "success_rate") if key in summary
            },
            "runs": [{key: value for key, value in run.items() if key not in left_out} for run in runs],
        }
        path = folder / f"{folder_name(name)}{f'-{label}' if label else ''}.json"
        _write(path, report)
        written.append(path)
    return written


def _shared(
    manifest: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the runs of a preset were made with: that of the first, and of every other where it differs."""
    wholes = [{**{key: manifest[key] for key in SURROUNDINGS if key in manifest}, **run} for run in runs]
    about = {key: wholes[0][key] for key in SURROUNDINGS if key in wholes[0]}
    same = [{key for key in about if whole.get(key) == about[key]} for whole in wholes]
    return about, [
        {key: value for key, value in whole.items() if key not in known}
        for whole, known in zip(wholes, same, strict=True)
    ]


def _summary(plan: Plan, name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    asked = [run for run in runs if run["name"] == name]
    done = [run for run in asked if run["status"] == "completed"]
    band = plan.bands.get(name)
    summary: dict[str, Any] = {"seeds": len(asked), "completed": len(done)}
    if done:
        means = [run["return_mean"] for run in done]
        summary |= {"mean": statistics.mean(means), "min": min(means), "max": max(means)}
        if all("success_rate" in run for run in done):
            summary["success_rate"] = statistics.mean(run["success_rate"] for run in done)
    if band is not None:
        summary["band"] = list(band)
    whole = bool(done) and len(done) == len(asked)
    return {**summary, "verdict": verdict(summary["mean"], band) if whole else "incomplete"}


def _about(plan: Plan, job: Job) -> dict[str, Any]:
    """Software, hardware and commit of a run; nothing while there is none."""
    known = job.surroundings()
    if known and plan.commit and not known.get("git"):
        known["git"] = {"commit": plan.commit, "is_dirty": False}
    return known


def _write(path: Path, data: Any) -> None:
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, (to_json(data, indent=1) + "\n").encode())
