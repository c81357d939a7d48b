"""A run on disk: its lock, its metadata, its checkpoints and which of them to keep."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import CheckpointError, SaveError
from rl_training.experiment import yaml
from rl_training.experiment.checkpoint import write_checkpoint
from rl_training.experiment.config import TrainConfig, to_dict
from rl_training.experiment.drift import Change, Grade, drift_of, graded
from rl_training.experiment.files import explained, fsync_dir, fsync_file, replace_atomically
from rl_training.experiment.layers import preset_differences
from rl_training.experiment.lock import RunLock
from rl_training.experiment.manifest import STATE, looks_whole, read_manifest, verify_checkpoint
from rl_training.experiment.metadata import (
    PRESET_DIFFERENCES,
    describe_run,
    raw_command,
    read_metadata,
    surroundings,
    write_metadata,
)
from rl_training.experiment.runs import (
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METADATA,
    METRICS,
    checkpoint_path,
    checkpoint_steps,
    make_run_dir,
)
from rl_training.types import Spec

Status = Literal["running", "completed", "interrupted", "failed"]


class Run:
    """One run directory, held by one process at a time."""

    def __init__(self, run_dir: Path, config: TrainConfig, metadata: dict[str, Any], spec: Spec) -> None:
        self.dir, self.config, self.metadata, self.spec = run_dir, config, metadata, spec
        self.on_save: Callable[[], Mapping[str, Any]] = dict
        """What else to write into the metadata with a checkpoint."""
        self.outcome: Callable[[], tuple[Status, str | None] | None] = lambda: None
        """How the run has ended, once it has."""
        self.computed_by: Callable[[], Mapping[str, Any]] = dict
        """How the run computes, beside the machine and its software."""
        self.dropped: list[str] = []
        """Checkpoints that were newer than the one the run goes on from."""
        self._surroundings = surroundings()
        self._saved_step: int | None = None
        self._unsaved: SaveError | None = None
        self._grade: Callable[[], Grade] | None = None
        """What the resume that this run goes on from has given, by what is known now."""
        self._lock = RunLock(run_dir)

    @classmethod
    def create(cls, config: TrainConfig, spec: Spec, *, preset: str | None = None) -> Run:
        """Start a new run in a directory of its own."""
        run_dir = make_run_dir(config)
        differences = preset_differences(config, preset)
        about = describe_run(command=raw_command(), tags=config.tags, preset=preset, differences=differences)
        run = cls(run_dir, config, about, spec)
        run._write_config()
        run._write_metadata()
        return run

    @classmethod
    def reopen(cls, run_dir: Path, config: TrainConfig, spec: Spec, checkpoint: Path) -> Run:
        """Go on in an existing run directory from one of its checkpoints; what came after that is dropped."""
        run = cls(run_dir, config, {}, spec)
        try:
            run.metadata = _metadata_of(run_dir, config, checkpoint)
            run._return_to(checkpoint)
        except OSError as error:
            run.close()
            raise SaveError(f"{run_dir}: cannot be written: {explained(error)}") from error
        except BaseException:
            run.close()
            raise
        return run

    def _return_to(self, checkpoint: Path) -> None:
        """Make a checkpoint the latest: first in the metadata, then by dropping what came after it."""
        step: int = read_manifest(checkpoint)["step"]
        later = [checkpoint_path(self.dir, s) for s in sorted(checkpoint_steps(self.dir)) if s > step]
        self.metadata.update(status="running", ended_at_utc=None, stop_reason=None)
        self.metadata["latest_checkpoint"] = str(checkpoint.relative_to(self.dir))
        best = self.best_checkpoint
        if best is not None and (best in later or not best.exists()):
            self.metadata["best_checkpoint"] = None
        self._write_metadata()
        self._saved_step = step
        for path in later:
            _remove(path)
            self.dropped.append(path.name)
        for leftover in (self.dir / CHECKPOINTS).glob(".step_*"):  # of a process that was killed in a save
            shutil.rmtree(leftover, ignore_errors=True)
        for leftover in self.dir.glob(".*.tmp"):  # of one that was killed while it replaced a small file
            leftover.unlink(missing_ok=True)
        self._retain(newest_is_verified=True)  # it may have been killed after its last save, just before this

    def record_resume(
        self,
        grade: Grade,
        step: int,
        written_by: Mapping[str, Any],
        changes: Sequence[Change] = (),
        *,
        trains: bool = True,
    ) -> None:
        """Note a resume and what it gave: `exact`, or less and why."""
        record: dict[str, Any] = {"at_utc": _now(), "step": step, "trains": trains, "command": raw_command()}
        self._grade = lambda: graded(grade, written_by, self.surroundings, changes)
        record["grade"], record["reason"] = self._grade()
        record["drift"] = [change.record() for change in drift_of(changes)]
        record["changed"] = [change.record() for change in changes if change.effect != "drift"]
        self.metadata["resumes"] = [*(self.metadata.get("resumes") or []), record]
        if (noted := preset_differences(self.config, self.metadata.get("preset"))) is not None:
            self.metadata[PRESET_DIFFERENCES] = noted
        self._write_metadata()
        self._write_config()  # after the record: changes that were allowed once need no asking again

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best evaluation so far."""
        return self._pointed("best_checkpoint")

    @property
    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        return self._pointed("latest_checkpoint")

    def save(self, state: Mapping[str, Any], step: int, *, best: bool) -> Path | None:
        """Publish a checkpoint of this step, move the pointers to it, and drop what is no longer kept.

        The order matters: whenever the process dies, the pointers name a checkpoint that is whole. A disk
        that does not take it is an error, or, with `checkpoint.on_error: continue`, a warning and None.
        """
        known = self._saved_step == step
        try:
            path = self._save(state, step, best=best)
        except SaveError as error:
            if self.config.checkpoint.on_error == "stop":
                raise
            self._unsaved = error
            warnings.warn(f"{error}. Training goes on; the next checkpoint tries again.", stacklevel=2)
            return None
        self._unsaved = None
        self._retain(newest_is_verified=not known)
        return path

    def require_saved(self) -> None:
        """The last checkpoint of a run must not be missing."""
        if self._unsaved is not None:
            raise self._unsaved

    def finish(self, status: Status, reason: str | None = None) -> None:
        """Write how the run ended and give up the lock."""
        self.metadata.update(status=status, stop_reason=reason, ended_at_utc=_now(), **self.on_save())
        try:
            self._write_metadata()
        finally:
            self.close()

    def fail(self, error: BaseException) -> None:
        """Mark the run failed and keep the traceback beside it."""
        text = "".join(traceback.format_exception(error))
        try:
            self.finish("failed", f"{type(error).__name__}: {error}")
            (self.dir / "traceback.txt").write_text(text, encoding="utf-8")
        except (OSError, SaveError):
            pass  # a full disk, say: the error that brought us here matters more

    def how_to_go_on(self) -> str:
        """What is left of a run that broke off, for whoever reads its error."""
        if self.latest_checkpoint is None:
            return f"the run {self.dir} had not saved a checkpoint yet"
        saved = f"saved last: {self.latest_checkpoint.name}"
        return f"the run can go on ({saved}): axiomrl resume --checkpoint {shlex.quote(str(self.dir))}"

    @property
    def surroundings(self) -> dict[str, Any]:
        """What decides whether a resume computes the same bits; saved with every checkpoint."""
        return {**self._surroundings, **self.computed_by()}

    def close(self) -> None:
        """Give up the lock."""
        self._lock.release()

    def _save(self, state: Mapping[str, Any], step: int, *, best: bool) -> Path:
        path, outcome = checkpoint_path(self.dir, step), self._outcome()
        if self._saved_step != step:
            self._sync_reports()
            write_checkpoint(
                path,
                state,
                config=self.config,
                spec=self.spec,
                step=step,
                written_by=self.surroundings,
                outcome=outcome,
                previous=self.latest_checkpoint,
            )
            self._saved_step = step
        relative = str(path.relative_to(self.dir))
        self.metadata["latest_checkpoint"] = relative
        if best:
            self.metadata["best_checkpoint"] = relative
        self.metadata.update(self.on_save())
        if self._grade is not None:  # updates may have turned out not to be computed as before
            self.metadata["resumes"][-1].update(zip(("grade", "reason"), self._grade(), strict=True))
        self._write_metadata()
        return path

    def _sync_reports(self) -> None:
        """What was reported before a checkpoint must not be lost where the checkpoint is not."""
        for name in (METRICS, EVALUATIONS):
            try:
                fsync_file(self.dir / name)
            except OSError as error:
                raise SaveError(f"{self.dir / name}: cannot be saved: {explained(error)}") from error

    def _outcome(self) -> dict[str, Any] | None:
        ended = self.outcome()
        return None if ended is None else {"status": ended[0], "stop_reason": ended[1]}

    def _write_metadata(self) -> None:
        try:
            write_metadata(self.dir, self.metadata)
        except OSError as error:
            raise SaveError(f"{self.dir / METADATA}: cannot be written: {explained(error)}") from error

    def _write_config(self) -> None:
        try:
            replace_atomically(self.dir / CONFIG, yaml.dump(to_dict(self.config)).encode())
        except OSError as error:
            raise SaveError(f"{self.dir / CONFIG}: cannot be written: {explained(error)}") from error

    def _pointed(self, key: str) -> Path | None:
        relative = self.metadata.get(key)
        return self.dir / relative if isinstance(relative, str) else None

    def _retain(self, *, newest_is_verified: bool) -> None:
        """Drop checkpoints that are not among the newest, the best or one in every `keep_every` steps.

        Those that are visibly damaged do not count, and nothing is dropped unless the newest is whole.
        """
        settings = self.config.checkpoint
        steps = sorted(s for s in checkpoint_steps(self.dir) if looks_whole(checkpoint_path(self.dir, s)))
        kept = {*steps[-settings.keep_last :], *_one_in_every(steps, settings.keep_every)}
        pointed = {self.best_checkpoint, self.latest_checkpoint}
        doomed = [
            path for s in steps if s not in kept and (path := checkpoint_path(self.dir, s)) not in pointed
        ]
        if not doomed:
            return
        try:
            if not newest_is_verified:
                verify_checkpoint(checkpoint_path(self.dir, steps[-1]))
            for path in doomed:
                _remove(path)
        except (OSError, CheckpointError) as error:
            warnings.warn(f"{self.dir}: old checkpoints stay: {error}", stacklevel=2)


