"""The one place where updates become fast: as they are, compiled, or captured as CUDA graphs.

`decide` says how, from what is known before the first update; `Updates` does it and, where it cannot be done,
takes updates as they are and says why. Algorithms know nothing of it beyond what `Algorithm` asks of all of
them. A run is computed in the same way from its first update to its last, also across a resume.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.runtime import recorded
from rl_training.runtime.device import find_compiler, hand_back_memory
from rl_training.runtime.products import quicker
from rl_training.runtime.tracing import CompileRun, Uncapturable
from rl_training.types import Batch, UpdateResult

Mode = Literal["eager", "compiled", "captured", "compiled and captured"]
Update = Callable[[Batch], UpdateResult]
T = TypeVar("T")

SECONDS_TO_COMPILE = {"cpu": (15.0, 15.0), "cuda": (5.0, 10.0)}
"""What compiling takes, about: at all, and for each kind of update. Less where torch finds it on disk."""
SECONDS_SAVED = {"cpu": (3e-4, 1.4e-9), "cuda": (5e-5, 0.0)}
"""What each update then takes less: for itself, and for each unit of the networks and sample of the batch.
On the low side of what PPO, DQN, SAC and TD3 save (`benchmarks/gpu_updates.py`, and with `--cpu`)."""
WORTH_IT = 2.0
"""How many times over compiling must be repaid before it is chosen."""
RARE = 0.04
"""Kinds of updates that make up less than this are not worth compiling."""
MAX_RECORDINGS = 8
"""Beyond so many, shapes change all the time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How much there is to do in a run."""

    updates: int
    batch: int
    """Samples an update learns from."""
    units: int = 0
    """Numbers that the networks compute for a sample, about."""
    kinds: int = 1
    """Kinds of updates that would be compiled."""
    images: bool = False
    """Whether most of it are convolutions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How updates are to be computed, and why."""

    mode: Mode
    reason: str


def plan_for(algorithm: Algorithm, setting: str, work: Workload) -> Plan:
    """What a setting means for an algorithm's updates on this machine."""
    images = any(parameter.ndim == 4 for parameter in _parameters(algorithm))
    work = replace(work, units=units(algorithm), kinds=len(common_kinds(algorithm)), images=images)
    device, compiler = algorithm.context.device.type, find_compiler()
    plan = decide(setting, device, work, compiler=compiler, eager_only=algorithm.eager_only)
    if setting == "on" and compiler is None and not algorithm.eager_only:
        warnings.warn(f"compile: on, but updates are {plan.mode}: {plan.reason}", stacklevel=2)
    return plan


def decide(setting: str, device: str, work: Workload, *, compiler: str | None, eager_only: str = "") -> Plan:
    """What `compile: auto | on | off` means for a run. `compiler` is None where there is none."""
    if setting == "off":
        return Plan("eager", "compile: off")
    if eager_only:
        return Plan("eager", eager_only)
    once, each_kind = SECONDS_TO_COMPILE[device]
    each, each_unit = SECONDS_SAVED[device]
    cost = once + each_kind * work.kinds
    gain = work.updates * (each + each_unit * work.batch * work.units)
    estimate = f"compiling takes about {cost:.0f} s and would save about {gain:.0f} s"
    if compiler is None:
        compiles, why = False, "no C++ compiler was found (g++, clang++ or $CXX)"
    elif setting == "on":
        compiles, why = True, "compile: on"
    elif work.images and device == "cpu":
        compiles, why = False, "compiled, convolutions are no faster on a CPU"
    else:
        compiles, why = gain >= WORTH_IT * cost, estimate
    if device == "cuda":
        return Plan("compiled and captured" if compiles else "captured", why)
    return Plan("compiled" if compiles else "eager", why)


def possible_modes(device: str, *, compiler: str | None) -> list[Mode]:
    """What a device could do."""
    modes: list[Mode] = [mode for mode in get_args(Mode) if compiler or not mode.startswith("compiled")]
    return [mode for mode in modes if mode == "eager" or mode.endswith("captured") == (device == "cuda")]


def units(algorithm: Algorithm) -> int:
    """How many numbers its networks compute for a sample: about as many as they have biases."""
    return sum(p.numel() for p in _parameters(algorithm) if p.ndim < 2 or p.shape[-2] == 1)


def _parameters(algorithm: Algorithm) -> Iterable[Tensor]:
    modules = (algorithm.policy, *algorithm.networks.values())
    return {id(p): p for module in modules for p in module.parameters()}.values()


def common_kinds(algorithm: Algorithm, sample: int = 1000) -> set[Hashable]:
    """The kinds of updates that are worth compiling."""
    counts = Counter(algorithm.kind(number) for number in range(1, sample + 1))
    return {kind for kind, count in counts.items() if count >= RARE * sample}


class _Spent:
    """Adds up the time that is spent within it; what is nested counts once."""

    def __init__(self) -> None:
        self.seconds, self._began, self._depth = 0.0, 0.0, 0

    def __enter__(self) -> None:
        self._began = self._began if self._depth else perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += perf_counter() - self._began


