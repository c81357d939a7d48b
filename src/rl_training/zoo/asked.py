"""What a manifest asked for of the runs that lie below it: their configuration, and how they are judged.

`zoo run` and `train --seeds` write the manifest; their runs lie in `NAME/seedN/RUN` below it. What a suite
itself lays down beside its presets (`steps`, `overrides`) is what its runs are meant to have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rl_training.experiment.files import read_at_once
from rl_training.zoo.configs import Config, Difference, is_free
from rl_training.zoo.drift import differences
from rl_training.zoo.rows import mapping, number
from rl_training.zoo.suites import folder_name
from rl_training.zoo.summaries import RunSummary

MANIFEST = "manifest.json"
JUDGED_EPISODES = "judged.episodes"
_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a manifest lays down for a run."""

    config: Config
    overrides: Mapping[str, Any]
    """What the suite changes of the preset, by dotted key."""
    episodes: int | None
    checkpoint: str


def manifest_of(run_dir: str) -> str:
    """Where the manifest of a run would lie."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(run_dir))), MANIFEST)


class Manifests:
    """Manifests by their path, each read once, however many runs it has."""

    def __init__(self) -> None:
        self._read: dict[str, Mapping[tuple[str, str], Asked]] = {}
        self._compared: dict[tuple[int, int], list[Difference]] = {}

    def judge(self, run: RunSummary, real: str) -> RunSummary:
        """The same run, with what is not as its manifest says; a run that is in none stays as it is."""
        path = manifest_of(real)
        if path not in self._read:
            self._read[path] = dict(_asked(path))
        folder, seed = os.path.split(os.path.dirname(real))
        known, name = self._read[path], os.path.basename(folder)
        asked = known.get((name, seed)) or known.get((name, ""))
        if asked is None:
            return run
        found = [*self._differences(asked, run), *_judged(asked, run)]
        return replace(run, unasked=found, granted=list(asked.overrides))

    def _differences(self, asked: Asked, run: RunSummary) -> list[Difference]:
        pair = id(asked.config), id(run.config)  # which both stay as long as the runs do
        if pair not in self._compared:
            self._compared[pair] = list(differences(asked.config, run.config)) if run.config else []
        return self._compared[pair]


def _judged(asked: Asked, run: RunSummary) -> Iterator[Difference]:
    """Was it judged by another number of episodes? Only a run that has ended can be."""
    episodes = run.episodes("best" if asked.checkpoint == "best" else "final")
    if run.status == "completed" and asked.episodes is not None and episodes != asked.episodes:
        yield JUDGED_EPISODES, str(asked.episodes), str(episodes or "none")


def _asked(path: str) -> Iterator[tuple[tuple[str, str], Asked]]:
    """What a manifest lays down, by the folders of name and seed; one without `configs` lays down nothing."""
    try:
        data = mapping(json.loads(read_at_once(path, _MAX_BYTES)))
    except (OSError, ValueError, RecursionError):
        return
    configs, overrides, runs = mapping(data.get("configs")), mapping(data.get("overrides")), data.get("runs")
    episodes = number(data.get("episodes"))
    by_name = {
        name: Asked(
            config,
            {key: value for key, value in mapping(overrides.get(name)).items() if not is_free(key)},
            int(episodes) if episodes else None,
            str(data.get("checkpoint")),
        )
        for name, config in configs.items()
        if isinstance(config, dict)
    }
    for name, laid_down in by_name.items():  # also for seeds that an earlier command has run
        yield (folder_name(name), ""), replace(laid_down, episodes=None)
    for run in map(mapping, runs if isinstance(runs, list) else ()):
        if (asked := by_name.get(str(run.get("name")))) is not None:
            yield (folder_name(str(run["name"])), f"seed{run.get('seed')}"), asked
