"""Small files, written so that a reader sees the old or the new one and never a mix."""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.errors import SaveError


def fsync_dir(path: Path) -> None:
    """Make renames and new names in a directory durable, where the file system knows how."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make what has been appended to a file durable, if the file is there."""
    if path.exists():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def make_dirs(path: Path) -> None:
    """Create a directory with its parents so that none of their names can be lost."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync_dir(folder.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """The same content under another name, without a second copy where the file system allows it."""
    try:
        os.link(source, target)
    except OSError:
        write_durably(target, source.read_bytes())


def replace_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content in one step."""
    with replacing(path) as aside:
        write_durably(aside, data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to, durably; what is there in the end takes its place in one step."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    fsync_dir(path.parent)


def read_at_once(path: str, limit: int, *, only_end: bool = False) -> bytes:
    """A file of up to `limit` bytes, or the end of a longer one, by few calls: some read thousands."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit and not only_end:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        wanted = min(size, limit)
        data = os.pread(descriptor, wanted, size - wanted)
    finally:
        os.close(descriptor)
    if len(data) < wanted:
        raise OSError(errno.EIO, "ended too early", path)
    return data


def explained(error: OSError) -> str:
    """What went wrong with which file, in the system's words."""
    reason = error.strerror or str(error)
    return f"{reason} ({error.filename})" if error.filename else reason


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Where something cannot be written: an error that names it and the reason."""
    try:
        yield
    except BrokenPipeError:  # of a reader who has seen enough, not of a file
        raise
    except OSError as error:
        raise SaveError(f"{path}: cannot be written: {explained(error)}") from error


def require_writable(folder: Path) -> None:
    """Make a folder, or find out now that nothing can be written there."""
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def to_json(data: Any, *, indent: int | None = None) -> str:
    """Strict JSON: NaN and infinity become null."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, bool) or data is None or isinstance(data, str):
        return data
    if isinstance(data, numbers.Integral):
        return int(data)
    if isinstance(data, numbers.Real):  # NumPy's scalars too
        return float(data) if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
