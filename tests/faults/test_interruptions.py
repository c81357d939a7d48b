"""Signals and second processes: a run that is asked to stop saves, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.runtime.callbacks import StepBudget

SCRIPT = """
import sys, torch, rl_training
torch.set_num_threads(1)

class Say(rl_training.Callback):
    def on_update(self, trainer):
        print(trainer.global_step, flush=True)
        if len(sys.argv) > 3:
            import time
            time.sleep(0.05)

result = rl_training.train(
    algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=int(sys.argv[2]), output_dir=sys.argv[1],
    num_steps=16, num_minibatches=2, update_epochs=1, network={"hidden": [8]},
    evaluation={"every_steps": 0}, checkpoint={"every_steps": 32},
    logging={"every_steps": 96, "tensorboard": False},
    callbacks=[Say()],
)
print(result.status, flush=True)
"""
LONG = 1_000_000


def start(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(LONG), "slowly"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().isdigit() and int(line) >= step:
            return
    pytest.fail(f"the process ended: {process.stderr.read() if process.stderr else ''}")


def metadata(run_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return data


def policy(run_dir: Path) -> dict[str, torch.Tensor]:
    checkpoint = read_checkpoint(run_dir / metadata(run_dir)["latest_checkpoint"])
    found: dict[str, torch.Tensor] = checkpoint.state["policy"]
    return found


def uninterrupted(tmp_path: Path, total: int, *callbacks: rl_training.Callback) -> Path:
    return rl_training.train(
        algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=LONG, output_dir=str(tmp_path),
        num_steps=16, num_minibatches=2, update_epochs=1, network={"hidden": [8]},
        evaluation={"every_steps": 0}, logging={"every_steps": 96, "tensorboard": False},
        callbacks=[StepBudget(total), *callbacks],
    ).run_dir  # fmt: skip


def assert_resumes_exactly(run_dir: Path, tmp_path: Path) -> None:
    total = metadata(run_dir)["latest_checkpoint"]
    total = int(total.rpartition("_")[2]) + 96
    resumed = rl_training.resume(run_dir, callbacks=StepBudget(96))
    assert resumed.metrics["global_step"] == total
    assert metadata(run_dir)["resumes"][-1]["grade"] == "exact"
    whole = uninterrupted(tmp_path / "whole", total)
    for name, value in policy(whole).items():
        assert torch.equal(value, policy(run_dir)[name])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_marks_the_run_interrupted_and_nothing_is_lost(number: int, tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_step(process, 64)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split()[-1] == "interrupted"
    (run_dir,) = tmp_path.iterdir()
    written = metadata(run_dir)
    assert written["status"] == "interrupted"
    assert written["stop_reason"] == f"interrupted by {signal.Signals(number).name}"
    assert_resumes_exactly(run_dir, tmp_path)


TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""


def test_a_closed_terminal_saves_though_nobody_can_be_told(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    script = TERMINAL + SCRIPT.replace("callbacks=", "progress=True, callbacks=").replace(
        "print(result.status, flush=True)", ""
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(LONG), "slowly"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("*/checkpoints/step_*")):
            assert time.monotonic() < deadline, "no checkpoint yet"
            time.sleep(0.05)
        os.close(ours)  # the kernel sends SIGHUP; whatever is written from now on fails with EIO
        assert process.wait(120) == 0
    finally:
        process.kill()
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["status"] == "interrupted"
    assert metadata(run_dir)["stop_reason"] == "interrupted by SIGHUP"
    assert_resumes_exactly(run_dir, tmp_path)


def test_a_callback_that_fails_at_the_end_costs_no_training(tmp_path: Path) -> None:
    class Clumsy(rl_training.Callback):
        def on_train_end(self, trainer: Any) -> None:
            raise ZeroDivisionError("at the end")

    with pytest.raises(ZeroDivisionError, match="at the end"):
        uninterrupted(tmp_path / "clumsy", 64, Clumsy())
    (run_dir,) = (tmp_path / "clumsy").iterdir()
    assert metadata(run_dir)["status"] == "failed"
    assert metadata(run_dir)["latest_checkpoint"] == "checkpoints/step_64"
    for name, value in policy(uninterrupted(tmp_path / "whole", 64)).items():
        assert torch.equal(value, policy(run_dir)[name])


def test_a_run_whose_end_failed_can_be_ended(tmp_path: Path) -> None:
    class Clumsy(rl_training.Callback):
        ends = 0

        def on_train_end(self, trainer: Any) -> None:
            self.ends += 1
            if self.ends == 1:
                raise ZeroDivisionError("at the end")

    def train(folder: Path, **more: Any) -> Any:
        settings: dict[str, Any] = {
            "num_envs": 2, "num_steps": 16, "num_minibatches": 2, "total_timesteps": 64,
            "output_dir": str(folder), "logging": {"tensorboard": False},
            "evaluation": {"every_steps": 48, "episodes": 2},
        }  # fmt: skip
        return rl_training.train(algo="ppo", env_id="CartPole-v1", **settings, **more)

    clumsy = Clumsy()
    with pytest.raises(ZeroDivisionError, match="at the end"):
        train(tmp_path / "clumsy", callbacks=[clumsy])
    (run_dir,) = (tmp_path / "clumsy").iterdir()
    assert metadata(run_dir)["status"] == "failed"
    ended = rl_training.resume(run_dir, callbacks=[clumsy])
    assert clumsy.ends == 2
    assert (ended.status, metadata(run_dir)["status"]) == ("completed", "completed")
    assert [resume["trains"] for resume in metadata(run_dir)["resumes"]] == [False]
    whole = train(tmp_path / "whole")
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        steps = [
            [json.loads(line)["global_step"] for line in (run / name).read_text().splitlines()]
            for run in (run_dir, whole.run_dir)
        ]
        assert steps[0] == steps[1], name
    with pytest.raises(rl_training.AxiomError, match="already at step 64 of 64"):
        rl_training.resume(run_dir)


class EndsEarly(rl_training.Callback):
    """Ends the run at its first chance, then breaks it at the next, then leaves it alone."""

    times = 0

    def on_collect(self, trainer: Any) -> None:
        self.times += 1
        if self.times == 2:
            raise ZeroDivisionError("on the way")

    def on_update(self, trainer: Any) -> None:
        if self.times == 1:
            trainer.stop("enough for now")


def test_a_run_that_went_on_after_its_early_end_and_broke_has_not_ended(tmp_path: Path) -> None:
    callback = EndsEarly()
    settings: dict[str, Any] = {
        "num_envs": 2, "num_steps": 16, "num_minibatches": 2, "total_timesteps": 96,
        "output_dir": str(tmp_path), "logging": {"tensorboard": False}, "evaluation": {"every_steps": 0},
    }  # fmt: skip
    first = rl_training.train(algo="ppo", env_id="CartPole-v1", **settings, callbacks=[callback])
    assert (first.status, first.metrics["global_step"]) == ("completed", 32)
    with pytest.raises(ZeroDivisionError, match="on the way"):
        rl_training.resume(first.run_dir, callbacks=[callback])
    assert metadata(first.run_dir)["latest_checkpoint"] == "checkpoints/step_32"
    ended = rl_training.resume(first.run_dir, callbacks=[callback])
    assert (ended.status, ended.metrics["global_step"]) == ("completed", 96)
    assert [(r["step"], r["trains"]) for r in metadata(first.run_dir)["resumes"]] == [(32, True)] * 2


def test_a_killed_run_resumes_exactly_from_its_last_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_step(process, 96)
    process.kill()
    process.communicate()
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["status"] == "running"  # nobody was left to say otherwise
    assert_resumes_exactly(run_dir, tmp_path)


def test_a_run_in_training_cannot_be_resumed_by_another_process(tmp_path: Path) -> None:
    process = start(tmp_path)
    try:
        wait_for_step(process, 64)
        (run_dir,) = tmp_path.iterdir()
        with pytest.raises(CheckpointError, match="another process is training this run"):
            rl_training.resume(run_dir)
        assert metadata(run_dir)["status"] == "running"
        wait_for_step(process, 128)  # and the one that holds it goes on undisturbed
    finally:
        process.kill()
        process.communicate()


def test_the_lock_dies_with_its_holder_though_workers_were_forked(tmp_path: Path) -> None:
    """Async workers are started before the lock is taken: one that lives on for a moment cannot hold it."""
    script = SCRIPT.replace("num_steps=16", "num_steps=16, env={'backend': 'async'}")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(LONG), "slowly"], stdout=subprocess.PIPE, text=True
    )
    wait_for_step(process, 32)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (run_dir,) = tmp_path.iterdir()
    try:
        assert children
        lock = str(run_dir / ".lock")
        for child in children:
            held = [os.readlink(fd) for fd in Path(f"/proc/{child}/fd").iterdir() if fd.exists()]
            assert lock not in held
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{child}").exists() for child in children):
        time.sleep(0.1)


def test_a_second_signal_ends_at_once_and_leaves_the_checkpoints(tmp_path: Path) -> None:
    class Impatient(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            if trainer.global_step >= 64:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        rl_training.train(
            algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=LONG, output_dir=str(tmp_path),
            num_steps=16, num_minibatches=2, update_epochs=1, network={"hidden": [8]},
            evaluation={"every_steps": 0}, checkpoint={"every_steps": 32},
            logging={"every_steps": 32, "tensorboard": False}, callbacks=Impatient(),
        )  # fmt: skip
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["status"] == "interrupted"
    assert metadata(run_dir)["latest_checkpoint"] == "checkpoints/step_32"
    assert rl_training.resume(run_dir, total_timesteps=96).metrics["global_step"] == 96
