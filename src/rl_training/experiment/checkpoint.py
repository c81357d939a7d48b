"""Checkpoints: safetensors and JSON behind a manifest of hashes, published by one rename. No code inside.

step_<n>/
  manifest.json          format version, step, sha256 and size of every other file, and its own hash
  state.json             counters and everything else that is not a tensor, by component
  config.yaml spec.json  what is needed to rebuild the agent anywhere
  <component>.safetensors
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file as map_tensors
from safetensors.torch import save as save_tensors

from rl_training.errors import CheckpointError, SaveError
from rl_training.experiment import state as trees
from rl_training.experiment import yaml
from rl_training.experiment.config import TrainConfig, to_dict
from rl_training.experiment.files import (
    explained,
    fsync_dir,
    link_or_copy,
    make_dirs,
    to_json,
    write_durably,
)
from rl_training.experiment.layers import Layer, resolve_layers
from rl_training.experiment.manifest import (
    CONFIG,
    MANIFEST,
    SPEC,
    STATE,
    TENSORS,
    component_of,
    describe,
    looks_whole,
    read_files,
    read_manifest,
    render_manifest,
    segments_of,
    verify_checkpoint,
    verify_file,
)
from rl_training.experiment.migrations import Raw, migrate
from rl_training.experiment.runs import replaced_name
from rl_training.experiment.spaces import spec_from_json, spec_to_json
from rl_training.types import Segment, Spec

SAVES_TO_VERIFY = 16
"""Within so many saves every segment that is linked again and again has been read."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that has been read and verified."""

    path: Path
    step: int
    config: TrainConfig
    spec: Spec
    state: dict[str, Any]
    written_by: Mapping[str, Any] = field(default_factory=dict)
    """Versions and hardware of the process that wrote it."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """How the run ended, if this is its last checkpoint: `status` and `stop_reason`."""


def write_checkpoint(
    path: Path,
    state: Mapping[str, Any],
    *,
    config: TrainConfig,
    spec: Spec,
    step: int,
    written_by: Mapping[str, Any] | None = None,
    outcome: Mapping[str, Any] | None = None,
    previous: Path | None = None,
) -> Path:
    """Write a checkpoint aside, sync and verify it, and publish it under `path` by one rename.

    Segments that have not changed since the checkpoint `previous` are linked from it, not written again.
    A few of these are read at each save: one that a disk has damaged is written anew.
    """
    _require_free(path)
    files: dict[str, bytes] = {}
    halves: dict[str, Any] = {}
    segments: dict[str, tuple[str, Segment]] = {}
    for component, tree in state.items():
        parts = trees.split(tree)
        halves[component] = parts.half
        if parts.tensors:
            files[f"{component}{TENSORS}"] = save_tensors(parts.tensors)
        for place, segment in parts.segments.items():
            segments[f"{component}.{place.replace('/', '-')}{TENSORS}"] = (place, segment)
    files[STATE] = json.dumps(halves).encode()
    files[CONFIG] = yaml.dump(to_dict(config)).encode()
    files[SPEC] = to_json(spec_to_json(spec), indent=2).encode()
    try:
        with _aside(path) as aside:
            reused = _reusable(previous, segments, step)
            entries = {name: describe(data) for name, data in files.items()}
            entries |= _write_segments(aside, segments, previous, reused, step)
            for name, data in files.items():
                write_durably(aside / name, data)
            # The manifest comes last, and the name of the checkpoint after everything it stands for.
            write_durably(
                aside / MANIFEST, render_manifest(entries, step, written_by=written_by, outcome=outcome)
            )
            fsync_dir(aside)
            _verify_written(aside, path, reused)
            _publish(aside, path)
    except OSError as error:
        raise SaveError(f"{path}: cannot be saved: {explained(error)}") from error
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; any damage is an error that names the file."""
    manifest = read_manifest(path)
    # Segments are mapped, not read: a replay buffer on disk may be larger than memory.
    segments = segments_of(manifest)
    files = read_files(path, manifest, left_out=segments)
    document = yaml.load_text(files[CONFIG].decode("utf-8", "replace"), str(path / CONFIG))
    try:
        raw = Raw(
            state=json.loads(files[STATE]),
            tensors=_tensors_by_component(path, files, segments),
            config=document.data,
            spec=json.loads(files[SPEC]),
        )
        raw = migrate(raw, manifest["format_version"])
        state = {name: trees.join(half, raw.tensors.get(name, {})) for name, half in raw.state.items()}
        spec = spec_from_json(raw.spec)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
            MemoryError, SafetensorError, CheckpointError) as error:  # fmt: skip
        raise CheckpointError(f"{path}: cannot be understood: {error}") from None
    config = resolve_layers([Layer(document.source, raw.config, document.lines)]).config
    about = [
        value if isinstance(value := manifest.get(key), dict) else {} for key in ("written_by", "outcome")
    ]
    return Checkpoint(path, manifest["step"], config, spec, state, *about)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A directory beside `path` to write into; gone afterwards unless it has been published."""
    make_dirs(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _reusable(
    previous: Path | None, segments: Mapping[str, tuple[str, Segment]], step: int
) -> dict[str, Any]:
    """The manifest entries of those segments that the previous checkpoint holds, sound, in the same version.

    Those that were read longest ago, by the step in their entry, are read now.
    """
    if previous is None or not segments or not looks_whole(previous):
        return {}
    entries = read_manifest(previous)["files"]
    reused = {
        name: dict(entries[name])
        for name, (_, segment) in segments.items()
        if name in entries and entries[name].get("version") == segment.version
    }
    by_age = sorted(reused, key=lambda name: int(reused[name].get("verified", 0)))
    for name in by_age[: -(-len(reused) // SAVES_TO_VERIFY)]:
        try:
            verify_file(previous / name, reused[name], from_disk=True)
        except CheckpointError as error:
            warnings.warn(f"{error}. It is written anew; look after that disk.", stacklevel=3)
            del reused[name]
        else:
            reused[name]["verified"] = step
    return reused


def _write_segments(
    aside: Path,
    segments: Mapping[str, tuple[str, Segment]],
    previous: Path | None,
    reused: Mapping[str, Any],
    step: int,
) -> dict[str, Any]:
    """Link or write every segment, one at a time; answers their manifest entries."""
    entries: dict[str, Any] = {}
    for name, (place, segment) in segments.items():
        if name in reused and previous is not None:
            link_or_copy(previous / name, aside / name)
            entries[name] = reused[name]
        else:
            data = save_tensors(trees.segment_tensors(place, segment))
            write_durably(aside / name, data)
            entries[name] = describe(data, version=segment.version, verified=step)
    return entries


def _tensors_by_component(
    path: Path, files: Mapping[str, bytes], segments: Collection[str]
) -> dict[str, dict[str, Any]]:
    tensors: dict[str, dict[str, Any]] = {}
    for name, data in files.items():
        if name.endswith(TENSORS):
            tensors.setdefault(component_of(name), {}).update(load_tensors(data))
    for name in segments:
        tensors.setdefault(component_of(name), {}).update(map_tensors(path / name))
    return tensors


def _verify_written(aside: Path, path: Path, known: Collection[str]) -> None:
    """Read back what was written: better to learn now that a disk forgets."""
    try:
        verify_checkpoint(aside, known)
    except CheckpointError as error:
        raise SaveError(f"{path}: cannot be saved: what was written does not read back: {error}") from None


def _publish(aside: Path, path: Path) -> None:
    """Give the finished directory its name; a checkpoint that has it already makes way first.

    Should the process die in between, `find_checkpoint` knows the one that made way by `replaced_name`.
    """
    old = replaced_name(path)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    try:
        os.rename(aside, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
    fsync_dir(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _require_free(path: Path) -> None:
    """Only a checkpoint may be replaced: a directory with anything else in it is somebody's data."""
    is_empty_dir = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    if os.path.lexists(path) and not is_empty_dir and not (path / MANIFEST).is_file():
        raise CheckpointError(f"{path}: exists and is not a checkpoint; choose another name")
