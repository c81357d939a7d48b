"""Runs from whatever names them: a run, a directory of runs, or a manifest (a JSON file that lists results).

A manifest has a list `runs`. An entry points to a run directory (`run_dir`, relative to the manifest) or
holds the result itself: `seed`, `return_mean` or `returns`, `global_step`, `seconds`, `curve`, `checkpoint`
(`latest` or `best`: whose result it is). What the top says (`preset`, `algo`, `env_id`) holds for every entry
that does not say otherwise; with `config` at the top or in an entry, a run that has other values is flagged
as drift.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError, CheckpointError
from rl_training.experiment.presets import load_preset
from rl_training.zoo.asked import Manifests
from rl_training.zoo.configs import ConfigReader
from rl_training.zoo.drift import differences
from rl_training.zoo.evaluations import Judgement, Trained, best_score, final_score, trained_from
from rl_training.zoo.rows import mapping, number
from rl_training.zoo.scan import PARTS, scan
from rl_training.zoo.summaries import RunSummary, summarize

_MAX_BYTES = 256 << 20
_WITHOUT = {**dict.fromkeys(("missing", "unfinished", "trained"), "interrupted"), "failed": "failed"}
"""What a runner's manifest says of runs without a result, and the status that such a run has."""


def runs_of(path: str | Path, *, use_index: bool = True) -> list[RunSummary]:
    """The runs that a path stands for; none is an error."""
    path = Path(path)
    runs = read_manifest(path) if path.is_file() else scan([path], use_index=use_index).runs
    if not runs:
        raise AxiomError(f"{path}: no run in it")
    return runs


def read_manifest(path: Path) -> list[RunSummary]:
    """The runs a manifest lists."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path}: cannot be read: larger than {_MAX_BYTES} bytes")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        at = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise CheckpointError(
            f"{path}: cannot be read{at}: expected a run, a directory of runs, or a manifest (a JSON file "
            "with a list `runs`)"
        ) from None
    entries = mapping(data).get("runs")
    if not isinstance(entries, list):
        raise CheckpointError(f"{path}: not a manifest: a JSON object with a list `runs` is expected")
    common = {key: value for key, value in mapping(data).items() if key != "runs"}
    whole = [{**common, **mapping(entry)} for entry in entries]
    reader, manifests = ConfigReader(), Manifests()
    return [_run(path, index, entry, reader, manifests) for index, entry in enumerate(whole)]


def _run(
    manifest: Path, index: int, entry: Mapping[str, Any], reader: ConfigReader, manifests: Manifests
) -> RunSummary:
    status = _WITHOUT.get(str(entry.get("status")))
    if status is not None and not entry.keys() & {"run_dir", "return_mean", "returns"}:
        return replace(_named(manifest, index, entry), status=status)
    if isinstance(folder := entry.get("run_dir"), str):
        path = os.path.join(manifest.parent, folder)
        names = frozenset(part for part in PARTS if os.path.exists(os.path.join(path, part)))
        if len(names) < 2:
            raise CheckpointError(f"{manifest}: run {index + 1}: {path}: not a run directory")
        real = os.path.realpath(path)
        run = manifests.judge(summarize(path, real, names, reader), real)
        drift = list(differences(mapping(entry.get("config")), run.config))
        return replace(run, unasked=[*run.unasked, *drift]) if drift else run
    return _recorded(manifest, index, entry)


def _recorded(manifest: Path, index: int, entry: Mapping[str, Any]) -> RunSummary:
    """A result that stands in the manifest itself, scored as the run that it came from would be."""
    trained = _curve(entry)
    steps = int(number(entry.get("global_step")) or max(trained.newest, 0))
    seconds = number(entry.get("seconds"))
    best_step = max(trained.points, key=lambda point: point[2])[0] if trained.points else steps
    pointers = {"latest_checkpoint": f"step_{steps}", "best_checkpoint": f"step_{best_step}"}
    is_best = entry.get("checkpoint") == "best"
    mean, returns = _mean(manifest, index, entry)
    episodes = int(number(entry.get("episodes")) or len(returns)) or None
    checkpoint = pointers["best_checkpoint" if is_best else "latest_checkpoint"]
    judged = Judgement(checkpoint, mean, episodes=episodes, returns=returns)
    final, best = final_score(trained, judged, pointers), best_score(trained, judged, pointers)
    points = list(trained.points)
    if mean is not None and trained.newest < steps and not is_best:
        points.append((steps, seconds, mean, episodes))
    return replace(
        _named(manifest, index, entry),
        status=str(entry.get("status") or "completed"),
        steps=steps,
        wall_seconds=seconds,
        steps_per_second=steps / seconds if seconds else None,
        eval_steps=[point[0] for point in points],
        eval_seconds=[point[1] for point in points],
        eval_means=[point[2] for point in points],
        final=final.mean,
        final_episodes=final.episodes,
        best=best.mean,
        best_episodes=best.episodes,
        returns=final.returns,
    )


def _named(manifest: Path, index: int, entry: Mapping[str, Any]) -> RunSummary:
    """A run that a manifest tells of, without what came out."""
    algo, env = _preset(entry)
    asked, changed = (
        mapping(mapping(entry.get(key)).get(str(entry.get("name")))) for key in ("configs", "overrides")
    )
    return RunSummary(
        path=f"{manifest}#{index + 1}",
        algo=str(entry.get("algo") or algo),
        env_id=str(entry.get("env_id") or env),
        seed=str(entry.get("seed", "unknown")),
        preset=str(entry["preset"]) if entry.get("preset") else None,
        config=asked,
        granted=list(changed),
    )


def _mean(manifest: Path, index: int, entry: Mapping[str, Any]) -> tuple[float | None, list[float]]:
    """The mean return of a result, None if it is no finite number, and the returns behind it."""
    given = entry.get("returns")
    numbers = [number(value) for value in (given if isinstance(given, list) else ())]
    returns = [value for value in numbers if value is not None]
    if "return_mean" in entry:
        return number(entry["return_mean"]), returns
    if not numbers:
        raise CheckpointError(f"{manifest}: run {index + 1}: neither run_dir nor return_mean nor returns")
    return sum(returns) / len(returns) if len(returns) == len(numbers) else None, returns


def _curve(entry: Mapping[str, Any]) -> Trained:
    """The evaluations on the way."""
    curve = entry.get("curve")
    rows = [dict(mapping(row)) for row in (curve if isinstance(curve, list) else ())]
    known = [row for row in rows if number(row.get("global_step")) is not None]
    return trained_from(sorted(known, key=lambda row: float(row["global_step"])))


def _preset(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Algorithm and env of the preset that is named, where it is known."""
    try:
        preset = load_preset(str(entry.get("preset"))).data
        return str(preset["algo"]), str(preset["env_id"])
    except (AxiomError, KeyError):
        return "unknown", "unknown"
