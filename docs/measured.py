"""What has been measured of the presets: the files in `benchmarks/results` as the pages show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def result_of(preset: str, steps: int) -> dict[str, Any] | None:
    """What was measured of a preset, if it is of the number of steps that it has now."""
    path = RESULTS / f"{preset.replace('/', '-')}.json"
    result: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if result is None or any(run["global_step"] < steps for run in result["runs"]) else result


def success_text(result: dict[str, Any]) -> str:
    """What is added to a return where there are goals."""
    success = result["summary"].get("success_rate")
    return "" if success is None else f", success {success:.2f}"


def worst_text(result: dict[str, Any]) -> str:
    """The mean return of the worst seed."""
    return f"{min(run['return_mean'] for run in result['runs']):,.1f}"


def size_text(result: dict[str, Any]) -> str:
    """How many seeds, and episodes of each."""
    return f"{len(result['runs'])} x {result['episodes']}"


def commit_text(result: dict[str, Any]) -> str:
    """The commits that its runs were made at: that of the first, and of those that differ from it."""
    found = [result.get("git"), *(run["git"] for run in result["runs"] if "git" in run)]
    commits = dict.fromkeys(git["commit"][:7] for git in found if git and git.get("commit"))
    return ", ".join(f"`{commit}`" for commit in commits)
