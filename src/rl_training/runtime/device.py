"""Where and how torch computes: device, threads, determinism."""

from __future__ import annotations

import ctypes
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rl_training.errors import ConfigError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # what mallopt calls them
_LARGEST_BLOCK = 2**25
"""Bytes up to which GNU's allocator can be made to serve an array from its heap."""


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that is really there; a GPU always with its number.

    Tensors say `cuda:0` of where they are, which is not equal to `cuda`.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise ConfigError(f"device: unknown device {name!r}; choose auto, cpu, cuda or cuda:N")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index or 0) >= count:
            raise ConfigError(f"device: {name!r} is not available: this machine has {count} CUDA devices")
        return torch.device("cuda", int(index) if index else _current_gpu())
    return torch.device(name)


def _current_gpu() -> int:
    """The GPU that `cuda` means, asked without starting CUDA: processes to come must not inherit it."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


def available_threads() -> int:
    """How many threads this process may run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> dict[str, str]:
    """What Linux tells of the first processor (`vendor_id`, `model name`, …); elsewhere nothing."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def find_compiler() -> str | None:
    """The C++ compiler for what is compiled here: $CXX, if that is the name of one, or a usual one."""
    wanted = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    return next((found for name in wanted if name and (found := shutil.which(name))), None)


@contextmanager
def freed_memory_kept(up_to: int = 2**30) -> Iterator[None]:
    """Let the process keep what it frees, up to so many bytes, instead of handing it back at once.

    Every update asks for the same large arrays. GNU's allocator gives them back to the system in between,
    which clears each page before it lends it again: a sixth of the time of an update from images. Where there
    is another allocator, nothing happens.
    """
    libc = _gnu()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
    libc.mallopt(_TRIM_THRESHOLD, up_to)
    try:
        yield
    finally:
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BLOCK)  # as far as it would have gone by itself
        libc.malloc_trim(0)


def hand_back_memory() -> None:
    """Give the system what was freed, also where it is kept: something large is over that will not return."""
    libc = _gnu()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _gnu() -> ctypes.CDLL | None:
    """GNU's allocator, where it is the one."""
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def torch_settings(
    device: torch.device, *, threads: int, deterministic: bool | str, precision: str = "fp32"
) -> Iterator[None]:
    """Compute with these threads, products and (if asked for) deterministic kernels only; then put all back.

    Meanwhile freed memory stays with the process.
    """
    cores = available_threads()
    if threads > cores:
        there = f"{cores} core" if cores == 1 else f"{cores} cores"
        warnings.warn(
            f"threads: {threads} threads of torch share {there} and will wait for each other, at worst for "
            f"minutes instead of seconds; use {cores}, or 0 for one a core",
            stacklevel=3,
        )
    exact = device.type == "cpu" if deterministic == "auto" else bool(deterministic)
    filling: Any = torch.utils.deterministic
    before = (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        filling.fill_uninitialized_memory,
    )
    products = torch.get_float32_matmul_precision() if precision == "tf32" and device.type == "cuda" else None
    if exact and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    # Unlike `use_deterministic_algorithms` this does not import torch's compiler, which takes a second.
    torch.set_deterministic_debug_mode("error" if exact else "default")
    if products is not None:
        torch.set_float32_matmul_precision("high")
    if deterministic == "auto":  # kernels write all of their results: no need to write NaN there first
        filling.fill_uninitialized_memory = False
    # Streams and graphs belong to whichever GPU is the current one.
    other = device.type == "cuda" and device.index not in (None, _current_gpu())
    current = torch.cuda.device(device) if other else nullcontext()
    try:
        with freed_memory_kept(), current:
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        filling.fill_uninitialized_memory = before[2]
        if products is not None:  # else left alone: torch finds machine code by who has set it, too
            torch.set_float32_matmul_precision(products)
