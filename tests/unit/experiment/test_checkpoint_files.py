"""Checkpoints: atomic to write, complete wherever they lie, and refused when a single byte is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

import rl_training.experiment.checkpoint as module
import rl_training.experiment.manifest as manifest_module
from rl_training import TrainConfig
from rl_training.errors import AxiomError, CheckpointError, SaveError
from rl_training.experiment.checkpoint import read_checkpoint, write_checkpoint
from rl_training.experiment.manifest import read_manifest, rendered
from rl_training.types import Segment, Spec

CONFIG = TrainConfig(algo="ppo", env_id="CartPole-v1", tags=("a", "1e3"))
SPEC = Spec(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))
STATE = {"policy": {"w": torch.arange(3.0)}, "counters": {"step": 5, "best": None}, "empty": {}}


def write(path: Path, state: dict[str, Any] | None = None, step: int = 5) -> Path:
    return write_checkpoint(path, state or STATE, config=CONFIG, spec=SPEC, step=step)


def rewritten(path: Path, change: Any) -> None:
    """Change a manifest as somebody would who knows how to compute its hash."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (path / "manifest.json").write_bytes(rendered(manifest))


def replaced(path: Path, name: str, data: bytes) -> None:
    """Put other contents in place of a file, with a manifest that vouches for them."""
    (path / name).write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    rewritten(path, lambda manifest: manifest["files"].__setitem__(name, entry))


def test_round_trip_and_a_copy_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "step_5")
    shutil.copytree(tmp_path / "step_5", tmp_path / "else" / "where")
    shutil.rmtree(tmp_path / "step_5")
    read = read_checkpoint(tmp_path / "else" / "where")
    assert (read.step, read.config, read.spec) == (5, CONFIG, SPEC)
    assert torch.equal(read.state["policy"]["w"], STATE["policy"]["w"])  # type: ignore[index]
    assert read.state["counters"] == STATE["counters"]
    assert read.state["empty"] == {}


def test_nothing_is_left_beside_a_checkpoint_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    write(tmp_path / "c")
    write(tmp_path / "c", {"policy": {"w": torch.zeros(1)}}, step=6)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert read_checkpoint(tmp_path / "c").step == 6


@pytest.mark.parametrize("operation", ["write", "fsync", "publish", "rename"])
def test_a_failure_in_the_middle_leaves_the_old_one(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "c")
    before = {p.name: p.read_bytes() for p in (tmp_path / "c").iterdir()}
    calls = []

    def fail(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if operation == "rename" and Path(args[1]).name != "c":
            real(*args)  # the old one has made way; putting the new one in its place fails
        elif operation != "rename" or len(calls) == 2:
            raise OSError(28, "No space left on device")
        else:
            real(*args)

    real = os.rename
    target, name = {
        "write": (module, "write_durably"),
        "fsync": (os, "fsync"),
        "publish": (module, "_publish"),
        "rename": (os, "rename"),
    }[operation]
    monkeypatch.setattr(target, name, fail)
    with pytest.raises(SaveError, match="/c: cannot be saved: No space left"):
        write(tmp_path / "c", step=6)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in (tmp_path / "c").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert read_checkpoint(tmp_path / "c").step == 5


def test_what_was_written_is_verified_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "c")
    honest = module.write_durably
    monkeypatch.setattr(module, "write_durably", lambda path, data: honest(path, data[:-1] + b"?"))
    with pytest.raises(SaveError, match="does not read back"):
        write(tmp_path / "c", step=6)
    assert read_checkpoint(tmp_path / "c").step == 5


