"""Child processes that answer commands: how they are started, watched, spoken to and ended.

A child never outlives its parent, whatever happens to it, and what goes wrong in a child is its last answer.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rl_training.errors import AxiomError, ConfigError, EnvError, MissingExtraError, NonFiniteError

if TYPE_CHECKING:
    from rl_training.types import Array

CLOSE_SECONDS = 2.0
"""How long a child may take to end when it was asked to."""
_TRACEBACK_LINES = 12
ALIGNMENT = 64
"""Bytes: where torch's own memory begins."""


class SharedBlock:
    """A piece of shared memory that can be handed to a process whatever way it is started.

    No name of it is left in the file system. It begins where torch's own memory would: a matrix product may
    round differently elsewhere.
    """

    def __init__(self, context: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._memory = context.RawArray("b", int(np.prod(shape)) * self._dtype.itemsize + ALIGNMENT)

    def array(self) -> Array:
        """The memory as an array, in whichever process this is asked."""
        count = int(np.prod(self._shape))
        begin = -np.frombuffer(self._memory, np.uint8).ctypes.data % ALIGNMENT
        return np.frombuffer(self._memory, self._dtype, count, begin).reshape(self._shape)


def process_context() -> Any:
    """Fork where that is the custom: children then know the user's functions and envs, without a main guard.

    What makes forking dangerous (thread pools and CUDA in use by the child) does not happen in a child.
    """
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


def forks(context: Any) -> bool:
    """Whether children are copies of their parent, so that nothing handed to them has to be pickled."""
    return bool(context.get_start_method() == "fork")


def start_process(
    context: Any,
    serve: Callable[..., None],
    args: Sequence[Any],
    *,
    name: str,
    siblings: Sequence[Connection] = (),
    daemon: bool = True,
) -> tuple[Connection, BaseProcess]:
    """A process that runs `serve(pipe, *args)`, and the other end of its pipe.

    `siblings` are the parent's ends of other pipes; only a child without children of its own is a daemon.
    """
    if multiprocessing.current_process().daemon:
        raise EnvError(
            f"the process {name!r} cannot be started from a daemonic process, such as a worker of a "
            "multiprocessing.Pool; train elsewhere, or with collection: serial, learners: 1 and a backend "
            "other than async"
        )
    ours, theirs = context.Pipe()
    # A forked child inherits these, and while it holds them nobody sees the parent's end close.
    inherited = [*siblings, ours] if forks(context) else []
    held = (serve, theirs, inherited, lifeline() if forks(context) else None, args)
    process = context.Process(target=_live, name=name, args=held, daemon=daemon)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "fork in a multi-threaded process"
        process.start()
    # At exit multiprocessing would end its daemons by SIGTERM, which these leave to their parent.
    Finalize(process, _end, (weakref.ref(process), os.getpid()), exitpriority=100)
    theirs.close()
    return ours, process


def _end(process: weakref.ref[BaseProcess], owner: int) -> None:
    if (found := process()) is not None:
        kill([found], owner)


def limit_waiting(pipe: Connection, seconds: float) -> None:
    """No read or write of a long message waits longer for a child that stops in the middle of it."""
    if sys.platform == "linux":
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6) or 1)
        with socket.socket(fileno=os.dup(pipe.fileno())) as end:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, limit)


def describe_death(process: BaseProcess) -> str:
    """How a child that does not speak any more has ended."""
    process.join(CLOSE_SECONDS)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"died with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"


def kill(processes: Sequence[BaseProcess], owner: int | None = None) -> None:
    """End processes at once, unless this is a forked copy of the process `owner` that they belong to."""
    if owner not in (None, os.getpid()):
        return
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join(CLOSE_SECONDS)


class Server(Protocol):
    """What a child does: executes commands."""

    def answer(self, command: str, payload: Any) -> Any:
        """Do as told."""

    def close(self) -> None:
        """Release everything."""


def converse(pipe: Connection, make: Callable[[], tuple[Server, Any]]) -> None:
    """The life of a child: make a server, say what there is to say about it, then answer until the end.

    Answers are `("done", value)`, or at last `("missing", (what, extra))` or `("error", (kind, text))`.
    """
    server: Server | None = None
    try:
        server, greeting = make()
        pipe.send(("done", greeting))
        while (message := pipe.recv())[0] != "close":
            pipe.send(("done", server.answer(*message)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    except MissingExtraError as error:
        pipe.send(("missing", (str(error).split(" needs an optional")[0], error.extra)))
    except AxiomError as error:
        pipe.send(("error", (type(error).__name__, str(error))))
    except Exception:
        pipe.send(("error", ("", "\n".join(traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]))))
    finally:
        if server is not None:
            server.close()


def raise_as_told(answer: Any, who: str, prefix: str = "") -> Any:
    """What a child that lives by `converse` has answered; what went wrong there is raised here."""
    kind, payload = answer
    if kind == "missing":
        raise MissingExtraError(*payload)
    if kind == "error":
        name, text = payload
        if not name:
            raise RuntimeError(f"{who} raised\n{text}")
        known = {cls.__name__: cls for cls in (EnvError, NonFiniteError, ConfigError)}
        raise known.get(name, AxiomError)(prefix + text)
    return payload


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


def _live(
    serve: Callable[..., None],
    pipe: Connection,
    inherited: Sequence[Connection],
    parents_lifeline: int | None,
    args: Sequence[Any],
) -> None:
    for connection in inherited:
        connection.close()
    _settle_down()
    if parents_lifeline is not None:
        _end_with_parent(parents_lifeline)
    serve(pipe, *args)


def _settle_down() -> None:
    """Leave signals to the parent (Ctrl-C, `timeout` and clusters send them to all), and use one thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under `nohup`
            signal.signal(number, _leave_to_parent)
            signal.siginterrupt(number, False)
    for name in ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "TORCHINDUCTOR_COMPILE"):
        os.environ[f"{name}_THREADS"] = "1"
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    compiler: Any = sys.modules.get("torch._inductor.config")
    if compiler is not None:
        compiler.compile_threads = 1  # else a forked child waits for threads that its parent alone has


def _leave_to_parent(number: int, frame: Any) -> None:
    """Nothing; but unlike `SIG_IGN` it is not inherited by the programs that an env starts."""


def _end_with_parent(parents_lifeline: int) -> None:
    """Have the kernel kill this process as soon as the parent is gone, even if it hangs or is stopped.

    Not by the parent death signal, which fires when the thread that forked ends, not the process.
    """
    if sys.platform != "linux":
        return  # the end of its command pipe ends a child that does not hang
    import fcntl

    try:
        # Opened anew: who is signalled belongs to the open file, and forked children share the inherited one.
        pipe = os.open(f"/proc/self/fd/{parents_lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        os.read(pipe, 1)
    except OSError:
        return  # nothing to read: the parent is there (or this kernel cannot do it, as on other platforms)
    os._exit(1)
