"""The other side of `workers`: a process that plays one env, and what it shares with its parent."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.envs import direct_state
from rl_training.envs.backends import Env, EnvFn, render_env, strip_time_limit
from rl_training.envs.spaces import leaf_spaces
from rl_training.errors import AxiomError, MissingExtraError
from rl_training.types import IS_SUCCESS, Spec

if TYPE_CHECKING:
    from rl_training.types import Array, Obs

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
            "success": ((), np.float32),
            "life_lost": ((), np.bool_),
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


_lifeline: tuple[int, int] | None = None


def lifeline() -> int:
    """The read end of a pipe whose other end closes when this process ends, in whatever way."""
    global _lifeline
    if _lifeline is None:
        _lifeline = os.pipe()
    return _lifeline[0]


def _let_go() -> None:
    """In a forked child: only the parent itself may keep the pipe open."""
    global _lifeline
    if _lifeline is not None:
        os.close(_lifeline[1])
        _lifeline = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def work(
    index: int,
    make: EnvFn,
    pipe: Connection,
    shared: SharedArrays,
    env_id: str,
    inherited: Sequence[Connection],
    parents_lifeline: int | None,
) -> None:
    """The life of a worker: make the env, then answer commands until told to close or left alone."""
    for connection in inherited:
        connection.close()
    _settle_down()
    if parents_lifeline is not None:
        _end_with_parent(parents_lifeline)
    env: Env | None = None
    try:
        env = make()
        worker = _Worker(env, index, shared, env_id)
        pipe.send(("done", direct_state.is_known(worker.env)))
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
        self.env = strip_time_limit(env)[0]
        self._step, self._reset = self.env.step, self.env.reset
        self._render = partial(render_env, self.env, env_id)
        self._index = index
        self._obs, self._actions = shared.obs(), shared.array("actions")
        self._rewards = shared.array("rewards")
        self._terminated, self._truncated = shared.array("terminated"), shared.array("truncated")
        self._success = shared.array("success")
        self._life_lost = shared.array("life_lost") if hasattr(self.env, "life_lost") else None

    def answer(self, command: str, payload: Any) -> Any:
        """Do as told; only frames and states travel through the pipe."""
        i = self._index
        if command == "step":
            action = self._actions[i].copy()  # a scalar for Discrete; the env may keep it
            obs, self._rewards[i], self._terminated[i], self._truncated[i], info = self._step(action)
            self._success[i] = info.get(IS_SUCCESS, np.nan)
            self._store(obs)
            if self._life_lost is not None:
                self._life_lost[i] = self.env.life_lost  # type: ignore[attr-defined]
        elif command == "reset":
            self._store(self._reset(seed=payload)[0])
        elif command == "render":
            return self._render()
        elif command == "capture":
            return direct_state.capture(self.env)
        elif command == "restore":
            return direct_state.restore(self.env, payload)
        return None

    def _store(self, obs: Any) -> None:
        if isinstance(self._obs, dict):
            for key, rows in self._obs.items():
                rows[self._index] = obs[key]
        else:
            self._obs[self._index] = obs


def _settle_down() -> None:
    """Leave Ctrl-C to the parent, and use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def _end_with_parent(parents_lifeline: int) -> None:
    """Have the kernel kill this process as soon as the parent is gone, even if it hangs or is stopped.

    Not by the parent death signal, which fires when the thread that forked ends, not the process.
    """
    if sys.platform != "linux":
        return  # the end of its command pipe ends a worker that does not hang
    import fcntl

    try:
        # Opened anew: who is signalled belongs to the open file, and forked workers share the inherited one.
        pipe = os.open(f"/proc/self/fd/{parents_lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        os.read(pipe, 1)
    except OSError:
        return  # nothing to read: the parent is there (or this kernel cannot do it, as on other platforms)
    os._exit(1)
