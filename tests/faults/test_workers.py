"""Env workers that are killed, stopped, raise, exit or crash: a clear error in time, and nothing left behind.

Two trials each in the normal suite, twenty with `--full`; every trial has its own moment and its own victim.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from watching import alive, children_of, shared_memory, soon

from rl_training.envs import EnvConfig, VectorEnv, episode_seed, make_vector_env
from rl_training.envs.processes import process_context, start_process
from rl_training.errors import EnvError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc and /dev/shm")

TRIALS = [trial if trial < 2 else pytest.param(trial, marks=pytest.mark.full) for trial in range(20)]
TIMEOUT = 4.0
"""Seconds that a worker gets to answer where it is meant not to; 20 elsewhere, for busy machines."""
NUM_ENVS = 3

FROM_INSIDE = {
    "raise": r"step\(\) raised\n.*fragile\.py.*RuntimeError: broken on command",
    "die": r"step\(\) died with exit code 7",
    "segfault": r"step\(\) was killed by SIGSEGV",
    "hang": r"step\(\) did not answer within 4 s",
    "stop": r"step\(\) did not answer within 4 s",
}
FROM_OUTSIDE = {
    signal.SIGKILL: "was killed by SIGKILL",
    signal.SIGSTOP: "did not answer within 4 s",
}


@dataclass(frozen=True)
class Settings:
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    env_id: str = "axiom/Fragile-v0"
    seed: int = 11


def silent(fault: object) -> bool:
    return fault in ("hang", "stop", signal.SIGSTOP)


def make(fault: str, at: int, victim: int, timeout: float, restarts: int = 0) -> VectorEnv:
    config = EnvConfig(backend="async", worker_timeout=timeout, max_worker_restarts=restarts)
    kwargs = {"fault": fault, "at": at, "seed": episode_seed(11, victim, 0)}
    return make_vector_env(Settings(kwargs, config), NUM_ENVS)


def step(envs: VectorEnv, times: int) -> None:
    for _ in range(times):
        envs.step(np.zeros(NUM_ENVS, dtype=np.int64))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each trial: no process, no shared memory and no open file more than before."""
    make("none", 0, 0, 20.0).close()  # what is made once and kept (a pipe) is there already
    children = children_of(os.getpid())
    files = len(os.listdir("/proc/self/fd"))
    yield
    assert multiprocessing.active_children() == []
    assert set(children_of(os.getpid())) <= set(children)
    assert not shared_memory([os.getpid()])
    assert len(os.listdir("/proc/self/fd")) <= files


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("fault", FROM_INSIDE)
def test_a_worker_that_breaks_by_itself(fault: str, trial: int, report: Any) -> None:
    rng = np.random.default_rng([trial, *fault.encode()])
    victim, at = int(rng.integers(NUM_ENVS)), int(rng.integers(1, 12))
    envs = make(fault, at, victim, TIMEOUT if silent(fault) else 20.0)
    envs.reset()
    step(envs, at - 1)
    start = time.monotonic()
    who = rf"env worker {victim} \(axiom/Fragile-v0, episode seed {episode_seed(11, victim, 0)}\): "
    with pytest.raises(EnvError, match="(?s)" + who + FROM_INSIDE[fault]):
        step(envs, 1)
    assert time.monotonic() - start < TIMEOUT + 15.0
    assert multiprocessing.active_children() == []  # before anyone has called close()
    envs.close()
    report("worker breaks by itself", fault)


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("number", FROM_OUTSIDE)
def test_a_worker_that_is_hit_by_a_signal_at_any_moment(
    number: signal.Signals, trial: int, report: Any
) -> None:
    rng = np.random.default_rng([trial, number])
    victim = int(rng.integers(NUM_ENVS))
    envs = make("none", 0, victim, TIMEOUT if silent(number) else 20.0)
    envs.reset()
    (pid,) = [p.pid for p in multiprocessing.active_children() if p.name == f"env-worker-{victim}"]
    assert pid is not None
    threading.Timer(float(rng.uniform(0.0, 0.05)), os.kill, (pid, number)).start()
    start = time.monotonic()
    with pytest.raises(
        EnvError, match=rf"(?s)env worker {victim} .*episode seed \d+.*{FROM_OUTSIDE[number]}"
    ):
        step(envs, 10**9)
    assert time.monotonic() - start < TIMEOUT + 15.0
    envs.close()
    report("worker hit by a signal", number.name)


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("number", FROM_OUTSIDE)
def test_a_worker_that_is_hit_by_a_signal_and_replaced(
    number: signal.Signals, trial: int, report: Any
) -> None:
    rng = np.random.default_rng([trial, number, 1])
    victim = int(rng.integers(NUM_ENVS))
    with make("none", 0, victim, TIMEOUT if silent(number) else 20.0, restarts=1) as envs:
        envs.reset()
        (pid,) = [p.pid for p in multiprocessing.active_children() if p.name == f"env-worker-{victim}"]
        assert pid is not None
        threading.Timer(float(rng.uniform(0.0, 0.05)), os.kill, (pid, number)).start()
        with pytest.warns(RuntimeWarning, match=rf"(?s)env worker {victim} .*{FROM_OUTSIDE[number]}"):
            step_until_replaced(envs)
        step(envs, 50)
        assert len(multiprocessing.active_children()) == NUM_ENVS
        assert envs.state_dict()["worker_restarts"] == 1
        assert envs.resume_grade[0] == "exact"
    report("worker hit by a signal and replaced", number.name)