class Updates:
    """An algorithm's updates, computed as planned."""

    def __init__(
        self,
        algorithm: Algorithm,
        plan: Plan,
        apart: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """While updates are recorded, which takes several of them, it happens `apart` from other learners."""
        self.algorithm, self.plan, self._apart = algorithm, plan, apart
        self._spent = _Spent()
        """What compiling and capturing has taken."""
        self.problems: list[str] = []
        """What could not be done as planned, and why."""
        self.of_updates: list[str] = []
        """Those of them that concern single updates."""
        self._common = common_kinds(algorithm)
        self._ready: dict[Hashable, Update] = {}
        self._refused: set[Hashable] = set()
        """What could not be recorded, and how; not to be tried again when another graph has gone stale."""
        self._inner: Updates | None = None
        """Those within larger graphs."""
        self._rounds = 0
        """Larger graphs that were made."""
        self._pool: Any = None

    def __call__(self, batch: Batch) -> UpdateResult:
        """The next update."""
        algorithm = self.algorithm
        if self.plan.mode == "eager":
            return algorithm.update(batch)
        kind = algorithm.kind(algorithm.num_updates + 1)
        which = (kind, batch.actions.shape)
        update = self._ready.get(which)
        if update is None or (isinstance(update, recorded.RecordedUpdate) and update.stale):
            self._ready.pop(which, None)
            with self._spent, self._apart():
                update = self._ready[which] = self._make(kind, batch)
                hand_back_memory()  # recording takes several times what an update does
        return update(batch)

    def within_graphs(self) -> Updates | None:
        """Updates to be captured as part of something larger; None where nothing is captured."""
        if not self.plan.mode.endswith("captured"):
            return None
        mode: Mode = "compiled" if self.compiles else "eager"
        inner = Updates(self.algorithm, Plan(mode, self.plan.reason))
        inner.problems, inner._spent = self.problems, self._spent  # what it meets is told as ours
        self._inner = inner
        return inner

    def record_round(
        self, plain: recorded.Round, quick: recorded.Round, **how: Any
    ) -> recorded.RecordedRound | None:
        """A longer computation as one graph, or None if it cannot be, and why is said."""
        found = self.attempt(
            "more than an update at a time",
            lambda: recorded.RecordedRound(self.algorithm, plain, quick, **how),
        )
        self._rounds += found is not None
        return found

    @property
    def compiles(self) -> bool:
        """Whether updates are compiled, and so is what else can be."""
        return self.plan.mode.startswith("compiled")

    def compile(self, what: str, make: Callable[[CompileRun], T]) -> T | None:
        """Compile something beside updates, or say why it cannot be."""
        found = self.attempt(what, lambda: make(recorded.by_inductor), "compiled")
        hand_back_memory()
        return found

    def attempt(self, what: str, make: Callable[[], T], how: str = "captured") -> T | None:
        """Capture something beside single updates, or say why it cannot be."""
        with self._spent:
            try:
                return make()
            except Exception as error:  # whatever stands in the way, it can be computed as it is
                self._report(f"{what} cannot be {how}: {words(error)}", of_updates=False)
                return None

    def forget(self) -> None:
        """Record anew: the algorithm's tensors may be others."""
        self._ready.clear()
        self._refused.clear()

    def adopt(self, mode: str) -> None:
        """Go on as a run was computed before it was stopped, where that can be done."""
        if mode in possible_modes(self.algorithm.context.device.type, compiler=find_compiler()):
            self.plan = Plan(mode, "as before the run was stopped")

    def __str__(self) -> str:
        return f"updates: {self.plan.mode} ({self.plan.reason})"

    @property
    def seconds(self) -> float:
        """What compiling and capturing has taken."""
        return self._spent.seconds

    @property
    def surroundings(self) -> dict[str, Any]:
        """What decides whether the same update gives the same bits, as far as that has shown."""
        within = self._inner is not None and self._inner._ready
        tried = self._ready or self._rounds or within or self.problems
        return {**self._how, **({"updates not computed so": len(self.problems)} if tried else {})}

    def describe(self) -> dict[str, Any]:
        """What the run's metadata say."""
        return {
            **self._how,
            "reason": self.plan.reason,
            "seconds": round(self.seconds, 1),
            "problems": list(self.problems),
        }

    @property
    def _how(self) -> dict[str, str]:
        """The mode and, where that is ours to choose, whose matrix products it uses."""
        products = {"products": quicker()} if self.plan.mode == "compiled" else {}
        return {"updates": self.plan.mode, **products}

    def _make(self, kind: Hashable, batch: Batch) -> Update:
        """The update for batches like this one: the plain one if there is no other way, or none that pays."""
        captures = self.plan.mode.endswith("captured")
        compiles = self.compiles and kind in self._common
        if len(self._ready) >= MAX_RECORDINGS:
            self._report(f"there are more than {MAX_RECORDINGS} kinds and shapes of them")
            return self.algorithm.update
        if captures and self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        for backend in [*([recorded.inductor] if compiles else []), *([None] if captures else [])]:
            attempt = (kind, batch.actions.shape, backend is None)
            if attempt in self._refused:
                continue
            try:
                return recorded.RecordedUpdate(
                    self.algorithm, batch, backend=backend, capture=captures, pool=self._pool
                )
            except Exception as error:  # whatever stands in the way, the plain update does not mind
                self._refused.add(attempt)
                how = "captured" if backend is None else "compiled"
                self._report(f"{how} they cannot be: {words(error)}")
        return self.algorithm.update

    def _report(self, problem: str, *, of_updates: bool = True) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            what = ""
            if of_updates:
                self.of_updates.append(problem)
                what = f"updates are not all {self.plan.mode}: "
            warnings.warn(f"{what}{problem}", stacklevel=3)


def words(error: Exception) -> str:
    """What went wrong, and after what: CUDA often tells no more than that something had."""
    if isinstance(error, Uncapturable):
        return _line(error)
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    after = "" if first is error else f" (after {type(first).__name__}: {_line(first)})"
    return f"{type(error).__name__}: {_line(error)}{after}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
