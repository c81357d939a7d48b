"""metadata.json: what ran, where, with which versions, and how it ended."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_training import __version__
from rl_training.errors import CheckpointError
from rl_training.experiment.files import replace_atomically, to_json
from rl_training.experiment.runs import METADATA

SCHEMA_VERSION = 1
PRESET_DIFFERENCES = "preset_differences"
_MAX_BYTES = 16 << 20
VERSIONED = ("torch", "numpy", "gymnasium", "safetensors", "pydantic", "ale-py", "mujoco", "box2d")


def describe_run(
    *,
    command: list[str],
    tags: tuple[str, ...],
    preset: str | None,
    differences: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Everything known when a run starts; `differences` are those of its configuration from the preset."""
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "created_at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended_at_utc": None,
        "command": command,
        "preset": preset,
        PRESET_DIFFERENCES: differences,
        "tags": list(tags),
        "system": {"platform": platform.platform(), "python": platform.python_version()},
        "versions": versions(),
        "git": git_state(),
        "hardware": hardware(),
        "latest_checkpoint": None,
        "best_checkpoint": None,
        "latest_metrics": {},
        "resources": {},
        "compilation": {},
        "stop_reason": None,
        "resume_grade": None,
        "resumes": [],
    }


def versions() -> dict[str, str]:
    """Versions of this package and of what its results depend on."""
    from importlib import metadata as packages  # reports read metadata, and should start fast

    found = {"axiomrl": __version__}
    for name in VERSIONED:
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the working directory, or None without git or outside a repository. Never fails."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "is_dirty": bool(_git("status", "--porcelain"))} if commit else None
    except (OSError, subprocess.SubprocessError):
        return None


def hardware() -> dict[str, Any]:
    """Processor, memory and GPUs."""
    import torch

    from rl_training.runtime.device import processor

    facts = processor()
    model = [facts[name] for name in ("vendor_id", "cpu family", "model") if name in facts]
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "cpu_model": " ".join([*model, torch.backends.cpu.get_cpu_capability()]),
        "cores": os.cpu_count(),
        "ram_bytes": total_memory(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def surroundings() -> dict[str, Any]:
    """What decides whether the same computation gives the same bits: software and hardware."""
    machine = hardware()
    deciding = {name: machine[name] for name in ("cpu", "cpu_model", "gpus")}  # clouds call many models alike
    return {"versions": versions(), "hardware": deciding}


def total_memory() -> int | None:
    """Bytes of main memory, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def read_metadata(run_dir: Path) -> dict[str, Any]:
    """A run's metadata, or an error that names the file."""
    path = run_dir / METADATA
    if not path.is_file():
        raise CheckpointError(f"{path}: not there")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return data


def write_metadata(run_dir: Path, data: dict[str, Any]) -> None:
    """Replace a run's metadata in one step."""
    replace_atomically(run_dir / METADATA, (to_json(data, indent=2) + "\n").encode())


def raw_command() -> list[str]:
    """The command line of this process, as it was given."""
    return list(sys.argv)


def _git(*args: str) -> str:
    result = subprocess.run(
        ["git", *args], capture_output=True, text=True, errors="replace", timeout=5, check=True
    )
    return result.stdout.strip()