def _one_in_every(steps: Sequence[int], every: int) -> set[int]:
    """The first step at or after each multiple of `every`."""
    first: dict[int, int] = {}
    for step in steps if every else ():
        first.setdefault(step // every, step)
    first.pop(0, None)  # before the first multiple there is nothing to keep
    return set(first.values())


def _metadata_of(run_dir: Path, config: TrainConfig, checkpoint: Path) -> dict[str, Any]:
    """A run's metadata; if they are lost, new ones with what its checkpoints still tell."""
    try:
        return read_metadata(run_dir)
    except CheckpointError as error:
        warnings.warn(f"{error}. The run goes on with new metadata.", stacklevel=4)
    if (run_dir / METADATA).exists():
        os.replace(run_dir / METADATA, run_dir / f"{METADATA}.damaged")
    metadata = describe_run(command=raw_command(), tags=config.tags, preset=None)
    callbacks = json.loads((checkpoint / STATE).read_bytes()).get("callbacks", {})
    best = callbacks.get("EvaluationCallback", {}).get("best_step")
    if isinstance(best, int) and looks_whole(path := checkpoint_path(run_dir, best)):
        metadata["best_checkpoint"] = str(path.relative_to(run_dir))
    return metadata


def _remove(checkpoint: Path) -> None:
    """Delete a checkpoint under another name first, so that a reader never meets half of one."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.doomed")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(checkpoint, doomed)
    fsync_dir(checkpoint.parent)
    shutil.rmtree(doomed, ignore_errors=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
