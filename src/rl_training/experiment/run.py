"""A run on disk: its lock, its metadata, its checkpoints and which of them to keep."""

from __future__ import annotations

import fcntl
import os
import shutil
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import CheckpointError
from rl_training.experiment import yaml
from rl_training.experiment.checkpoint import read_manifest, verify_checkpoint, write_checkpoint
from rl_training.experiment.config import TrainConfig, to_dict
from rl_training.experiment.files import replace_atomically
from rl_training.experiment.metadata import (
    describe_run,
    hardware,
    raw_command,
    read_metadata,
    versions,
    write_metadata,
)
from rl_training.experiment.runs import (
    CHECKPOINTS,
    CONFIG,
    METADATA,
    is_checkpoint_dir,
    is_run_dir,
    make_run_dir,
    missing_path_message,
)
from rl_training.types import Spec

Status = Literal["running", "completed", "interrupted", "failed"]
Which = Literal["best", "latest"]


class Run:
    """One run directory, held by one process at a time."""

    def __init__(self, run_dir: Path, config: TrainConfig, metadata: dict[str, Any], spec: Spec) -> None:
        self.dir, self.config, self.metadata, self.spec = run_dir, config, metadata, spec
        self.on_save: Callable[[], Mapping[str, Any]] = dict
        self._saved_step: int | None = None
        self._lock = _lock(run_dir)

    @classmethod
    def create(cls, config: TrainConfig, spec: Spec, *, preset: str | None = None) -> Run:
        """Start a new run in a directory of its own."""
        run_dir = make_run_dir(config)
        replace_atomically(run_dir / CONFIG, yaml.dump(to_dict(config)).encode())
        run = cls(run_dir, config, describe_run(command=raw_command(), tags=config.tags, preset=preset), spec)
        write_metadata(run_dir, run.metadata)
        return run

    @classmethod
    def reopen(cls, run_dir: Path, config: TrainConfig, spec: Spec, checkpoint: Path) -> Run:
        """Go on in an existing run directory from one of its checkpoints; what came after that is dropped."""
        run = cls(run_dir, config, read_metadata(run_dir), spec)
        try:
            run._return_to(checkpoint)
        except BaseException:
            run.close()
            raise
        return run

    def _return_to(self, checkpoint: Path) -> None:
        """Make a checkpoint the latest: first in the metadata, then by dropping what came after it."""
        step: int = read_manifest(checkpoint)["step"]
        later = [self.dir / CHECKPOINTS / f"step_{s}" for s in checkpoint_steps(self.dir) if s > step]
        self.metadata.update(status="running", ended_at_utc=None, stop_reason=None)
        self.metadata["latest_checkpoint"] = str(checkpoint.relative_to(self.dir))
        best = self.best_checkpoint
        if best is not None and (best in later or not best.exists()):
            self.metadata["best_checkpoint"] = None
        replace_atomically(self.dir / CONFIG, yaml.dump(to_dict(self.config)).encode())
        write_metadata(self.dir, self.metadata)
        self._saved_step = step
        for path in later:
            _remove(path)
        for leftover in (self.dir / CHECKPOINTS).glob(".step_*"):  # of a process that was killed in a save
            shutil.rmtree(leftover, ignore_errors=True)

    def record_resume(self, grade: tuple[str, str], step: int) -> None:
        """Note a resume and what it gave: `exact`, or less and why."""
        changed = [
            f"{name} {before.get(name)} → {after.get(name)}"
            for before, after in (
                (self.metadata.get("versions", {}), versions()),
                (self.metadata.get("hardware", {}), hardware()),
            )
            for name in after
            if before.get(name) != after.get(name)
        ]
        if grade[0] == "exact" and changed:
            grade = ("numeric", f"same state, but another machine or software: {'; '.join(changed)}")
        record = {"at_utc": _now(), "step": step, "command": raw_command()}
        record |= {"grade": grade[0], "reason": grade[1]}
        self.metadata["resumes"] = [*self.metadata.get("resumes", []), record]
        write_metadata(self.dir, self.metadata)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best evaluation so far."""
        return self._pointed("best_checkpoint")

    @property
    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        return self._pointed("latest_checkpoint")

    def save(self, state: Mapping[str, Any], step: int, *, best: bool) -> Path:
        """Publish a checkpoint of this step, move the pointers to it, and drop what is no longer kept."""
        path = self.dir / CHECKPOINTS / f"step_{step}"
        if self._saved_step != step:
            write_checkpoint(path, state, config=self.config, spec=self.spec, step=step)
            self._saved_step = step
        relative = str(path.relative_to(self.dir))
        self.metadata["latest_checkpoint"] = relative
        if best:
            self.metadata["best_checkpoint"] = relative
        self.metadata.update(self.on_save())
        write_metadata(self.dir, self.metadata)
        self._retain()
        return path

    def finish(self, status: Status, reason: str | None = None) -> None:
        """Write how the run ended and give up the lock."""
        self.metadata.update(status=status, stop_reason=reason, ended_at_utc=_now(), **self.on_save())
        write_metadata(self.dir, self.metadata)
        self.close()

    def fail(self, error: BaseException) -> None:
        """Mark the run failed and keep the traceback beside it."""
        text = "".join(traceback.format_exception(error))
        try:
            (self.dir / "traceback.txt").write_text(text, encoding="utf-8")
            self.finish("failed", f"{type(error).__name__}: {error}")
        except OSError:
            self.close()  # a full disk, say: the error that brought us here matters more

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _pointed(self, key: str) -> Path | None:
        relative = self.metadata.get(key)
        return self.dir / relative if relative else None

    def _retain(self) -> None:
        """Keep the newest checkpoints and the best one."""
        steps = sorted(checkpoint_steps(self.dir))
        paths = [self.dir / CHECKPOINTS / f"step_{step}" for step in steps]
        keep = {*paths[-self.config.checkpoint.keep_last :], self.best_checkpoint, self.latest_checkpoint}
        for path in paths:
            if path not in keep:
                _remove(path)


def checkpoint_steps(run_dir: Path) -> list[int]:
    """Steps for which the run has a published checkpoint."""
    names = [p.name.removeprefix("step_") for p in (run_dir / CHECKPOINTS).glob("step_*")]
    return [int(name) for name in names if name.isdigit()]


def find_checkpoint(path: str | PathLike[str], which: Which = "best") -> Path:
    """The checkpoint meant by a run directory or checkpoint path."""
    path = Path(path)
    if is_checkpoint_dir(path):
        return path
    if not is_run_dir(path):
        raise CheckpointError(missing_path_message(path))
    metadata = read_metadata(path)
    keys = ["best_checkpoint", "latest_checkpoint"] if which == "best" else ["latest_checkpoint"]
    pointed = [path / str(metadata[key]) for key in keys if metadata.get(key)]
    newest = [path / CHECKPOINTS / f"step_{step}" for step in sorted(checkpoint_steps(path), reverse=True)]
    damage: list[str] = []
    for candidate in dict.fromkeys([*pointed, *newest]):
        try:
            _require_inside(path, candidate)
            verify_checkpoint(candidate)
        except CheckpointError as error:
            damage.append(str(error))
            continue
        if damage:
            warnings.warn(f"{'; '.join(damage)}. Using {candidate} instead.", stacklevel=2)
        return candidate
    raise CheckpointError("\n".join(damage) or f"{path}: this run has not saved a checkpoint yet")


def run_of(checkpoint: Path) -> Path | None:
    """The run directory a checkpoint lies in, or None when it has been copied elsewhere."""
    run_dir = checkpoint.parent.parent
    return run_dir if checkpoint.parent.name == CHECKPOINTS and is_run_dir(run_dir) else None


def _remove(checkpoint: Path) -> None:
    """Delete a checkpoint under another name first, so that a reader never meets half of one."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(checkpoint, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _require_inside(run_dir: Path, checkpoint: Path) -> None:
    """Names from files never lead outside the run directory."""
    if not checkpoint.resolve().is_relative_to(run_dir.resolve()):
        raise CheckpointError(f"{run_dir / METADATA}: names a checkpoint outside the run: {checkpoint}")


def _lock(run_dir: Path) -> int | None:
    """Take the run's OS lock; the system frees it when its holder dies."""
    descriptor = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CheckpointError(f"{run_dir}: another process is training this run") from None
    return descriptor


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
