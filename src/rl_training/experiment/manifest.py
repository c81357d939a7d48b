"""The manifest of a checkpoint: what files it is made of, their sizes and hashes, and its own hash.

Everything here works on bytes. It needs neither torch nor numpy, so that a checkpoint can be checked and
compared without them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.metadata import total_memory
from rl_training.experiment.migrations import FORMAT_VERSION, can_migrate

MANIFEST, STATE, CONFIG, SPEC = "manifest.json", "state.json", "config.yaml", "spec.json"
TENSORS = ".safetensors"
_MAX_MANIFEST = 1 << 20
_MAX_TEXT = 64 << 20
"""The most bytes of JSON or YAML: parsed, it takes many times its size in memory."""
_CHUNK = 1 << 20


def describe(data: bytes, **more: str | int) -> dict[str, Any]:
    """The entry of a file with this content."""
    return {"sha256": digest(data), "bytes": len(data), **more}


def render_manifest(entries: Mapping[str, Any], step: int, **about: Mapping[str, Any] | None) -> bytes:
    """The manifest that describes files with these entries, and what is known `about` them."""
    return rendered({"format_version": FORMAT_VERSION, "step": step, **about, "files": dict(entries)})


def component_of(file: str) -> str:
    """The component whose tensors a file holds: `buffer` for both `buffer.safetensors` and `buffer.0.…`."""
    return file.removesuffix(TENSORS).partition(".")[0]


def rendered(manifest: Mapping[str, Any]) -> bytes:
    """The one way to write a manifest: with its own hash at the end."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**manifest, "sha256": digest(canonical)}, indent=2).encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, verified against its own hash."""
    file = path / MANIFEST
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_MANIFEST:
            raise CheckpointError(f"{file}: refused: a symbolic link, no plain file, or too large")
        data = file.read_bytes()
        manifest = json.loads(data)
        manifest.pop("sha256")
        expected = rendered(manifest)
        version = manifest["format_version"]
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{file}: not there; {path} is not a checkpoint") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged: {error!r}") from None
    if data != expected:  # every byte counts, the hash among them
        raise CheckpointError(f"{file}: damaged: its contents do not match its hash")
    if not can_migrate(version):
        raise CheckpointError(f"{file}: format version {version}, this release reads {FORMAT_VERSION}")
    step, files = manifest.get("step"), manifest.get("files")
    if not isinstance(step, int) or not isinstance(files, dict):
        raise CheckpointError(f"{file}: names no step or no files")
    if bad := [name for name in files if not _is_plain(name)]:
        raise CheckpointError(f"{file}: refuses file name {bad[0]!r}")
    return dict(manifest)


def verify_checkpoint(path: Path, known: Collection[str] = ()) -> None:
    """Read every file of a checkpoint that is not `known` to be good, and compare it with the manifest."""
    manifest = read_manifest(path)
    for name, entry in _sized_files(path, manifest, segments_of(manifest)).items():
        if name not in known:
            verify_file(path / name, entry)


def verify_file(file: Path, entry: Mapping[str, Any], *, from_disk: bool = False) -> None:
    """Read a file and compare it with its entry; `from_disk`: not what the system still has in memory."""
    sha = hashlib.sha256()
    try:
        with open(file, "rb") as opened:
            if from_disk and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while chunk := opened.read(_CHUNK):
                sha.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    _require_hash(file, sha.hexdigest(), entry)


def looks_whole(path: Path) -> bool:
    """Is its manifest sound and every file there in full? Contents are not read."""
    try:
        manifest = read_manifest(path)
        _sized_files(path, manifest, segments_of(manifest))
    except CheckpointError:
        return False
    return True


def read_files(path: Path, manifest: Mapping[str, Any], left_out: Collection[str] = ()) -> dict[str, bytes]:
    """The contents of a checkpoint's files, each of them what the manifest says.

    Those `left_out` are verified, but need not fit into memory.
    """
    files: dict[str, bytes] = {}
    for name, entry in _sized_files(path, manifest, left_out).items():
        if name in left_out:
            verify_file(path / name, entry)
            continue
        try:
            files[name] = (path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path / name}: cannot be read: {error.strerror}") from None
        _require_hash(path / name, digest(files[name]), entry)
    if missing := {STATE, CONFIG, SPEC} - set(files):
        raise CheckpointError(f"{path / MANIFEST}: lists no {', '.join(sorted(missing))}")
    return files


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def segments_of(manifest: Mapping[str, Any]) -> list[str]:
    """The files that are parts of a large state."""
    return [
        name for name, entry in manifest["files"].items() if isinstance(entry, dict) and "version" in entry
    ]


def _sized_files(
    path: Path, manifest: Mapping[str, Any], left_out: Collection[str] = ()
) -> dict[str, Mapping[str, Any]]:
    """The manifest's entries, once every file has the size it says and those not left out fit into memory."""
    files: dict[str, Mapping[str, Any]] = manifest["files"]
    sizes = {name: _checked_size(path / name, entry) for name, entry in files.items()}
    total = sum(size for name, size in sizes.items() if name not in left_out)
    memory = total_memory()
    if memory is not None and total > memory:
        raise CheckpointError(f"{path}: {total} bytes, more than the {memory} bytes of this machine's memory")
    return files


def _checked_size(file: Path, entry: Mapping[str, Any]) -> int:
    """The size of a file, if it is the one its entry gives. Looked at before anything is read."""
    try:
        expected = entry["bytes"]
        status = file.lstat()
    except (LookupError, TypeError):
        raise CheckpointError(f"{file.parent / MANIFEST}: damaged entry for {file.name}") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{file}: refused: a symbolic link, or no plain file")
    if status.st_size != expected:
        raise CheckpointError(f"{file}: damaged: {status.st_size} bytes, the manifest says {expected}")
    if status.st_size > _MAX_TEXT and file.suffix != TENSORS:
        raise CheckpointError(f"{file}: refused: {status.st_size} bytes, more than {_MAX_TEXT} of text")
    return status.st_size


def _require_hash(file: Path, found: str, entry: Mapping[str, Any]) -> None:
    if found != entry.get("sha256"):
        raise CheckpointError(f"{file}: damaged: its contents do not match the manifest's hash")


def _is_plain(name: str) -> bool:
    """A file name that cannot lead anywhere else."""
    return name.isprintable() and Path(name).name == name != "" and not name.startswith(".")
