"""Where and how torch computes: device, threads, determinism."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rl_training.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that is really there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise ConfigError(f"device: unknown device {name!r}; choose auto, cpu, cuda or cuda:N")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index or 0) >= count:
            raise ConfigError(f"device: {name!r} is not available: this machine has {count} CUDA devices")
    return torch.device(name)


def available_threads() -> int:
    """How many threads this process may run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_settings(device: torch.device, *, threads: int, deterministic: bool | str) -> Iterator[None]:
    """Use this many threads and, if asked for, deterministic kernels only; put everything back afterwards."""
    exact = device.type == "cpu" if deterministic == "auto" else bool(deterministic)
    before_threads = torch.get_num_threads()
    before_exact = torch.are_deterministic_algorithms_enabled()
    if exact and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)
    try:
        yield
    finally:
        torch.set_num_threads(before_threads)
        torch.use_deterministic_algorithms(before_exact)
