"""Run directories: created exclusively, named so that a person can read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rl_training.errors import CheckpointError, ConfigError, nearest
from rl_training.experiment.files import fsync_dir, make_dirs

CONFIG, METADATA, METRICS, EVALUATIONS, CHECKPOINTS = (
    "config.yaml", "metadata.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints",
)  # fmt: skip


_MAX_NAME = 80  # file systems take 255 bytes for the whole


class Named(Protocol):
    """The part of a config that names a run."""

    @property
    def algo(self) -> str: ...
    @property
    def env_id(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def output_dir(self) -> str: ...


def output_folder(output_dir: str | Path) -> Path:
    """The folder that `output_dir` means; `~` is the user's home."""
    return Path(output_dir).expanduser()


def make_run_dir(cfg: Named) -> Path:
    """Create `<algo>__<env>__seed<seed>__<UTC time>`; runs of the same second get a number each."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    base = f"{_safe(cfg.algo)}__{_safe(cfg.env_id)}__seed{cfg.seed}__{stamp}"
    parent = output_folder(cfg.output_dir)
    try:
        make_dirs(parent)
        for attempt in range(1, 10_000):
            path = parent / (base if attempt == 1 else f"{base}-{attempt}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            (path / CHECKPOINTS).mkdir()
            fsync_dir(path)
            fsync_dir(parent)
            return path
    except OSError as error:
        raise ConfigError(f"output_dir: cannot create a run in {parent}: {error.strerror}") from None
    raise CheckpointError(f"{parent}: no free name for {base}")


def is_run_dir(path: Path) -> bool:
    """Does this directory hold a run of ours? One of its parts may be missing."""
    parts = ((path / METADATA).is_file(), (path / CONFIG).is_file(), (path / CHECKPOINTS).is_dir())
    return sum(parts) >= 2


def is_checkpoint_dir(path: Path) -> bool:
    """Does this directory hold a checkpoint of ours?"""
    return (path / "manifest.json").is_file()


def checkpoint_steps(run_dir: Path) -> list[int]:
    """Steps for which the run has a published checkpoint."""
    names = [p.name.removeprefix("step_") for p in (run_dir / CHECKPOINTS).glob("step_*")]
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where the run keeps the checkpoint of a step."""
    return run_dir / CHECKPOINTS / f"step_{step}"


def replaced_name(checkpoint: Path) -> Path:
    """Where a checkpoint lies for the moment in which another one takes its name."""
    return checkpoint.with_name(f".{checkpoint.name}.old")


def run_of(checkpoint: Path) -> Path | None:
    """The run directory a checkpoint lies in, or None when it has been copied elsewhere."""
    run_dir = checkpoint.parent.parent
    return run_dir if checkpoint.parent.name == CHECKPOINTS and is_run_dir(run_dir) else None


def missing_path_message(path: Path) -> str:
    """Why a path is neither a run nor a checkpoint, and what may have been meant."""
    if path.exists():
        return f"{path}: neither a run directory (no {METADATA}) nor a checkpoint (no manifest.json)"
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    return f"{path}: no such run or checkpoint" + (f"; did you mean {path.parent / near}?" if near else "")


def _safe(name: str) -> str:
    """A name without anything that a file system or a shell could take for something else."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_MAX_NAME] or "unnamed"
