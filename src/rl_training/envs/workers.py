"""A process an env: arrays in shared memory, commands over pipes, and a watchdog over every answer."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.envs.backends import Env, EnvFn, render_env, strip_time_limit
from rl_training.envs.spaces import leaf_spaces
from rl_training.errors import AxiomError, EnvError, MissingExtraError
from rl_training.types import Spec

if TYPE_CHECKING:
    from rl_training.types import Array, Obs

_CLOSE_SECONDS = 2.0
_TRACEBACK_LINES = 12


class SharedArrays:
    """All that workers and parent exchange at every step; the same memory in every process."""

    def __init__(self, context: Any, spec: Spec, num_envs: int) -> None:
        actions = spec.action_space
        layout: dict[str, tuple[Any, Any]] = {
            "actions": (actions.shape, actions.dtype),
            "rewards": ((), np.float64),
            "terminated": ((), np.bool_),
            "truncated": ((), np.bool_),
        }
        self._obs_keys = list(leaf_spaces(spec.observation_space))
        for key, space in leaf_spaces(spec.observation_space).items():
            layout[f"obs/{key}"] = (space.shape, space.dtype)
        self._blocks = {
            name: _Block(context, (num_envs, *(shape or ())), dtype)
            for name, (shape, dtype) in layout.items()
        }

    def array(self, name: str) -> Array:
        """One array, a row an env."""
        return self._blocks[name].array()

    def obs(self) -> Obs:
        """The observation, as the space has it."""
        if self._obs_keys == [""]:
            return self.array("obs/")
        return {key: self.array(f"obs/{key}") for key in self._obs_keys}


class _Block:
    """A piece of shared memory that can be handed to a process whatever way it is started."""

    def __init__(self, context: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._memory = context.RawArray("b", int(np.prod(shape)) * self._dtype.itemsize)

    def array(self) -> Array:
        return np.frombuffer(self._memory, dtype=self._dtype).reshape(self._shape)


class AsyncBackend:
    """Every env in a process of its own. One that raises, dies or hangs ends them all with an `EnvError`."""

    name: ClassVar[str] = "async"
    replays: ClassVar[bool] = True

    def __init__(self, env_fns: Sequence[EnvFn], spec: Spec, env_id: str, timeout: float) -> None:
        self.env_id, self.timeout = env_id, timeout
        self._everyone = range(len(env_fns))
        self._seeds: list[int | None] = [None] * len(env_fns)
        context = _context()
        shared = SharedArrays(context, spec, len(env_fns))
        self.obs = shared.obs()
        self.rewards, self._actions = shared.array("rewards"), shared.array("actions")
        self.terminated, self.truncated = shared.array("terminated"), shared.array("truncated")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._waiting = False
        weakref.finalize(self, _kill, self._processes, os.getpid())
        try:
            for i, make in enumerate(env_fns):
                self._start(context, i, make, shared)
            self._answers(self._everyone, "make")
        except BaseException:
            _kill(self._processes)
            raise

    def _start(self, context: Any, index: int, make: EnvFn, shared: SharedArrays) -> None:
        ours, theirs = context.Pipe()
        self._pipes.append(ours)
        forks = context.get_start_method() == "fork"
        process = context.Process(
            target=_work,
            name=f"env-worker-{index}",
            args=(
                index,
                make if forks else CloudpickleWrapper(make),
                theirs,
                shared,
                self.env_id,
                # A forked worker inherits these, and while it holds them nobody sees the parent's end close.
                list(self._pipes) if forks else [],
                os.getpid() if forks and threading.current_thread() is threading.main_thread() else None,
            ),
            daemon=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # "fork in a multi-threaded process": see _context
            process.start()
        theirs.close()
        self._processes.append(process)

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin a new episode in some envs, all at the same time."""
        for i, seed in zip(indices, seeds, strict=True):
            self._seeds[i] = seed
        self._ask(indices, "reset", seeds)

    def step(self, actions: Array, indices: Sequence[int] | None = None) -> None:
        """Step all envs at the same time, or only some."""
        self._actions[...] = actions
        self._ask(self._everyone if indices is None else indices, "step")

    def render(self) -> list[Any]:
        """One frame an env."""
        return self._ask(self._everyone, "render")

    def _ask(self, indices: Sequence[int], command: str, payloads: Sequence[Any] | None = None) -> list[Any]:
        self._waiting = True
        for k, i in enumerate(indices):
            try:
                self._pipes[i].send((command, None if payloads is None else payloads[k]))
            except OSError:
                self._fail(i, command, self._death(i))
        answers = self._answers(indices, command)
        self._waiting = False
        return answers

    def _answers(self, indices: Sequence[int], command: str) -> list[Any]:
        deadline = time.monotonic() + self.timeout
        answers = []
        for i in indices:
            try:
                if not self._pipes[i].poll(max(0.0, deadline - time.monotonic())):
                    self._fail(i, command, f"did not answer within {self.timeout:g} s (env.worker_timeout)")
                kind, payload = self._pipes[i].recv()
            except (EOFError, OSError):
                self._fail(i, command, self._death(i))
            if kind == "missing":
                _kill(self._processes)
                raise MissingExtraError(*payload)
            if kind == "error":
                self._fail(i, command, f"raised\n{payload}")
            answers.append(payload)
        return answers

    def _death(self, i: int) -> str:
        self._processes[i].join(_CLOSE_SECONDS)
        code = self._processes[i].exitcode
        if code is None:
            return "closed its pipe"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"died with exit code {code}"

    def _fail(self, i: int, command: str, what: str) -> NoReturn:
        _kill(self._processes)
        episode = "before its first episode" if self._seeds[i] is None else f"episode seed {self._seeds[i]}"
        raise EnvError(f"env worker {i} ({self.env_id}, {episode}): {command}() {what}")

    def close(self) -> None:
        """Ask the workers to close their envs, and end those that do not."""
        for pipe in self._pipes if not self._waiting else []:
            try:
                pipe.send(("close", None))
            except OSError:
                continue
        deadline = time.monotonic() + (0.0 if self._waiting else _CLOSE_SECONDS)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        _kill(self._processes)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []


