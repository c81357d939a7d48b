"""Were the runs that are there made by the code that runs now? Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.metadata import git_state, versions
from rl_training.zoo.jobs import Job

COMPARED = ("axiomrl", "torch")
"""Packages whose other version is other code."""


def made_otherwise(jobs: Sequence[Job], commit: str | None = None) -> dict[Job, str]:
    """Runs of another commit or other versions, finished or not, each with the difference.

    `commit` is the one that runs where there is no repository to ask. What is not known is not compared.
    """
    there = [job for job in jobs if job.run_dir() is not None]
    if not there:
        return {}
    now = {"versions": versions(), "git": git_state() or {"commit": commit}}
    found = {job: ", ".join(_differences(job.surroundings(), now)) for job in there}
    return {job: reason for job, reason in found.items() if reason}


def made_from_changes(jobs: Sequence[Job]) -> list[Job]:
    """Runs of a tree with uncommitted changes: nothing tells what those were."""
    return [job for job in jobs if (job.surroundings().get("git") or {}).get("is_dirty")]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    old, new = ({"commit": _commit(part), **(part.get("versions") or {})} for part in (then, now))
    found = [(name, old.get(name), new.get(name)) for name in ("commit", *COMPARED)]
    told = [f"{name} {was}, now {is_}" for name, was, is_ in found if was and is_ and was != is_]
    before, after = (part.get("git") or {} for part in (then, now))
    if before.get("commit") and not before.get("is_dirty") and after.get("is_dirty"):
        told.append("no uncommitted changes, now there are some")
    return told


def _commit(surroundings: Mapping[str, Any]) -> str | None:
    commit = (surroundings.get("git") or {}).get("commit")
    return None if commit is None else str(commit)[:12]
