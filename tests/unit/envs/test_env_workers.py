"""Async workers that raise, die or hang give a clear error soon, and nothing is left running."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from envs_helpers import Settings

from rl_training.envs import EnvConfig, VectorEnv, episode_seed, make_vector_env
from rl_training.errors import EnvError

BAD = 1
"""The index of the worker that breaks."""
SEED = episode_seed(7, BAD, 0)


def fragile(fault: str, at: int, timeout: float = 20.0, **kwargs: Any) -> Settings:
    config = EnvConfig(backend="async", worker_timeout=timeout)
    return Settings("axiom/Fragile-v0", {"fault": fault, "at": at, "seed": SEED, **kwargs}, config)


def step(envs: VectorEnv, times: int = 1) -> None:
    for _ in range(times):
        envs.step(np.zeros(envs.num_envs, dtype=np.int64))


def start_and_step(envs: VectorEnv) -> None:
    envs.reset()
    step(envs, 2)


def children() -> list[Any]:
    return multiprocessing.active_children()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "RuntimeError: broken on command"),
        ("die", "died with exit code 7"),
        ("hang", "did not answer"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_broken_worker_is_named_and_all_are_ended(fault: str, words: str, at: int) -> None:
    envs = make_vector_env(fragile(fault, at, timeout=4.0 if fault == "hang" else 60.0), 3)
    start = time.monotonic()
    with pytest.raises(EnvError) as caught:
        start_and_step(envs)
    assert time.monotonic() - start < 30.0
    assert f"env worker {BAD} (axiom/Fragile-v0, episode seed {SEED})" in str(caught.value)
    assert words in str(caught.value)
    assert children() == []
    envs.close()


def test_traceback_of_a_worker_is_shown() -> None:
    envs = make_vector_env(fragile("raise", 1), 2)
    envs.reset()
    with pytest.raises(EnvError, match=r"fragile\.py.*line \d+, in _break"):
        step(envs)


def test_worker_killed_from_outside() -> None:
    envs = make_vector_env(fragile("none", 0), 2)
    envs.reset()
    os.kill(children()[0].pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="was killed by SIGKILL"):
        step(envs, 3)
    assert children() == []


def test_failure_while_making_an_env() -> None:
    parent = os.getpid()

    def make() -> Any:
        if os.getpid() != parent:
            raise ValueError("not here")
        return gymnasium.make("axiom/Identity-v0")

    with pytest.raises(EnvError, match=r"(?s)env worker 0 .*before its first episode.*not here"):
        make_vector_env(Settings(env=EnvConfig(backend="async")), 2, env=make)
    assert children() == []


def test_close_ends_the_workers_and_may_be_repeated() -> None:
    envs = make_vector_env(fragile("none", 0), 3)
    envs.reset()
    assert len(children()) == 3
    envs.close()
    envs.close()
    assert children() == []


def test_forgotten_vector_env_takes_its_workers_along() -> None:
    envs = make_vector_env(fragile("none", 0), 2)
    assert len(children()) == 2
    del envs
    gc.collect()
    assert children() == []


def test_close_does_not_wait_for_a_hung_worker() -> None:
    envs = make_vector_env(fragile("hang", 1, timeout=600), 2)
    envs.reset()
    thread = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    def interrupted() -> None:
        thread.start()
        step(envs)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 60.0  # worker_timeout is 600
    assert children() == []


class ThreadCount(gymnasium.Env[Any, Any]):
    """Shows how many threads torch and libraries loaded later would use."""

    observation_space = gymnasium.spaces.Box(0, 999, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array(
            [torch.get_num_threads(), float(os.environ.get("OMP_NUM_THREADS", 0))], np.float32
        ), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


def test_workers_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with make_vector_env(Settings(), 2, env=ThreadCount, backend="async") as envs:
            assert np.array(envs.reset()).tolist() == [[1, 1], [1, 1]]
    finally:
        torch.set_num_threads(before)


class Compiles(ThreadCount):
    """Shows whether what torch's compiler is told to do at some time is done by a thread that is there."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        from torch._inductor.async_compile import AsyncCompile

        found = AsyncCompile.submit(os.getpid)
        process = found if isinstance(found, int) else found.result(timeout=10.0)
        return np.array([process == os.getpid(), 0], np.float32), {}


def test_workers_compile_by_themselves_also_when_their_parent_has_compiled() -> None:
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    with config.patch(compile_threads=2):
        AsyncCompile.submit(int).result()
        with make_vector_env(Settings(), 2, env=Compiles, backend="async") as envs:
            assert np.array(envs.reset())[:, 0].tolist() == [1, 1]


def test_workers_ignore_interrupts() -> None:
    envs = make_vector_env(fragile("none", 0), 2)
    envs.reset()
    for worker in children():
        os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.1)
    step(envs, 3)
    assert len(children()) == 2
    envs.close()


ORPHANS = """
import os, sys, numpy as np
sys.path.insert(0, {here!r})
from envs_helpers import Settings
from rl_training.envs import EnvConfig, episode_seed, make_vector_env
import multiprocessing
config = EnvConfig(backend="async", worker_timeout=600)
kwargs = dict(fault="hang", at=1, seed=episode_seed(7, 0, 0))
envs = make_vector_env(Settings("axiom/Fragile-v0", kwargs, config), 3)
envs.reset()
print(*[p.pid for p in multiprocessing.active_children()], flush=True)
envs.step(np.zeros(3, dtype=np.int64))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_no_orphans_after_the_parent_is_killed() -> None:
    """One worker hangs in its step, the others wait: all go when the parent is killed the hard way."""
    code = ORPHANS.format(here=str(Path(__file__).parent))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60.0
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
