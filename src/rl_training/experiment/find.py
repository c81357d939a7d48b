"""Which checkpoint is meant by a path, and which one to take when that one is damaged. Needs no torch."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manifest import verify_checkpoint
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.runs import (
    METADATA,
    checkpoint_path,
    checkpoint_steps,
    is_checkpoint_dir,
    is_run_dir,
    missing_path_message,
    replaced_name,
)

Which = Literal["best", "latest"]


def find_checkpoint(path: str | PathLike[str], which: Which = "best") -> Path:
    """The checkpoint meant by a run directory or checkpoint path."""
    if which not in get_args(Which):
        raise ConfigError(f"which: expected 'best' or 'latest', got {which!r}")
    path = Path(path)
    if is_checkpoint_dir(path):
        return path
    if not path.exists() and is_checkpoint_dir(old := replaced_name(path)):
        warnings.warn(
            f"{path}: a process died while it was being replaced. Using the one it was to replace, {old}.",
            stacklevel=2,
        )
        return old
    if not is_run_dir(path):
        raise CheckpointError(missing_path_message(path))
    return _newest_valid(path, which)


def _newest_valid(run_dir: Path, which: Which, attempts: int = 20) -> Path:
    """The checkpoint a run points to, or else, with a warning, the newest one that is whole.

    A run that is being trained may drop a checkpoint that it no longer points to: then it is asked again.
    """
    damage: list[str] = []
    pointed: list[Path] = []
    try:
        pointed = _pointed(run_dir, which)
    except CheckpointError as error:
        damage.append(str(error))
    newest = [checkpoint_path(run_dir, step) for step in sorted(checkpoint_steps(run_dir), reverse=True)]
    for candidate in dict.fromkeys([*pointed, *newest]):
        try:
            _require_inside(run_dir, candidate)
            verify_checkpoint(candidate)
        except CheckpointError as error:
            if attempts and candidate in pointed and _has_moved_on(run_dir, which, pointed):
                return _newest_valid(run_dir, which, attempts - 1)
            damage.append(str(error))
            continue
        if damage:
            warnings.warn(f"{'; '.join(damage)}. Using {candidate} instead.", stacklevel=4)
        elif which == "latest" and candidate != newest[0]:
            warnings.warn(
                f"{newest[0]}: newer than what the run points to, {candidate}, which is used: the process "
                f"that wrote it died before it could say so, or {METADATA} was changed",
                stacklevel=4,
            )
        return candidate
    raise CheckpointError("\n".join(damage) or f"{run_dir}: this run has not saved a checkpoint yet")


def _pointed(run_dir: Path, which: Which) -> list[Path]:
    """What the metadata points to; metadata that are missing or damaged are an error."""
    metadata = read_metadata(run_dir)
    keys = ["best_checkpoint", "latest_checkpoint"] if which == "best" else ["latest_checkpoint"]
    return [run_dir / str(metadata[key]) for key in keys if metadata.get(key)]


def _has_moved_on(run_dir: Path, which: Which, pointed: list[Path]) -> bool:
    try:
        return _pointed(run_dir, which) != pointed
    except CheckpointError:
        return False


def _require_inside(run_dir: Path, checkpoint: Path) -> None:
    """Names from files never lead outside the run directory."""
    try:
        inside = checkpoint.resolve().is_relative_to(run_dir.resolve())
    except (OSError, ValueError, RuntimeError):  # a null byte, a loop of links
        inside = False
    if not inside:
        raise CheckpointError(f"{run_dir / METADATA}: names a checkpoint outside the run: {checkpoint}")
