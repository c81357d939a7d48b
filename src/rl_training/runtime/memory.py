"""Memory is predicted before it is taken: a refusal with a number beats a killed process."""

from __future__ import annotations

from rl_training.errors import ConfigError


def require_memory(key: str, needed: int) -> None:
    """Refuse what would not fit into the memory that is free, naming the key to change."""
    available = available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"{key}: needs {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are free; "
            "choose a smaller one"
        )


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, where the system tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