def _context() -> Any:
    """Fork where that is the custom: workers then know the user's functions and envs, without a main guard.

    What makes forking dangerous (thread pools and CUDA in use by the child) does not happen in a worker.
    """
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


def _kill(processes: Sequence[BaseProcess], owner: int | None = None) -> None:
    if owner not in (None, os.getpid()):
        return  # a forked copy of the backend is being forgotten: the workers are not its own
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join(_CLOSE_SECONDS)


def _work(
    index: int,
    make: EnvFn,
    pipe: Connection,
    shared: SharedArrays,
    env_id: str,
    inherited: Sequence[Connection],
    parent: int | None,
) -> None:
    """The life of a worker: make the env, then answer commands until told to close or left alone."""
    for connection in inherited:
        connection.close()
    _settle_down(parent)
    env: Env | None = None
    try:
        env = make()
        worker = _Worker(env, index, shared, env_id)
        pipe.send(("done", None))
        while (message := pipe.recv())[0] != "close":
            pipe.send(("done", worker.answer(*message)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    except MissingExtraError as error:
        pipe.send(("missing", (str(error).split(" needs an optional")[0], error.extra)))
    except AxiomError as error:
        pipe.send(("error", str(error)))
    except Exception:
        pipe.send(("error", "\n".join(traceback.format_exc().splitlines()[-_TRACEBACK_LINES:])))
    finally:
        if env is not None:
            env.close()


class _Worker:
    """Executes commands on one env and leaves the outcome in its row of the shared arrays."""

    def __init__(self, env: Env, index: int, shared: SharedArrays, env_id: str) -> None:
        core = strip_time_limit(env)[0]
        self._step, self._reset = core.step, core.reset
        self._render = partial(render_env, core, env_id)
        self._index = index
        self._obs, self._actions = shared.obs(), shared.array("actions")
        self._rewards = shared.array("rewards")
        self._terminated, self._truncated = shared.array("terminated"), shared.array("truncated")

    def answer(self, command: str, payload: Any) -> Any:
        """Do as told; only a rendered frame travels back through the pipe."""
        i = self._index
        if command == "step":
            action = self._actions[i].copy()  # a scalar for Discrete; the env may keep it
            obs, self._rewards[i], self._terminated[i], self._truncated[i], _ = self._step(action)
            self._store(obs)
        elif command == "reset":
            self._store(self._reset(seed=payload)[0])
        elif command == "render":
            return self._render()
        return None

    def _store(self, obs: Any) -> None:
        if isinstance(self._obs, dict):
            for key, rows in self._obs.items():
                rows[self._index] = obs[key]
        else:
            self._obs[self._index] = obs


def _settle_down(parent: int | None) -> None:
    """Leave Ctrl-C to the parent, use one thread, and do not outlive the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    if sys.platform == "linux" and parent is not None:
        # Even a worker that hangs and never looks at its pipe. The kernel ties this to the thread that
        # forked, hence only when that is the main thread.
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
