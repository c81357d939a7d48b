"""A sampler that breaks is an error of the run; a learner that is killed takes its sampler with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import alive, children_of, shared_memory, soon

import rl_training
from rl_training.envs import episode_seed
from rl_training.errors import AxiomError, EnvError, NonFiniteError
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.runtime.callbacks import StepBudget

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc and /dev/shm")

LONG = 1_000_000


def settings(output_dir: Path, **more: Any) -> dict[str, Any]:
    return {
        "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "total_timesteps": LONG,
        "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
        "network": {"hidden": [8]}, "collection": "pipelined", "output_dir": str(output_dir),
        "evaluation": {"every_steps": 0}, "checkpoint": {"every_steps": 32},
        "logging": {"every_steps": 96, "tensorboard": False}, **more,
    }  # fmt: skip


def fragile(output_dir: Path, fault: str) -> dict[str, Any]:
    """Breaks in the second rollout, which nobody but the sampler plays."""
    kwargs = {"fault": fault, "at": 14, "seed": episode_seed(0, 0, 1)}
    never = {"every_steps": 0}
    return settings(output_dir, env_id="axiom/Fragile-v0", env_kwargs=kwargs, checkpoint=never)


def assert_fails_and_leaves_nothing(config: dict[str, Any], error: type[AxiomError], message: str) -> None:
    before = set(children_of(os.getpid()))
    with pytest.raises(error, match=message):
        rl_training.train(config)
    (run_dir,) = Path(config["output_dir"]).iterdir()
    assert json.loads((run_dir / "metadata.json").read_text())["status"] == "failed"
    assert set(children_of(os.getpid())) <= before
    assert not shared_memory([os.getpid()])


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("raise", EnvError, r"env 0 \(axiom/Fragile-v0, episode seed \d+\): step\(\) raised RuntimeError"),
        (
            "nan",
            NonFiniteError,
            r"the observation of env 0 at step \d+ .* is NaN .* at step 32\)",
        ),
        ("die", EnvError, "the sampler of axiom/Fragile-v0 died with exit code 7"),
        ("segfault", EnvError, "the sampler of axiom/Fragile-v0 was killed by SIGSEGV"),
    ],
)
def test_what_breaks_in_the_sampler_is_raised_in_the_learner(
    fault: str, error: type[AxiomError], message: str, tmp_path: Path
) -> None:
    assert_fails_and_leaves_nothing(fragile(tmp_path, fault), error, message)


class KillSampler(rl_training.Callback):
    def on_collect(self, trainer: Any) -> None:
        if trainer.global_step == 96:
            (sampler,) = multiprocessing.active_children()
            sampler.kill()


def test_a_killed_sampler_ends_the_run_which_resumes_exactly(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="the sampler of CartPole-v1 was killed by SIGKILL"):
        rl_training.train(settings(tmp_path), callbacks=[KillSampler()])
    (run_dir,) = tmp_path.iterdir()
    assert_resumes_exactly(run_dir, tmp_path / "whole", step=64)


def policy(run_dir: Path) -> dict[str, bytes]:
    metadata = json.loads((run_dir / "metadata.json").read_text())
    state = read_checkpoint(run_dir / metadata["latest_checkpoint"]).state
    return {name: value.numpy().tobytes() for name, value in state["policy"].items()}


def assert_resumes_exactly(run_dir: Path, elsewhere: Path, step: int | None = None, **how: Any) -> None:
    metadata = json.loads((run_dir / "metadata.json").read_text())
    saved = int(metadata["latest_checkpoint"].rpartition("_")[2])
    assert step is None or saved == step
    resumed = rl_training.resume(run_dir, callbacks=StepBudget(96))
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["resumes"][-1]["grade"] == "exact"
    whole = rl_training.train(settings(elsewhere, **how), callbacks=StepBudget(saved + 96))
    assert whole.metrics["global_step"] == resumed.metrics["global_step"]
    assert policy(whole.run_dir) == policy(run_dir)


SCRIPT = """
import json, signal, sys, torch, rl_training
torch.set_num_threads(1)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup

class Say(rl_training.Callback):
    def on_update(self, trainer):
        print(trainer.global_step, flush=True)

print(rl_training.train(json.loads(sys.argv[1]), callbacks=[Say()]).status, flush=True)
"""


def start(config: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().isdigit() and int(line) >= 64:
            return process
    pytest.fail(f"the process ended: {process.stderr.read() if process.stderr else ''}")


@pytest.mark.parametrize(
    ("collection", "backend", "number"),
    [
        ("pipelined", "sync", signal.SIGTERM),
        ("pipelined", "async", signal.SIGTERM),
        ("serial", "async", signal.SIGUSR1),
        ("serial", "async", signal.SIGHUP),
    ],
)
def test_a_signal_to_the_whole_group_stops_a_run_that_resumes_exactly(
    collection: str, backend: str, number: signal.Signals, tmp_path: Path
) -> None:
    """As `timeout`, clusters and a closed terminal send it: children leave it to their parent."""
    how = {"collection": collection, "env": {"backend": backend}}
    process = start(settings(tmp_path, **how))
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split()[-1] == "interrupted"
    (run_dir,) = tmp_path.iterdir()
    assert_resumes_exactly(run_dir, tmp_path / "whole", **how)


def test_a_killed_learner_leaves_nothing_behind_but_a_run_that_resumes_exactly(tmp_path: Path) -> None:
    process = start(settings(tmp_path, env={"backend": "async"}))
    (sampler,) = children_of(process.pid)
    workers = children_of(sampler)
    assert len(workers) == 2
    os.kill(sampler, signal.SIGSTOP)  # it could not end by itself
    process.kill()
    process.communicate()
    assert soon(lambda: not any(map(alive, (sampler, *workers)))), "the sampler or its workers live on"
    assert not shared_memory((process.pid, sampler, *workers))
    (run_dir,) = tmp_path.iterdir()
    assert_resumes_exactly(run_dir, tmp_path / "whole")


class AskSampler(rl_training.Callback):
    def on_update(self, trainer: Any) -> None:
        trainer.envs.episode_seeds  # noqa: B018 - asking is enough


def test_a_sampler_that_is_collecting_cannot_be_asked_for_anything_else(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="the sampler of CartPole-v1 is collecting"):
        rl_training.train(settings(tmp_path), callbacks=[AskSampler()])


def train_in_pool(config: dict[str, Any]) -> str:
    try:
        return rl_training.train(config).status
    except EnvError as error:
        return str(error)


@pytest.mark.parametrize(
    "how",
    [
        {"collection": "pipelined"},
        {"collection": "serial", "env": {"backend": "async"}},
        {"collection": "serial", "learners": 2},
    ],
)
def test_a_daemonic_process_says_that_it_may_have_no_children(how: dict[str, Any], tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        told = pool.apply_async(train_in_pool, (settings(tmp_path, **how),)).get(300)
    assert "cannot be started from a daemonic process" in told
    assert "collection: serial, learners: 1 and a backend other than async" in told
    assert list(tmp_path.iterdir()) == []
