"""Kills training with SIGKILL and resumes it, many times a minute.

A server process imports everything once and forks a child for every call of `train` or `resume`; it kills the
child when it is told to, and adopts whatever the child leaves behind, so that no orphan stays unseen.
Run as a script, this file is that server.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import rl_training
from rl_training import registry
from rl_training.errors import AxiomError, CheckpointError
from rl_training.experiment.checkpoint import read_checkpoint

TIMING = {"elapsed_s", "steps_per_second"}
CLOCKS = ("time/", "sampler/")
HANGS_AFTER = 120.0
ORPHANS_DIE_WITHIN = 10.0
DONE, FAILED, NOTHING_SAVED = 0, 1, 3
AIMS = ("any", "save", "publish", "open", "end")
"""At any moment; while a checkpoint is written aside; when one has just been published; while a run is being
opened; after the final checkpoint."""


@dataclass(frozen=True)
class Kill:
    """When to kill: not before `after` seconds, then at the first sight of `aim`, then `delay` seconds on."""

    aim: str
    after: float
    delay: float

    @classmethod
    def draw(cls, rng: random.Random, duration: float) -> Kill:
        """A moment of a run that would take `duration` seconds; half of them anywhere, half at the files."""
        aim = rng.choices(AIMS, (10, 4, 3, 2, 1))[0]
        after = 0.0 if aim in ("open", "end") else rng.uniform(0, 0.9 * duration)
        delays = {"any": 0.0, "save": 0.015, "publish": 0.01, "open": 0.03, "end": 0.01}
        return cls(aim, after, rng.uniform(0, delays[aim]))


@dataclass(frozen=True)
class Outcome:
    """What became of a child: its exit code (-9 when killed) and processes that would not die after it."""

    pid: int
    code: int
    orphans: tuple[int, ...] = ()


@dataclass
class Figures:
    """What a series of killed runs came to."""

    case: str
    runs: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(AIMS, 0))
    failures: list[str] = field(default_factory=list)


class Server:
    """The test's end of the server process."""

    def __init__(self, scratch: Path) -> None:
        self.temporary = scratch / "temporary"
        self.temporary.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )

    def call(
        self, name: str, argument: Any, log: Path, config: Mapping[str, Any], kill: Kill | None
    ) -> Outcome:
        """Run `rl_training.<name>(argument)` in a process of its own, which may be killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"call": name, "argument": argument, "log": str(log), "config": config}
        request["kill"] = None if kill is None else asdict(kill)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the server has died"
        reply = json.loads(line)
        return Outcome(reply["pid"], reply["code"], tuple(reply["orphans"]))

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(HANGS_AFTER)


class KilledRun:
    """One run, killed and resumed until it is complete."""

    def __init__(self, server: Server, config: Mapping[str, Any], folder: Path, rng: random.Random) -> None:
        self.server, self.config, self.folder, self.rng = server, dict(config), folder, rng
        self.output = folder / "runs"
        self.config["output_dir"] = str(self.output)
        self.attempts = 0
        self.kills: list[Kill] = []
        self.problems: list[str] = []

    def complete(self, kills: int, duration: float) -> None:
        """Train; kill up to so many times; go on after each."""
        self.folder.mkdir(parents=True)
        for _ in range(kills):
            left = duration * (1 - self.step / self.config["total_timesteps"])
            if self._attempt(Kill.draw(self.rng, left)) is not None:
                return
        while self._attempt(None) is None:  # nothing had been saved: once more, from the start
            pass

    def _attempt(self, kill: Kill | None) -> bool | None:
        """One process: True when the run is complete, False when something is wrong, None to go on."""
        self.attempts += 1
        run_dir = self.run_dir
        log = self.folder / f"{self.attempts}.log"
        if run_dir is None:
            outcome = self.server.call("train", self.config, log, self.config, kill)
        else:
            shutil.copytree(run_dir, self.folder / f"before_{self.attempts}")  # the evidence, if it fails
            outcome = self.server.call("resume", str(run_dir), log, self.config, kill)
        self._look_around(outcome)
        if outcome.code == -signal.SIGKILL and kill is not None:
            self.kills.append(kill)
            self._verify_published()
            return True if self._is_complete() else None
        if outcome.code == NOTHING_SAVED:
            shutil.rmtree(self.output)
            return None
        if outcome.code != DONE:
            self.problems.append(f"attempt {self.attempts} ended with {outcome.code}: {_tail(log)}")
        return outcome.code == DONE

    @property
    def run_dir(self) -> Path | None:
        """The run directory, if there is one yet."""
        found = list(self.output.iterdir()) if self.output.exists() else []
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def step(self) -> int:
        """The step of the newest checkpoint."""
        names = [p.name.removeprefix("step_") for p in self.output.glob("*/checkpoints/step_*")]
        return max(map(int, names), default=0)

    def _verify_published(self) -> None:
        """Whatever has the name of a checkpoint is a whole one: no kill makes a fallback necessary."""
        for path in self.output.glob("*/checkpoints/step_*"):
            try:
                read_checkpoint(path)
            except AxiomError as error:
                self.problems.append(f"attempt {self.attempts} left a damaged checkpoint: {error}")

    def _is_complete(self) -> bool:
        """Did the process still write that the run had ended?"""
        return any(
            _metadata(path.parent)["status"] == "completed" for path in self.output.glob("*/metadata.json")
        )

    def _look_around(self, outcome: Outcome) -> None:
        """No process and no shared memory may outlive the one that was killed."""
        if outcome.orphans:
            self.problems.append(f"attempt {self.attempts} left processes behind: {outcome.orphans}")
        left = [*Path("/dev/shm").glob(f"pym-{outcome.pid}-*"), *self.server.temporary.glob("pymp-*")]
        if left:
            self.problems.append(f"attempt {self.attempts} left {left} behind")

    def describe(self) -> str:
        """The kills, for whoever has to find out what went wrong."""
        moments = ", ".join(f"{k.aim} after {k.after:.3f} s + {1000 * k.delay:.1f} ms" for k in self.kills)
        return f"{self.folder} (killed: {moments}): " + "; ".join(self.problems)


def differences(expected: Path, actual: Path) -> Iterator[str]:
    """Where a finished run differs from another that it should equal, apart from the clock."""
    ours, theirs = _metadata(expected), _metadata(actual)
    for key in ("status", "stop_reason", "latest_checkpoint", "best_checkpoint", "resume_grade"):
        if ours[key] != theirs[key]:
            yield f"metadata {key}: {ours[key]!r} ≠ {theirs[key]!r}"
    for record in theirs["resumes"]:
        if record["grade"] != "exact":
            yield f"resume at {record['step']}: {record['grade']}, {record['reason']}"
    names = [sorted(p.name for p in (run / "checkpoints").iterdir()) for run in (expected, actual)]
    if names[0] != names[1]:
        yield f"checkpoints: {names[0]} ≠ {names[1]}"
    if leftovers := [p.name for p in actual.iterdir() if p.name.endswith(".tmp")]:
        yield f"leftovers: {leftovers}"
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        yield from _tree_differences(_rows(expected / name), _rows(actual / name), name)
    for which in ("latest", "best"):
        yield from _tree_differences(_state(expected, which), _state(actual, which), which)


def _metadata(run_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return data


def _rows(path: Path) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING and not k.startswith(CLOCKS)} for row in parsed]


def _state(run_dir: Path, which: str) -> dict[str, Any]:
    pointed = _metadata(run_dir)[f"{which}_checkpoint"]
    state = read_checkpoint(run_dir / pointed).state if pointed else {}
    return {name: part for name, part in state.items() if name != "clock"}


def _tree_differences(first: Any, second: Any, where: str) -> Iterator[str]:
    """Every leaf in which two trees differ, bit for bit."""
    if type(first) is not type(second):
        yield f"{where}: {type(first).__name__} ≠ {type(second).__name__}"
    elif isinstance(first, dict):
        if first.keys() != second.keys():
            yield f"{where}: {list(first)} ≠ {list(second)}"
        for key in first.keys() & second.keys():
            yield from _tree_differences(first[key], second[key], f"{where}/{key}")
    elif isinstance(first, list | tuple):
        if len(first) != len(second):
            yield f"{where}: {len(first)} ≠ {len(second)} entries"
        for i, (a, b) in enumerate(zip(first, second, strict=False)):
            yield from _tree_differences(a, b, f"{where}/{i}")
    elif isinstance(first, torch.Tensor | np.ndarray):
        a, b = np.asarray(first), np.asarray(second)
        if (a.shape, a.dtype, a.tobytes()) != (b.shape, b.dtype, b.tobytes()):
            yield f"{where}: the arrays differ"
    elif repr(first) != repr(second):  # as text: every bit of a float counts, and NaN equals itself
        yield f"{where}: {first!r} ≠ {second!r}"


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else "no output"


# What follows runs in the server.


def serve() -> None:
    """Answer requests, a line each, until the test is gone."""
    torch.set_num_threads(1)
    # Import now, rather than in every child, all that training needs.
    registry.algorithms()
    rl_training.train  # noqa: B018
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    warm: set[str] = set()
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
    for line in sys.stdin:
        request = json.loads(line)
        config = request["config"]
        if config["env_id"] not in warm:
            gymnasium.make(config["env_id"]).close()
            warm.add(config["env_id"])
        pid = os.fork()
        if pid == 0:
            _be_the_child(request)
        code = _watch(pid, request["kill"], Path(config["output_dir"]), config["total_timesteps"])
        reply = {"pid": pid, "code": code, "orphans": _orphans()}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _be_the_child(request: Mapping[str, Any]) -> None:
    """Train or resume, with all output in the log, and end without returning."""
    code = FAILED
    try:
        _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test that is given up leaves nothing running
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = _train_or_resume(request["call"], request["argument"])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _train_or_resume(call: str, argument: Any) -> int:
    try:
        getattr(rl_training, call)(argument)
    except CheckpointError:
        if call == "resume" and not list(Path(argument, "checkpoints").glob("step_*")):
            return NOTHING_SAVED
        raise
    return DONE


def _watch(pid: int, kill: Mapping[str, Any] | None, watched: Path, total: int) -> int:
    """Wait for a child, kill it if and when that is asked for, and return how it ended."""
    begun = time.monotonic()
    kill_at = begun + HANGS_AFTER
    before: Sight | None = None
    while True:
        now = time.monotonic()
        if kill is not None and now - begun >= kill["after"]:
            seen = _look(watched)
            before = before or seen
            if _is_aimed(kill["aim"], before, seen, total):
                kill, kill_at = None, now + kill["delay"]
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if now >= kill_at:
            os.kill(pid, signal.SIGKILL)  # not reaped yet: the number is still its own
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.0005)


@dataclass(frozen=True)
class Sight:
    """What of a run can be seen from outside."""

    hidden: bool = False
    steps: frozenset[int] = frozenset()
    metadata: tuple[int, int] | None = None


def _look(watched: Path) -> Sight:
    """Look at the one run in a folder, which may be changing right now."""
    try:
        run_dir = next(watched.iterdir())
        names = os.listdir(run_dir / "checkpoints")
        stat = (run_dir / "metadata.json").stat()
    except (OSError, StopIteration):
        return Sight()
    steps = frozenset(int(n.removeprefix("step_")) for n in names if n.startswith("step_"))
    hidden = any(n.startswith(".step_") for n in names)
    return Sight(hidden, steps, (stat.st_ino, stat.st_mtime_ns))


def _is_aimed(aim: str, before: Sight, now: Sight, total: int) -> bool:
    match aim:
        case "save":
            return now.hidden
        case "publish":
            return bool(now.steps - before.steps)
        case "open":
            return now.metadata != before.metadata
        case "end":
            return any(step >= total for step in now.steps)
    return True


def _orphans() -> list[int]:
    """Processes that the child left behind and that do not end soon; they are ended then."""
    deadline = time.monotonic() + ORPHANS_DIE_WITHIN
    while left := _children():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        if time.monotonic() >= deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return left
        time.sleep(0.001)
    return []


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    serve()