def test_somebody_elses_data_is_never_replaced(tmp_path: Path) -> None:
    folder, file, link = tmp_path / "results", tmp_path / "notes", tmp_path / "link"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    file.write_text("notes")
    link.symlink_to(folder)
    for path in (folder, file, link, tmp_path):
        with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
            write(path)
    assert (folder / "thesis.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    assert read_checkpoint(tmp_path / "empty").step == 5


def test_every_flip_and_truncation_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c")
    rng = random.Random(0)
    files = sorted(path.iterdir())
    assert len(files) == 5
    for _ in range(400):
        file = rng.choice(files)
        good = file.read_bytes()
        at = rng.randrange(len(good))
        if rng.random() < 0.25:
            bad = good[:at]
        elif rng.random() < 0.5:
            bad = good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :]
        else:
            bad = good[:at] + bytes([(good[at] + rng.randrange(1, 256)) % 256]) + good[at + 1 :]
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            read_checkpoint(path)
        file.write_bytes(good)
    for file in files:
        good = file.read_bytes()
        file.unlink()
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            read_checkpoint(path)
        file.write_bytes(good)
    assert read_checkpoint(path).step == 5


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "c")
    good = (path / "manifest.json").read_bytes()
    for bad in (good.replace(b"\n", b"\t", 1), good.replace(b": ", b":  ", 1), good + b"\n", b" " + good):
        (path / "manifest.json").write_bytes(bad)
        with pytest.raises(CheckpointError, match="damaged"):
            read_manifest(path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", ".hidden", "..", "", "a\0b", "\ud800"])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "c")
    entry = {"sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1}
    (tmp_path / "secret").write_bytes(b"x")
    rewritten(path, lambda manifest: manifest["files"].__setitem__(name, entry))
    with pytest.raises(CheckpointError, match="refuses file name"):
        read_checkpoint(path)


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c")
    for name in ("state.json", "manifest.json"):
        (path / name).rename(tmp_path / name)
        (path / name).symlink_to(tmp_path / name)
        with pytest.raises(CheckpointError, match="symbolic link"):
            read_checkpoint(path)
        (path / name).unlink()
        (tmp_path / name).rename(path / name)


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "c")
    rewritten(path, lambda manifest: manifest.update(format_version=2, files=["other", "shape"]))
    with pytest.raises(CheckpointError, match="format version 2, this release reads 1"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("state.json", b"[]"),
        ("state.json", b"{"),
        ("state.json", b'{"policy": {"$tensor": "nowhere"}}'),
        ("state.json", b'{"policy": {"$tensor": ["w"]}}'),
        ("state.json", b"[" * 100_000),
        ("spec.json", b"{}"),
        ("spec.json", b"3"),
        ("policy.safetensors", b"\xff" * 16),
        ("policy.safetensors", b"\x80\x04\x95cos\nsystem\n"),
        ("config.yaml", b"algo: ppo\n"),
        ("config.yaml", b"a: &a [*a]\n"),
        ("config.yaml", b"\xff\xfe"),
    ],
)
def test_hostile_contents_that_their_manifest_vouches_for_are_refused_with_a_path(
    name: str, data: bytes, tmp_path: Path
) -> None:
    path = write(tmp_path / "c")
    replaced(path, name, data)
    with pytest.raises(AxiomError) as caught:
        read_checkpoint(path)
    if b"algo" not in data:
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(files=[]),
        lambda m: m.update(step="5"),
        lambda m: m.pop("step"),
        lambda m: m["files"].update({"state.json": 3}),
        lambda m: m["files"].update({"state.json": {}}),
        lambda m: m["files"]["state.json"].pop("sha256"),
        lambda m: m["files"].pop("state.json"),
    ],
)
def test_manifests_that_make_no_sense_are_refused(change: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "c")
    rewritten(path, change)
    with pytest.raises(CheckpointError, match="manifest"):
        read_checkpoint(path)
    (path / "manifest.json").write_bytes(b"[" * 100_000)
    with pytest.raises(CheckpointError, match="damaged"):
        read_manifest(path)


def test_the_package_has_no_code_that_runs_what_it_reads() -> None:
    source = Path(module.__file__).parents[1]
    forbidden = re.compile(
        r"\bpickle\b|torch\.load\b|torch\.save\b|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load\(|"
        r"yaml\.(unsafe|full)_load|allow_pickle=True|np\.load\b|\bmarshal\b|\bshelve\b|\bdill\b|\bjoblib\b"
    )
    found = [
        f"{file.relative_to(source)}:{number}: {line.strip()}"
        for file in source.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_a_linked_segment_that_a_disk_has_damaged_is_noticed_and_written_anew(tmp_path: Path) -> None:
    parts = [torch.full((4,), float(k)) for k in range(40)]
    segments = [Segment(f"v{k}", lambda part=part: {"x": part}) for k, part in enumerate(parts)]  # type: ignore[misc]
    state = {**STATE, "buffer": {"segments": segments}}

    def save(step: int, previous: Path | None) -> Path:
        path = tmp_path / f"step_{step}"
        return write_checkpoint(path, state, config=CONFIG, spec=SPEC, step=step, previous=previous)

    previous = save(1, None)
    file = previous / "buffer.segments-37.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # one bit, the size stays
    file.write_bytes(data)
    warned: list[int] = []
    for step in range(2, 2 + module.SAVES_TO_VERIFY):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            previous = save(step, previous)
        warned += [step for w in caught if "buffer.segments-37.safetensors: damaged" in str(w.message)]
    assert len(warned) == 1  # noticed once, within the bound, and sound from then on
    read = read_checkpoint(previous).state["buffer"]["segments"]
    assert all(torch.equal(segment["x"], part) for segment, part in zip(read, parts, strict=True))
    verified = {e["verified"] for n, e in read_manifest(previous)["files"].items() if n.startswith("buffer.")}
    assert min(verified) > 1  # none has been taken on trust since the first save
    assert (previous / "buffer.segments-3.safetensors").stat().st_nlink == step  # linked, not written


def test_segments_need_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = torch.arange(50_000.0)
    state = {**STATE, "buffer": {"segments": [Segment("1", lambda: {"x": part})]}}
    write(tmp_path / "c", state)
    write(tmp_path / "d", {**STATE, "policy": {"w": part}})
    monkeypatch.setattr(manifest_module, "total_memory", lambda: 20_000)
    read = read_checkpoint(tmp_path / "c").state["buffer"]["segments"][0]["x"]
    assert torch.equal(read, part)
    read += 1  # a map of its own: the file stays as it is
    assert torch.equal(read_checkpoint(tmp_path / "c").state["buffer"]["segments"][0]["x"], part)
    with pytest.raises(CheckpointError, match="more than the 20000 bytes of this machine's memory"):
        read_checkpoint(tmp_path / "d")
