"""Room is predicted before it is taken: a refusal with a number beats a killed process."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from rl_training.errors import ConfigError


def require_memory(key: str, needed: int, device: torch.device | str = "cpu") -> None:
    """Refuse what would not fit into the memory that is free, naming the key to change."""
    available = available_memory(torch.device(device))
    if available is not None and needed > available:
        where = "memory" if torch.device(device).type == "cpu" else f"memory on {device}"
        raise ConfigError(f"{key}: needs {_gib(needed)} of {where}, {_gib(available)} are free; {_ADVICE}")


def require_disk(key: str, needed: int, folder: Path) -> None:
    """Refuse what would not fit onto the disk that a folder is on, or will be made on."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ConfigError(
            f"{key}: needs {_gib(needed)} of disk space in {folder}, {_gib(free)} are free; {_ADVICE}"
        )


def available_memory(device: torch.device = torch.device("cpu")) -> int | None:  # noqa: B008 - a constant
    """Bytes that can be allocated without swapping, where the system tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def readable(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB" if size < 1000 else f"{size:,.0f} GB"


_ADVICE = "choose a smaller one, or another hyperparams.buffer_storage (device, memory or disk)"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
