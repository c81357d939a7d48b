"""Finding runs below directories, and an index that makes the second look at many of them fast.

The index is a cache and nothing else: it lives in the user's cache directory (never among the runs, which
may be read-only or shared), one file a scanned directory, replaced in one step. An entry counts only while
size and modification time are what they were: of each of the run's files, of the evaluation beside it and of
the manifest above it. Whatever is wrong with it, the runs are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training import __version__
from rl_training.errors import CheckpointError
from rl_training.experiment.files import replace_atomically
from rl_training.experiment.runs import (
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METADATA,
    METRICS,
    missing_path_message,
)
from rl_training.garbage import collector_off
from rl_training.zoo.asked import Manifests, manifest_of
from rl_training.zoo.configs import Config, ConfigReader
from rl_training.zoo.evaluations import EVALUATION
from rl_training.zoo.summaries import FIELDS, RunSummary, summarize

FORMAT = 2
WORTH_INDEXING = 200  # fewer runs are read faster than anybody notices
SETTLED_NS = 2_000_000_000  # a file changed less long ago may change again within its clock's tick
FILES = (CONFIG, METADATA, METRICS, EVALUATIONS)
PARTS = frozenset((*FILES, CHECKPOINTS))
NEVER_RUNS = frozenset((*FILES, CHECKPOINTS, "tensorboard", "wandb", "videos"))
"""What lies in a run and is none itself."""
Signature = list[int]


@dataclass(slots=True)
class Scan:
    """The runs that were found, and what else was met: directories without a run in them, with the reason."""

    runs: list[RunSummary] = field(default_factory=list)
    foreign: list[tuple[str, str]] = field(default_factory=list)
    indexed: int = 0

    @property
    def damaged(self) -> list[RunSummary]:
        """Runs of which something could not be read."""
        return [run for run in self.runs if run.problems]


@dataclass(frozen=True, slots=True)
class Found:
    """A run directory: as it was reached, where it really is, its files and their signature."""

    path: str
    real: str
    names: frozenset[str]
    signature: Signature


def scan(paths: Sequence[str | Path], *, use_index: bool = True) -> Scan:
    """All runs at or below the paths, each once. Only a path that does not exist is an error."""
    result, seen = Scan(), set[str]()
    with collector_off():
        for path in paths:
            root = os.fspath(path)
            if not os.path.isdir(root):
                raise CheckpointError(missing_path_message(Path(root)))
            found, foreign = find_runs(root)
            result.foreign += foreign
            new = list({run.real: run for run in reversed(found) if run.real not in seen}.values())[::-1]
            seen.update(run.real for run in new)
            runs, hits = _read(root, new, use_index)
            result.runs += runs
            result.indexed += hits
    return result


def find_runs(root: str) -> tuple[list[Found], list[tuple[str, str]]]:
    """Run directories at any depth, and the highest directories that hold none, by name."""
    found: list[Found] = []
    foreign: list[tuple[str, str]] = []
    _walk(root, os.path.realpath(root), found, foreign, set())
    around = _Surroundings()
    return [
        Found(run.path, run.real, run.names, run.signature + around.signature(run.real)) for run in found
    ], foreign


class _Surroundings:
    """Modification time and size of what a run is judged by outside of it, each file looked at once."""

    def __init__(self) -> None:
        self._of_file: dict[str, Signature] = {}
        self._of_folder: dict[str, Signature] = {}

    def signature(self, real: str) -> Signature:
        """Of the evaluation beside a run and the manifest above it."""
        folder = os.path.dirname(real)
        known = self._of_folder.get(folder)
        if known is None:
            known = self._file(os.path.join(folder, EVALUATION)) + self._file(manifest_of(real))
            self._of_folder[folder] = known
        return known

    def _file(self, path: str) -> Signature:
        if path not in self._of_file:
            try:
                status = os.stat(path)
                self._of_file[path] = [status.st_mtime_ns, status.st_size]
            except OSError:
                self._of_file[path] = [0, 0]
        return self._of_file[path]


def _walk(
    path: str, real: str, found: list[Found], foreign: list[tuple[str, str]], links: set[str], depth: int = 0
) -> bool:
    """Visit a directory; is there a run in it or below?"""
    try:
        with os.scandir(path) as listed:
            entries = {entry.name: entry for entry in listed}
    except OSError as error:
        foreign.append((path, f"cannot be read: {error.strerror}"))
        return False
    names = PARTS.intersection(entries)
    own = len(names) >= 2
    if own:
        found.append(Found(path, real, names, _signature(entries)))
    below: list[tuple[str, str]] = []
    nested = False
    for name in sorted(entries.keys() - NEVER_RUNS if own else entries):
        entry = entries[name]
        if name.startswith(".") or not _is_dir(entry):
            continue
        inside = os.path.join(real, name)
        if entry.is_symlink():
            inside = os.path.realpath(entry.path)
            if inside in links or f"{real}/".startswith(f"{inside}/"):
                continue
            links.add(inside)
        if depth < 64:
            nested |= _walk(entry.path, inside, found, below, links, depth + 1)
    if own or nested:
        foreign += [] if own else below  # subfolders of a run are its own business
        return True
    reasons = [pair for pair in below if pair[1].startswith("cannot")]
    only = f"has {next(iter(names))} but nothing else of a run" if names else "no run in it"
    foreign += [*reasons, (path, only)]
    return False


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _signature(entries: Mapping[str, os.DirEntry[str]]) -> Signature:
    """Modification time and size of each of a run's files; zeros for one that is not there."""
    signature: Signature = []
    for name in FILES:
        try:
            status = entries[name].stat()
            signature += (status.st_mtime_ns, status.st_size)
        except (KeyError, OSError):
            signature += (0, 0)
    return signature


