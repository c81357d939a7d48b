"""What a checkpoint holds, as one hash a component: anyone can compare two of them. Needs no torch.

A component's hash is the SHA-256 of its entries in the order of their paths. Each entry gives one line of
canonical JSON, `[path, kind, dtype, shape, size]`, followed by its bytes: the raw data of a tensor, or the
canonical JSON of any other value. Wall-clock times are left out: they never repeat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, deserialize

from rl_training.errors import CheckpointError
from rl_training.experiment.manifest import STATE, TENSORS, component_of, read_files, read_manifest

if TYPE_CHECKING:
    import numpy as np

EntryPath = tuple[str, ...]
WALL_CLOCK: tuple[EntryPath, ...] = (("clock",), ("callbacks", "TimeBudget", "used"))
_NUMPY = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One leaf of the state: a tensor as raw bytes, or any other value as canonical JSON."""

    kind: str
    data: bytes
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "value":
            return self.data.decode()
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry that is not the same in two checkpoints."""

    component: str
    entry: str
    detail: str
    largest: float | None = None
    """For numbers of the same shape: the largest absolute difference."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything a checkpoint holds, by component and path."""

    path: Path
    format_version: int
    step: int
    sizes: Mapping[str, int]
    components: Mapping[str, Mapping[EntryPath, Entry]]

    def fingerprint(self) -> dict[str, str]:
        """One SHA-256 a component."""
        return {name: _digest(entries) for name, entries in self.components.items()}

    def describe(self) -> dict[str, Any]:
        """What `axiomrl inspect --json` prints of a checkpoint."""
        return {
            "checkpoint": str(self.path),
            "format_version": self.format_version,
            "step": self.step,
            "sizes": dict(self.sizes),
            "fingerprint": self.fingerprint(),
        }


def read_contents(path: Path, only: Collection[str] | None = None) -> Contents:
    """Read and verify a checkpoint without understanding it, or only some parts of its state."""
    manifest = read_manifest(path)
    if only is not None:
        wanted = {n: e for n, e in manifest["files"].items() if _belongs(n, only)}
        manifest = {**manifest, "files": wanted}
    files = read_files(path, manifest)
    components: dict[str, dict[EntryPath, Entry]] = {}
    try:
        tensors = _tensors_by_component(files)
        for name, half in json.loads(files[STATE]).items():
            if only is not None and name not in only:
                continue
            for at, entry in _entries(half, tensors.get(name, {}), (name,)):
                if not any(at[: len(clock)] == clock for clock in WALL_CLOCK):
                    component, inner = _place(at)
                    components.setdefault(component, {})[inner] = entry
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be understood: {error}") from None
    sizes = {name: len(data) for name, data in files.items()}
    return Contents(path, manifest["format_version"], manifest["step"], sizes, components)


def compare(a: Contents, b: Contents) -> list[Difference]:
    """Every entry that differs, component by component."""
    found: list[Difference] = []
    if a.step != b.step:
        found.append(Difference("step", "", f"{a.step} → {b.step}", abs(b.step - a.step)))
    for component in dict.fromkeys([*a.components, *b.components]):
        first, second = a.components.get(component, {}), b.components.get(component, {})
        found.extend(
            Difference(component, "/".join(at), *_difference(first.get(at), second.get(at)))
            for at in dict.fromkeys([*first, *second])
            if first.get(at) != second.get(at)
        )
    return found


def _belongs(name: str, only: Collection[str]) -> bool:
    """Whether a file is one of these parts, or one that every checkpoint has."""
    return not name.endswith(TENSORS) or component_of(name) in only


def _tensors_by_component(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    tensors: dict[str, dict[str, Any]] = {}
    for name, data in files.items():
        if name.endswith(TENSORS):
            stored = deserialize(data)  # type: ignore[no-untyped-call]
            tensors.setdefault(component_of(name), {}).update(stored)
    return tensors


def _place(at: EntryPath) -> tuple[str, EntryPath]:
    """The component an entry is shown under: normalisers apart from weights and counters."""
    match at:
        case ("policy", name, *rest) if name.startswith("normalizer."):
            return "normalizer", ("observations", name.removeprefix("normalizer."), *rest)
        case ("collector", "rewards", *rest):
            return "normalizer", ("rewards", *rest)
        case ("policy" | "networks", *_):
            return "weights", at
        case (component, *rest):
            return component, tuple(rest)
    raise AssertionError(at)


def _entries(
    half: Any, tensors: Mapping[str, Mapping[str, Any]], at: EntryPath
) -> Iterator[tuple[EntryPath, Entry]]:
    """The leaves of a state tree, with tensors in their places."""
    if isinstance(half, dict):  # an empty one says nothing: a callback without state is no difference
        for marker in ("$tensor", "$array"):
            if set(half) == {marker}:
                stored = tensors[half[marker]]
                yield at, Entry(marker[1:], bytes(stored["data"]), stored["dtype"], tuple(stored["shape"]))
                return
        for key, value in half.items():
            yield from _entries(value, tensors, (*at, key))
    elif isinstance(half, list) and half:
        for index, value in enumerate(half):
            yield from _entries(value, tensors, (*at, str(index)))
    else:
        yield at, Entry("value", _canonical(half))


def _digest(entries: Mapping[EntryPath, Entry]) -> str:
    sha = hashlib.sha256()
    for at, entry in sorted(entries.items(), key=lambda item: item[0]):
        sha.update(_canonical([at, entry.kind, entry.dtype, entry.shape, len(entry.data)]) + b"\n")
        sha.update(entry.data)
    return sha.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _difference(one: Entry | None, two: Entry | None) -> tuple[str, float | None]:
    """How two entries differ, in words, and by how much."""
    if one is None or two is None:
        return ("only in the second" if one is None else "only in the first"), None
    if one.kind == "value" or (one.kind, one.dtype, one.shape) != (two.kind, two.dtype, two.shape):
        return f"{one} → {two}", _gap(one, two)
    first, second = _numbers(one), _numbers(two)
    if first is None or second is None:
        return f"{one} differs", None
    import numpy as np

    unequal = int(np.count_nonzero(first != second))
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(second.astype(np.float64) - first.astype(np.float64))
    largest = float(np.nanmax(gaps)) if np.isfinite(gaps).any() else None
    return f"{one}, {unequal} of {first.size} numbers differ", largest


def _gap(one: Entry, two: Entry) -> float | None:
    """The difference of two plain numbers."""
    if one.kind != "value" or two.kind != "value":
        return None
    a, b = json.loads(one.data), json.loads(two.data)
    is_number = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return float(abs(b - a)) if is_number else None


def _numbers(entry: Entry) -> np.ndarray[Any, Any] | None:
    """A tensor's numbers, where NumPy knows its type."""
    import numpy as np

    if entry.dtype == "BF16":
        return (np.frombuffer(entry.data, "<u2").astype(np.uint32) << 16).view(np.float32)
    code = _NUMPY.get(entry.dtype)
    return None if code is None else np.frombuffer(entry.data, np.dtype(code).newbyteorder("<"))
