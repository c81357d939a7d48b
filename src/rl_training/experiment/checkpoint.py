"""Checkpoints: safetensors and JSON behind a manifest of hashes, published by one rename. No code inside.

step_<n>/
  manifest.json          format version, step, sha256 and size of every other file, and its own hash
  state.json             counters and everything else that is not a tensor, by component
  config.yaml spec.json  what is needed to rebuild the agent anywhere
  <component>.safetensors
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from rl_training.errors import CheckpointError
from rl_training.experiment import state as trees
from rl_training.experiment import yaml
from rl_training.experiment.config import Layer, TrainConfig, resolve_layers, to_dict
from rl_training.experiment.files import fsync_dir, to_json, write_durably
from rl_training.experiment.spaces import spec_from_json, spec_to_json
from rl_training.types import Spec

FORMAT_VERSION = 1
_MAX_MANIFEST = 1 << 20
MANIFEST, STATE, CONFIG, SPEC = "manifest.json", "state.json", "config.yaml", "spec.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that has been read and verified."""

    path: Path
    step: int
    config: TrainConfig
    spec: Spec
    state: dict[str, Any]


def write_checkpoint(
    path: Path, state: Mapping[str, Any], *, config: TrainConfig, spec: Spec, step: int
) -> Path:
    """Write a checkpoint aside, sync and verify it, and publish it under `path` by one rename."""
    _require_free(path)
    files: dict[str, bytes] = {}
    halves: dict[str, Any] = {}
    for component, tree in state.items():
        halves[component], tensors = trees.split(tree)
        if tensors:
            files[f"{component}.safetensors"] = save_tensors(tensors)
    files[STATE] = json.dumps(halves).encode()
    files[CONFIG] = yaml.dump(to_dict(config)).encode()
    files[SPEC] = to_json(spec_to_json(spec), indent=2).encode()
    files[MANIFEST] = _manifest(files, step)

    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for name, data in files.items():  # the manifest comes last
            write_durably(aside / name, data)
        fsync_dir(aside)
        verify_checkpoint(aside)
        _publish(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; any damage is an error that names the file."""
    manifest = read_manifest(path)
    files = {name: _verified(path, name, entry) for name, entry in manifest["files"].items()}
    missing = {STATE, CONFIG, SPEC} - set(files)
    if missing:
        raise CheckpointError(f"{path / MANIFEST}: lists no {', '.join(sorted(missing))}")
    try:
        halves = json.loads(files[STATE])
        tensors = {
            name.removesuffix(".safetensors"): load_tensors(data)
            for name, data in files.items()
            if name.endswith(".safetensors")
        }
        state = {name: trees.join(half, tensors.get(name, {})) for name, half in halves.items()}
        spec = spec_from_json(json.loads(files[SPEC]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError,
            CheckpointError) as error:  # fmt: skip
        raise CheckpointError(f"{path}: cannot be understood: {error}") from None
    document = yaml.load_text(files[CONFIG].decode("utf-8", "replace"), str(path / CONFIG))
    config = resolve_layers([Layer(document.source, document.data, document.lines)]).config
    return Checkpoint(path, manifest["step"], config, spec, state)


def verify_checkpoint(path: Path) -> None:
    """Read every file of a checkpoint and compare it with the manifest."""
    for name, entry in read_manifest(path)["files"].items():
        _verified(path, name, entry)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, verified against its own hash."""
    file = path / MANIFEST
    try:
        if file.is_symlink() or file.stat().st_size > _MAX_MANIFEST:
            raise CheckpointError(f"{file}: refused: a symbolic link, or too large for a manifest")
        data = file.read_bytes()
        manifest = json.loads(data)
        manifest.pop("sha256")
        rendered = _rendered(manifest)
        version = manifest["format_version"]
    except FileNotFoundError:
        raise CheckpointError(f"{file}: not there; {path} is not a checkpoint") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged: {error!r}") from None
    if data != rendered:  # every byte counts, the hash among them
        raise CheckpointError(f"{file}: damaged: its contents do not match its hash")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{file}: format version {version}, this release reads {FORMAT_VERSION}")
    step, files = manifest.get("step"), manifest.get("files")
    if not isinstance(step, int) or not isinstance(files, dict):
        raise CheckpointError(f"{file}: names no step or no files")
    if bad := [name for name in files if not _is_plain(name)]:
        raise CheckpointError(f"{file}: refuses file name {bad[0]!r}")
    return dict(manifest)


def _is_plain(name: str) -> bool:
    """A file name that cannot lead anywhere else."""
    return name.isprintable() and Path(name).name == name != "" and not name.startswith(".")


def _manifest(files: Mapping[str, bytes], step: int) -> bytes:
    entries = {name: {"sha256": _digest(data), "bytes": len(data)} for name, data in files.items()}
    return _rendered({"format_version": FORMAT_VERSION, "step": step, "files": entries})


def _rendered(manifest: Mapping[str, Any]) -> bytes:
    """The one way to write a manifest: with its own hash at the end."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**manifest, "sha256": _digest(canonical)}, indent=2).encode()


def _verified(path: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """A file's content, if it is what the manifest says. The size is looked at before memory is taken."""
    file = path / name
    try:
        if file.is_symlink():
            raise CheckpointError(f"{file}: is a symbolic link; refused")
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"{file}: damaged: {size} bytes, the manifest says {entry['bytes']}")
        data = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    except (LookupError, TypeError):
        raise CheckpointError(f"{path / MANIFEST}: damaged entry for {name}") from None
    if _digest(data) != entry.get("sha256"):
        raise CheckpointError(f"{file}: damaged: its contents do not match the manifest's hash")
    return data


def _publish(aside: Path, path: Path) -> None:
    """Give the finished directory its name; a checkpoint that has it already makes way first."""
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
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


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