def step_until_replaced(envs: VectorEnv) -> None:
    while envs.state_dict()["worker_restarts"] == 0:
        step(envs, 1)


PARENT = """
import os, sys, threading, time
import numpy as np
import multiprocessing, signal
from rl_training.envs import EnvConfig, episode_seed, make_vector_env

state, thread = sys.argv[1:]

class Settings:
    env_id, seed = "axiom/Fragile-v0", 11
    env_kwargs = dict(fault="hang" if state == "hang" else "none", at=1, seed=episode_seed(11, 0, 0))
    env = EnvConfig(backend="async", worker_timeout=600)

made = []
def make():
    made.append(make_vector_env(Settings(), 3))
    made.append(make_vector_env(Settings(), 2, seed=12))  # an evaluation beside the training
maker = threading.Thread(target=make)
if thread == "main":
    make()
else:
    maker.start()
    maker.join()
for envs in made:
    envs.reset()
time.sleep(0.1)  # would a worker die with the thread that made it, it would show now
if state == "stop":
    for worker in multiprocessing.active_children()[:2]:
        os.kill(worker.pid, signal.SIGSTOP)
print("ready", flush=True)
if state == "busy":
    while True:
        for envs in made:
            envs.step(np.zeros(envs.num_envs, dtype=np.int64))
if state == "hang":
    made[0].step(np.zeros(3, dtype=np.int64))
time.sleep(600)
"""


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("state", ["idle", "busy", "hang", "stop"])
def test_workers_end_when_their_parent_is_killed(state: str, thread: str, trial: int, report: Any) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state, thread], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        time.sleep(float(np.random.default_rng(trial).uniform(0.0, 0.3)))
        workers = children_of(parent.pid)
        assert len(workers) == 5  # and no helper process of multiprocessing's
        assert all(map(alive, workers))
    finally:
        parent.kill()
        parent.communicate()
    assert soon(lambda: not any(map(alive, workers)))
    assert not shared_memory((parent.pid, *workers))
    report("parent killed, workers end", f"workers {state}, made in the {thread} thread")


FORGETFUL = """
import weakref

class Thing: ...
thing = Thing()
weakref.finalize(thing, print, "ended")  # so what weakref does at exit comes after what multiprocessing does

from types import SimpleNamespace
from rl_training.envs import EnvConfig, make_vector_env
settings = SimpleNamespace(env_kwargs={}, env=EnvConfig(backend="async"), env_id="CartPole-v1", seed=1)
envs = make_vector_env(settings, 2)
envs.reset()
"""


def test_a_program_that_forgets_its_workers_ends_all_the_same() -> None:
    """Workers leave SIGTERM, by which multiprocessing would end them at exit, to their parent."""
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_what_an_env_starts_can_be_ended() -> None:
    """Workers leave signals to their parent; the programs that they start do not inherit that."""

    def serve(pipe: Any) -> None:
        code = "import time; print('up', flush=True); time.sleep(60)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            program.stdout.readline()
            os.kill(os.getpid(), signal.SIGTERM)
            program.terminate()
            pipe.send(program.wait(20))

    pipe, process = start_process(process_context(), serve, (), name="with a program")
    assert pipe.poll(30)
    assert pipe.recv() == -signal.SIGTERM
    process.join(20)
    assert process.exitcode == 0
