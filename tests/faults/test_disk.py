"""A disk that is full, read-only or broken: the previous checkpoint stays, and the run says what happened."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.cli import main
from rl_training.errors import CheckpointError, SaveError
from rl_training.experiment import files
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.loggers import JsonlFile, read_rows

SIZE = 2 << 20
POINTS = 20
BASE: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "total_timesteps": 160,
    "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1}, "network": {"hidden": [32]},
    "evaluation": {"every_steps": 0}, "checkpoint": {"every_steps": 32, "keep_last": 2},
    "logging": {"every_steps": 32, "tensorboard": False},
}  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where mounting one is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Filler(rl_training.Callback):
    """Fills the disk when a step is reached, but for some bytes, and empties it at a later one."""

    def __init__(self, disk: Path, free: int, at: int = 64, until: int | None = None) -> None:
        self.disk, self.free, self.at, self.until = disk, free, at, until

    def on_collect(self, trainer: Any) -> None:
        ballast = self.disk / "ballast"
        if trainer.global_step == self.at:
            available = os.statvfs(self.disk)
            ballast.write_bytes(b"x" * max(available.f_bavail * available.f_frsize - self.free, 0))
        if trainer.global_step == self.until:
            ballast.unlink()


def train(output_dir: Path, callback: Any = (), **checkpoint: Any) -> Any:
    return rl_training.train(BASE, output_dir=str(output_dir), checkpoint=checkpoint, callbacks=callback)


def fingerprint(checkpoint: Path) -> dict[str, str]:
    return read_contents(checkpoint).fingerprint()


def metadata(run_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return data


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_disk_that_fills_up_while_training(
    on_error: str, small_disk: Path, tmp_path: Path, full: bool, report: Any
) -> None:
    whole = train(tmp_path / "whole")
    checkpoint_size = size_of(whole.checkpoint_path)
    points = range(0, POINTS, 1 if full else 7)
    stopped = 0
    for point in points:
        folder = small_disk / str(point)
        free = checkpoint_size * 2 * point // POINTS
        filler = Filler(small_disk, free, until=128 if on_error == "continue" else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = train(folder, filler, on_error=on_error)
            except SaveError as error:
                message = str(error)
                stopped += 1
            else:
                message = ""
                assert fingerprint(result.checkpoint_path) == fingerprint(whole.checkpoint_path)
        (small_disk / "ballast").unlink(missing_ok=True)
        (run_dir,) = folder.iterdir()
        read_checkpoint(find_checkpoint(run_dir, "latest"))  # whatever happened, there is a valid one
        if message:
            assert on_error == "stop"
            assert "No space left on device" in message
            assert str(run_dir) in message
            if metadata(run_dir)["status"] != "running":  # there may be no room even to say so
                assert metadata(run_dir)["status"] == "failed"
                assert "No space left on device" in metadata(run_dir)["stop_reason"]
            assert not list((run_dir / "checkpoints").glob(".*"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                resumed = rl_training.resume(run_dir)
            assert fingerprint(resumed.checkpoint_path) == fingerprint(whole.checkpoint_path)
        steps = [row["global_step"] for row in read_rows(run_dir / "metrics.jsonl")]
        assert steps == [32, 64, 96, 128, 160]  # no line is lost, none is there twice
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    if on_error == "stop":
        assert stopped > len(points) // 3
    report(f"disk full, on_error: {on_error}", "PPO run", trials=len(points), stopped=stopped)


def fail_when(monkeypatch: pytest.MonkeyPatch, condition: Any, number: int = errno.EROFS) -> None:
    """Make writing a file fail while a condition holds."""
    honest = files.write_durably

    def write(path: Path, data: bytes) -> None:
        if condition(path):
            raise OSError(number, os.strerror(number), str(path))
        honest(path, data)

    for module in ("files", "checkpoint"):
        monkeypatch.setattr(f"rl_training.experiment.{module}.write_durably", write)


def test_continue_warns_tries_again_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole")
    seen: list[str] = []

    class Watch(rl_training.Callback):
        def on_checkpoint(self, trainer: Any, path: Path) -> None:
            seen.append(path.name)

    fail_when(monkeypatch, lambda path: any(f"step_{n}." in str(path) for n in (64, 96)))
    with pytest.warns(UserWarning, match=r"step_64: cannot be saved: Read-only file system.*tries again"):
        result = train(tmp_path / "run", Watch(), on_error="continue")
    assert seen == ["step_32", "step_128", "step_160"]
    assert result.status == "completed"
    assert fingerprint(result.checkpoint_path) == fingerprint(whole.checkpoint_path)


@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_the_final_checkpoint_must_be_written(
    on_error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_when(monkeypatch, lambda path: "step_160." in str(path), errno.EIO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SaveError, match=r"step_160: cannot be saved: Input/output error"):
            train(tmp_path, on_error=on_error)
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["status"] == "failed"
    assert "step_160" in metadata(run_dir)["stop_reason"]
    assert find_checkpoint(run_dir, "latest").name == "step_128"
    monkeypatch.undo()
    assert rl_training.resume(run_dir).status == "completed"


def test_the_command_line_explains_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_when(monkeypatch, lambda path: "step_64." in str(path), errno.ENOSPC)
    file = tmp_path / "run.yaml"
    file.write_text(
        json.dumps({**BASE, "num_steps": None, "hyperparams": {"num_steps": 16, "num_minibatches": 2}})
    )
    values = {k: v for k, v in BASE.items() if k not in ("num_steps", "num_minibatches", "update_epochs")}
    values |= {"hyperparams": {"num_steps": 16, "num_minibatches": 2}, "checkpoint": {"every_steps": 32}}
    file.write_text(json.dumps(values))
    assert main(["train", "--config", str(file), "--output-dir", str(tmp_path / "runs"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "step_64: cannot be saved: No space left on device" in error
    assert "Traceback" not in error


def test_a_directory_that_cannot_be_written(quick_dir: Path) -> None:
    """As another user if this is root, whom no permission stops."""
    run_dir = train(quick_dir / "runs").run_dir
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    for path in (run_dir / "checkpoints", run_dir):
        path.chmod(0o555)
    quick_dir.chmod(0o755)
    root = os.geteuid() == 0
    if root and any(parent.stat().st_mode & 0o005 != 0o005 for parent in quick_dir.parents):
        pytest.skip("another user cannot reach the temporary directory")
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(SaveError, match=r"cannot be written: Permission denied"):
            rl_training.resume(run_dir, total_timesteps=320)
    finally:
        if root:
            os.seteuid(0)
    assert {path: path.read_bytes() for path in before} == before
    for path in (run_dir, run_dir / "checkpoints"):
        path.chmod(0o755)
    assert rl_training.resume(run_dir, total_timesteps=320).status == "completed"


def test_a_line_of_metrics_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A file that takes seven bytes and no more."""

        def __init__(self, file: Any) -> None:
            self.file, self.room = file, 7

        def write(self, data: bytes) -> int:
            part = data[: self.room]
            self.room -= len(part)
            if not part:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self.file.write(part))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    for keep_trying in (False, True):
        path = tmp_path / f"{keep_trying}.jsonl"
        log = JsonlFile(path, keep_trying=keep_trying)
        log.write({"global_step": 1})
        honest: Any = log._file
        log._file = Full(honest)  # type: ignore[assignment]
        if keep_trying:
            with pytest.warns(UserWarning, match=r"True\.jsonl: cannot be written: No space left"):
                log.write({"global_step": 2})
        else:
            with pytest.raises(SaveError, match=r"False\.jsonl: cannot be written: No space left"):
                log.write({"global_step": 2})
        assert path.read_text() == '{"global_step": 1}\n'  # no half line stays
        log._file = honest
        if keep_trying:
            log.write({"global_step": 3})
            assert [row["global_step"] for row in read_rows(path)] == [1, 2, 3]
        log.close()


def test_old_checkpoints_that_cannot_be_removed_are_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("rl_training.experiment.run._remove", refuse)
    with pytest.warns(UserWarning, match="old checkpoints stay: .*Permission denied"):
        result = train(tmp_path, keep_last=1)
    assert result.status == "completed"
    assert len(list((result.run_dir / "checkpoints").iterdir())) == 5


def test_retention_never_drops_the_only_valid_checkpoint(tmp_path: Path) -> None:
    class Damage(rl_training.Callback):
        """Damages every checkpoint but the first as soon as it is there."""

        def on_checkpoint(self, trainer: Any, path: Path) -> None:
            if trainer.global_step > 32:
                (path / "policy.safetensors").write_bytes(b"")

    result = train(tmp_path, Damage(), keep_last=2)
    with pytest.warns(UserWarning, match="damaged"):
        found = find_checkpoint(result.run_dir, "latest")
    assert found.name == "step_32"
    assert torch.isfinite(next(iter(read_checkpoint(found).state["policy"].values()))).all()
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(result.checkpoint_path)
