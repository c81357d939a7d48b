"""A shim around the file-system calls of a save: it counts them, ends the process after one, or fails one.

It also keeps a model of the disk, from which the states a power failure may leave can be made: file contents
that were never synced may be gone or torn, names in a directory that was never synced may be missing.
"""

from __future__ import annotations

import builtins
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment import files

Tree = dict[str, bytes | None]
"""Paths relative to the root: the content of a file, or None for a directory."""


class Crash(BaseException):
    """The process has died: nothing catches this."""


@dataclass(frozen=True)
class Operation:
    """One call that changed something or made it durable; paths are relative to the root."""

    kind: str
    path: str
    target: str = ""
    data: bytes = b""


@dataclass
class Shim:
    """Counts operations below `root`; `before(k)` and `after(k)` are called around the k-th, from 1."""

    root: Path
    before: Callable[[int], None] = lambda k: None
    after: Callable[[int], None] = lambda k: None
    log: list[Operation] = field(default_factory=list)

    def perform(self, operation: Operation, call: Callable[[], Any]) -> Any:
        number = len(self.log) + 1
        self.before(number)
        result = call()
        self.log.append(operation)
        self.after(number)
        return result

    def inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """A path relative to the root, or None for one that lies elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        base = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        full = Path(os.path.abspath(os.path.join(base, os.fspath(path))))
        if not full.is_relative_to(self.root):
            return None
        return "" if full == self.root else str(full.relative_to(self.root))

    @contextmanager
    def active(self) -> Iterator[Shim]:
        """Watch every call that a save makes."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("mkdir", "rmdir", "unlink", "fsync", "rename", "replace", "link"):
                patch.setattr(os, name, self._wrapped(name, getattr(os, name)))
            patch.setattr(files, "open", self._open, raising=False)
            yield self

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            where = self.inside(path, kwargs.get("dir_fd"))
            if where is None:
                return real(path, *args, **kwargs)
            target = self.inside(args[0]) or "" if name in ("rename", "replace", "link") else ""
            kind = "rename" if name == "replace" else name
            return self.perform(Operation(kind, where, target), lambda: real(path, *args, **kwargs))

        return call

    def _open(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        where = self.inside(path)
        if where is None or "w" not in mode:
            return builtins.open(path, mode, *args, **kwargs)
        file = self.perform(
            Operation("create", where),
            lambda: builtins.open(path, mode, *args, buffering=0, **kwargs),  # noqa: SIM115 - as the caller
        )
        return _File(self, where, file)


class _File:
    """A file whose writes are two operations each, so that a crash may fall between them."""

    def __init__(self, shim: Shim, where: str, file: Any) -> None:
        self._shim, self._where, self._file = shim, where, file

    def write(self, data: bytes) -> int:
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            operation = Operation("write", self._where, data=part)
            self._shim.perform(operation, lambda part=part: self._file.write(part))
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        number: int = self._file.fileno()
        return number

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def snapshot(root: Path) -> Tree:
    """What lies below a directory."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }


def materialise(tree: Tree, root: Path) -> Path:
    """Put a tree on the disk."""
    for name, content in sorted(tree.items()):
        if content is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
    return root


def replayed(before: Tree, log: list[Operation]) -> Tree:
    """The tree after all operations, as every process sees it."""
    return _Disk(before).run(log).visible()


def after_power_failure(before: Tree, log: list[Operation], rng: random.Random, draws: int) -> Iterator[Tree]:
    """Trees that a power failure may leave: all, none or some of the names that were never synced.

    File contents that were never synced are kept, torn or lost. The extremes come first, then what a journal
    that keeps the order may leave, then `draws` random trees.
    """
    disk = _Disk(before).run(log)
    pending = [edit for edit in disk.edits if not edit.is_durable]
    for kept, data in itertools.product((True, False), ("kept", "lost", "torn")):
        yield disk.survivors(lambda _, kept=kept: kept, lambda data=data: data)
    for end in range(1, len(pending)):  # a journal keeps the order
        first = set(map(id, pending[:end]))
        yield disk.survivors(lambda edit, first=first: id(edit) in first, lambda: "lost")
    for _ in range(draws):
        yield disk.survivors(lambda _: rng.random() < 0.5, lambda: rng.choice(("kept", "lost", "torn")))


class _Inode:
    """A file or directory: what it is now, and what is surely on the disk of it."""

    def __init__(self, content: bytes | None, *, synced: bool = False) -> None:
        self.is_dir = content is None
        self.now: bytes = content or b""
        self.durable: bytes = self.now if synced else b""
        self.names: dict[str, _Inode] = {}
        self.first_names: dict[str, _Inode] = {}

    def content(self, fate: str) -> bytes:
        if fate == "kept":
            return self.now
        return self.durable if fate == "lost" else max(self.durable, self.now[: len(self.now) // 2], key=len)


@dataclass
class _Edit:
    """A change of names: `old` in one directory is gone, `new` in another is there, or one of the two."""

    node: _Inode
    old: tuple[_Inode, str] | None = None
    new: tuple[_Inode, str] | None = None
    is_durable: bool = False

    def apply(self, names: Callable[[_Inode], dict[str, _Inode]]) -> None:
        """Make the change where it is possible."""
        if self.old is not None and names(self.old[0]).get(self.old[1]) is not self.node:
            return
        if self.new is not None:
            replaced = names(self.new[0]).get(self.new[1])
            if replaced is not None and replaced.is_dir and names(replaced):
                return
            names(self.new[0])[self.new[1]] = self.node
        if self.old is not None:
            del names(self.old[0])[self.old[1]]


class _Disk:
    """Inodes and their names; a change of names is durable once its directory has been synced after it."""

    def __init__(self, before: Tree) -> None:
        self._root = _Inode(None)
        self.edits: list[_Edit] = []
        for name, content in sorted(before.items()):
            folder, last = self._parent(name)
            folder.names[last] = _Inode(content, synced=True)
        self._remember(self._root)

    def run(self, log: list[Operation]) -> _Disk:
        for operation in log:
            self._apply(operation)
        return self

    def visible(self) -> Tree:
        return _walk(self._root, lambda node: node.names, lambda node: node.now)

    def survivors(self, kept: Callable[[_Edit], bool], fate: Callable[[], str]) -> Tree:
        world: dict[int, dict[str, _Inode]] = {}

        def names(folder: _Inode) -> dict[str, _Inode]:
            return world.setdefault(id(folder), dict(folder.first_names))

        for edit in self.edits:
            if edit.is_durable or kept(edit):
                edit.apply(names)
        return _walk(self._root, names, lambda node: node.content(fate()))

    def _remember(self, folder: _Inode) -> None:
        folder.first_names = dict(folder.names)
        for node in folder.names.values():
            self._remember(node)

    def _find(self, path: str) -> _Inode | None:
        node: _Inode | None = self._root
        for part in path.split("/") if path else []:
            node = None if node is None else node.names.get(part)
        return node

    def _parent(self, path: str) -> tuple[_Inode, str]:
        folder = self._find(os.path.dirname(path))
        assert folder is not None, path
        return folder, os.path.basename(path)

    def _apply(self, operation: Operation) -> None:
        node, place = self._find(operation.path), None
        match operation.kind:
            case "write":
                assert node is not None
                node.now += operation.data
            case "fsync":
                assert node is not None
                self._sync(node)
            case "create" if node is not None:
                node.now = b""
            case "create" | "mkdir":
                new = _Inode(None if operation.kind == "mkdir" else b"")
                self._edit(_Edit(new, new=self._parent(operation.path)))
            case "unlink" | "rmdir":
                assert node is not None
                self._edit(_Edit(node, old=self._parent(operation.path)))
            case "rename" | "link":
                assert node is not None
                place = self._parent(operation.path) if operation.kind == "rename" else None
                self._edit(_Edit(node, old=place, new=self._parent(operation.target)))

    def _edit(self, edit: _Edit) -> None:
        self.edits.append(edit)
        edit.apply(lambda folder: folder.names)

    def _sync(self, node: _Inode) -> None:
        node.durable = node.now
        for edit in self.edits:
            if all(place is None or place[0] is node for place in (edit.old, edit.new)):
                edit.is_durable = True


def _walk(
    folder: _Inode, names: Callable[[_Inode], dict[str, _Inode]], content: Callable[[_Inode], bytes]
) -> Tree:
    tree: Tree = {}
    for name, node in names(folder).items():
        tree[name] = None if node.is_dir else content(node)
        if node.is_dir:
            tree |= {f"{name}/{inner}": value for inner, value in _walk(node, names, content).items()}
    return tree
