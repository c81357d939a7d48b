"""Run directories: created exclusively, named so that a person can read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rl_training.errors import CheckpointError, ConfigError, nearest

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


def make_run_dir(cfg: Named) -> Path:
    """Create `<algo>__<env>__seed<seed>__<UTC time>`; runs of the same second get a number each."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    base = f"{_safe(cfg.algo)}__{_safe(cfg.env_id)}__seed{cfg.seed}__{stamp}"
    parent = Path(cfg.output_dir).expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 10_000):
            path = parent / (base if attempt == 1 else f"{base}-{attempt}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            (path / CHECKPOINTS).mkdir()
            return path
    except OSError as error:
        raise ConfigError(f"output_dir: cannot create a run in {parent}: {error.strerror}") from None
    raise CheckpointError(f"{parent}: no free name for {base}")


def is_run_dir(path: Path) -> bool:
    """Does this directory hold a run of ours?"""
    return (path / METADATA).is_file() and (path / CONFIG).is_file()


def is_checkpoint_dir(path: Path) -> bool:
    """Does this directory hold a checkpoint of ours?"""
    return (path / "manifest.json").is_file()


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