def _read(root: str, found: Sequence[Found], use_index: bool) -> tuple[list[RunSummary], int]:
    """The runs, from the index where it still holds; how many of them came from there."""
    use_index = use_index and len(found) >= WORTH_INDEXING
    index = Index.load(root) if use_index else Index(root)
    reader, manifests, now, hits = ConfigReader(), Manifests(), time.time_ns(), 0
    runs: list[RunSummary] = []
    for run in found:
        summary = index.get(run)
        if summary is None:
            summary = summarize(run.path, run.real, run.names, reader)
            summary = manifests.judge(summary, run.real)
        else:
            hits += 1
        runs.append(summary)
    if use_index and (hits < len(found) or len(index.entries) != len(found)):
        fresh = Index(root)
        for run, summary in zip(found, runs, strict=True):
            if max(run.signature[::2]) < now - SETTLED_NS:
                fresh.put(run, summary)
        fresh.save()
    return runs, hits


class Index:
    """Summaries by the real path of their run, valid while the run's files are unchanged."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.entries: dict[str, list[Any]] = {}
        self.configs: list[Config] = []
        self._positions: dict[int, int] = {}

    @classmethod
    def load(cls, root: str) -> Index:
        """The index of a directory; an empty one where there is none that can be used."""
        index = cls(root)
        try:
            with open(index.path, "rb") as file:
                data = json.loads(file.read())
            if (data["format"], data["version"], data["root"]) == (FORMAT, __version__, index.root):
                index.entries, index.configs = dict(data["runs"]), list(data["configs"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return index

    @property
    def path(self) -> Path:
        """Where it is kept."""
        name = hashlib.sha256(self.root.encode("utf-8", "replace")).hexdigest()[:24]
        return cache_dir() / "index" / f"{name}.json"

    def get(self, run: Found) -> RunSummary | None:
        """What is known of a run, if it is still true."""
        entry = self.entries.get(run.real)
        try:
            if entry is None or entry[0] != run.signature:
                return None
            if len(entry[2]) != len(FIELDS):
                return None
            values: list[Any] = [run.path, *entry[2], self.configs[entry[1]]]
            return RunSummary(*values)
        except (TypeError, ValueError, LookupError):
            return None

    def put(self, run: Found, summary: RunSummary) -> None:
        """Keep a summary."""
        position = self._positions.get(id(summary.config))
        if position is None:
            position = self._positions[id(summary.config)] = len(self.configs)
            self.configs.append(summary.config)
        values = [getattr(summary, name) for name in FIELDS]
        self.entries[run.real] = [run.signature, position, values]

    def save(self) -> None:
        """Write it for next time; a place that cannot be written costs only the time it would have saved."""
        data: Mapping[str, Any] = {
            "format": FORMAT, "version": __version__, "root": self.root, "configs": self.configs,
            "runs": self.entries,
        }  # fmt: skip
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_atomically(self.path, json.dumps(data, separators=(",", ":")).encode("utf-8", "replace"))
        except (OSError, ValueError):
            pass


def cache_dir() -> Path:
    """The user's cache directory for this package."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "axiomrl"
