"""`axiomrl doctor`: this installation and machine, in lines that can be searched. Never fails."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_training import __version__
from rl_training.cli.extras import EXTRAS, pip_install
from rl_training.cli.output import add_json, print_json, reserved_stdout
from rl_training.cli.parser import Parser

PACKAGES = ("gymnasium", "numpy", "pydantic", "pyyaml", "safetensors", "tensorboard", "rich", "matplotlib")


def add_arguments(parser: Parser) -> None:
    """Nothing but the form of the answer."""
    add_json(parser, "print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Print everything that can be found out; what fails is reported in its line."""
    with reserved_stdout(args.json):
        facts = examine()
    if args.json:
        print_json(facts)
    else:
        print("\n".join(f"{key}: {value}" for key, value in facts.items()))
    return 0


def examine() -> dict[str, str]:
    """The facts, by stable keys."""
    return {
        "axiomrl": f"{__version__} ({Path(__file__).parents[1]})",
        "python": f"{platform.python_version()} ({sys.executable})",
        "os": platform.platform(),
        **_torch(),
        **{name: _version(name) or "not installed" for name in PACKAGES},
        **{f"extra.{extra}": _extra(extra, names) for extra, names in EXTRAS.items()},
        "compiler": _attempt(_compiler),
        "git": _attempt(_git),
        "cpu_cores": _attempt(_cores),
        "ram": _attempt(_ram),
        "disk": _attempt(_disk),
    }


def _torch() -> dict[str, str]:
    try:
        import torch
    except Exception as error:  # a broken installation is what this command is for
        problem = f"import failed: {type(error).__name__}: {' '.join(str(error).split())}"
        return {"torch": problem, "cuda": "unknown", "cudnn": "unknown", "devices": "unknown"}
    return _describe(torch)


def _describe(torch: Any) -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "cuda": _attempt(lambda: torch.version.cuda or "not built in"),
        "cudnn": _attempt(lambda: str(torch.backends.cudnn.version() or "not available")),
        "devices": _attempt(lambda: _devices(torch)),
    }


def _devices(torch: Any) -> str:
    names = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return ", ".join(["cpu", *names])


def _extra(extra: str, names: tuple[str, ...]) -> str:
    versions = {name: _version(name) for name in names}
    if missing := [name for name, version in versions.items() if version is None]:
        which = "" if len(missing) == len(names) else f": {', '.join(missing)}"
        return f"not installed{which} ({pip_install(extra)})"
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except Exception:
        return None


def _compiler() -> str:
    """What torch.compile would use on the CPU."""
    candidates = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    found = next((path for name in candidates if name and (path := shutil.which(name))), None)
    return found or "not found (torch.compile on the CPU needs a C++ compiler)"


def _git() -> str:
    if shutil.which("git") is None:
        return "not found"
    result = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=5, check=True)
    return result.stdout.strip().removeprefix("git version ")


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}"


def _ram() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * page
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:  # knows that caches can be given up
            lines = dict(line.split(":", 1) for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    return f"{_gib(free)} free of {_gib(os.sysconf('SC_PHYS_PAGES') * page)}"


def _disk() -> str:
    usage = shutil.disk_usage(Path.cwd())
    return f"{_gib(usage.free)} free of {_gib(usage.total)} at {Path.cwd()}"


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"


def _attempt(find: Callable[[], str]) -> str:
    try:
        return find()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"
