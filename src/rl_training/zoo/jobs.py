"""One preset, one seed: where it stands on disk, and the command that brings it on. Never imports torch.

A job has a folder of its own. Everything known of it is read from there (the run directory that `train`
makes in it and `evaluation.json`), so that a runner which was killed has nothing to remember.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import CheckpointError
from rl_training.experiment.files import replace_atomically, to_json
from rl_training.experiment.lock import holder_of
from rl_training.experiment.loggers import read_rows
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.runs import CHECKPOINTS, EVALUATIONS, METRICS, checkpoint_steps, is_run_dir
from rl_training.zoo.evaluations import EVALUATION, checkpoint_in
from rl_training.zoo.suites import Protocol

Stage = Literal["new", "unfinished", "trained", "done"]
SURROUNDINGS = ("versions", "hardware", "git")
"""What is recorded of the software, hardware and commit that a run was made with."""
_CURVE = ("global_step", "elapsed_s", "return_mean", "success_rate")
_SCORES = ("return_mean", "return_std", "success_rate", "returns")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A run to be made: what is trained, with which seed, how it is judged, and where it lies."""

    name: str
    """The preset, or what else the runs of several seeds have in common."""
    seed: int
    arguments: tuple[str, ...]
    """Of `axiomrl train`, without seed and output directory."""
    folder: Path
    total: int
    protocol: Protocol
    facts: Mapping[str, str | None]
    """`preset`, `algo` and `env_id`."""
    imports: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} seed {self.seed}"

    @property
    def command(self) -> list[str]:
        """What a person would type."""
        return ["axiomrl", "train", *self.arguments, "--seed", str(self.seed)]

    def run_dir(self) -> Path | None:
        """The run directory that has come furthest; attempts that died before they saved have none."""
        saved = [path for path in self._runs() if checkpoint_steps(path)]
        return max(saved, key=lambda path: (max(checkpoint_steps(path)), path.name), default=None)

    def holder(self) -> str | None:
        """The process that is at work on it, for example one that outlived its runner and is saving."""
        return next(filter(None, map(holder_of, self._inside())), None)

    def stage(self) -> Stage:
        """How far it has come."""
        run = self.run_dir()
        if run is None:
            return "new"
        if _metadata(run).get("status") != "completed":
            return "unfinished"
        return "done" if self.evaluation() is not None else "trained"

    def evaluation(self) -> dict[str, Any] | None:
        """The result by the protocol that is asked for, of this run and the checkpoint that it has now."""
        try:
            found = json.loads((self.folder / EVALUATION).read_bytes())
            run = self.run_dir()
            if run is None:
                return None
            pointed = _metadata(run).get(f"{self.protocol.checkpoint}_checkpoint")
            is_current = (
                found["num_episodes"] == self.protocol.episodes
                and found["which"] == self.protocol.checkpoint
                and found["return_mean"] is not None  # as NaN is written
                and pointed is not None
                and checkpoint_in(found["checkpoint"], run.name) == Path(pointed).name
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return dict(found) if is_current else None

    def next_command(self) -> list[str]:
        """The arguments of the `axiomrl` call that brings it to the next stage."""
        stage, imports = self.stage(), [word for name in self.imports for word in ("--import", name)]
        if stage == "new":
            where = ["--output-dir", str(self.folder), "--quiet", "--json"]
            return ["train", *self.arguments, "--seed", str(self.seed), *where]
        found = ["--checkpoint", str(self.run_dir())]
        if stage == "unfinished":
            return ["resume", *found, *imports, "--quiet", "--json"]
        how = ["--which", self.protocol.checkpoint, "--num-episodes", str(self.protocol.episodes)]
        return ["eval", *found, *how, *imports, "--json"]

    def prepare(self) -> None:
        """Make the folder; what attempts left that died before their first checkpoint goes, and so does the
        result of a run that is no more there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if is_run_dir(path) and _has_no_checkpoint(path):
                shutil.rmtree(path, ignore_errors=True)
        if self.run_dir() is None:
            (self.folder / EVALUATION).unlink(missing_ok=True)

    def record_evaluation(self, text: str) -> None:
        """Keep what `axiomrl eval --json` printed."""
        found = {**json.loads(text), "which": self.protocol.checkpoint}
        replace_atomically(self.folder / EVALUATION, (to_json(found) + "\n").encode())

    def progress(self) -> tuple[int, float | None]:
        """The last step that is known of, and the last evaluation."""
        if (run := self._newest()) is None:
            return 0, None
        step, score = _last(run / METRICS), _last(run / EVALUATIONS)
        return int(step.get("global_step", 0)), score.get("return_mean")

    def curve(self) -> list[tuple[int, float]]:
        """The evaluations that training has made so far: step and mean return."""
        run = self._newest()
        rows = read_rows(run / EVALUATIONS) if run is not None else []
        return [
            (row["global_step"], row["return_mean"]) for row in rows if row.get("return_mean") is not None
        ]

    def seconds(self) -> float:
        """How long it has been trained so far, over all resumes."""
        run = self._newest()
        rows = [_last(run / name) for name in (METRICS, EVALUATIONS)] if run is not None else []
        return max([float(row.get("elapsed_s") or 0.0) for row in rows], default=0.0)

    def _newest(self) -> Path | None:
        """The attempt that is, or was last, at work."""
        return max(self._runs(), key=lambda path: path.stat().st_mtime, default=None)

    def _runs(self) -> list[Path]:
        """The attempts."""
        return [path for path in self._inside() if is_run_dir(path)]

    def _inside(self) -> list[Path]:
        """The folders in its own; none where that cannot be read, which whoever prepares it is told."""
        try:
            return [path for path in self.folder.iterdir() if path.is_dir() and os.access(path, os.X_OK)]
        except OSError:
            return []

    def surroundings(self) -> dict[str, Any]:
        """Software, hardware and commit of the run, as far as there is one."""
        run = self.run_dir()
        known = _metadata(run) if run else {}
        return {key: known[key] for key in SURROUNDINGS if key in known}

    def result(self) -> dict[str, Any]:
        """What came out, in the form that manifests and result files have."""
        head = {**self.facts, "name": self.name, "seed": self.seed, "command": self.command}
        run, scores = self.run_dir(), self.evaluation()
        if run is None or self.stage() != "done" or scores is None:
            return {**head, "status": {"new": "missing"}.get(stage := self.stage(), stage)}
        metadata = _metadata(run)
        points = read_rows(run / EVALUATIONS)
        return {
            **head,
            "status": "completed",
            "global_step": max(checkpoint_steps(run)),
            "seconds": (metadata.get("latest_metrics") or {}).get("elapsed_s"),
            **{key: scores[key] for key in _SCORES if key in scores},
            "curve": [{key: point[key] for key in _CURVE if key in point} for point in points],
        }


def _metadata(run_dir: Path) -> dict[str, Any]:
    """A run's metadata; without them, it is one that has not ended."""
    try:
        return read_metadata(run_dir)
    except CheckpointError:
        return {}


def _has_no_checkpoint(run_dir: Path) -> bool:
    """An error where that cannot be seen: what cannot be read must not be taken for empty."""
    with suppress(FileNotFoundError):
        os.listdir(run_dir / CHECKPOINTS)
    return not checkpoint_steps(run_dir)


def _last(path: Path, tail: int = 1 << 16) -> dict[str, Any]:
    """The last whole row of a JSONL file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - tail))
            lines = file.read().split(b"\n")[:-1]
        row = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return row if isinstance(row, dict) else {}
