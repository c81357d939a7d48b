"""Where the time of a profile run goes, to the last microsecond: every moment belongs to exactly one part.

`Profiler` is always on and adds up a few differences. Here each place at which training goes from one kind of
work to another is wrapped for the time of a measurement; a run that is not profiled does not know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from rl_training.runtime.pipelined import PipelinedCollector

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

PARTS = ("env", "inference", "transfer", "learn", "overhead")
PIPELINED_PARTS = ("wait", *PARTS)
"""A learner with a sampler waits for it: env and inference are the sampler's, in `Stopwatch.sampler`."""
ACTING = ("act", "env_actions", "values", "random_actions")
"""What collection asks of a policy."""


class Stopwatch:
    """Parts may lie within each other: the inner one's time is not the outer one's, so that all add up."""

    def __init__(self, synchronize: Callable[[], None] | None = None, parts: Sequence[str] = PARTS) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)
        self.sampler: dict[str, float] = {}
        """What a sampler did meanwhile, in seconds, where there is one."""
        self.calls: Counter[str] = Counter()
        """How often each wrapped method was called."""
        self._synchronize = synchronize
        self._parts = ["overhead"]
        self._since = perf_counter()

    @property
    def total(self) -> float:
        """All that has been measured."""
        return sum(self.seconds.values())

    def restart(self) -> None:
        """Forget what was before."""
        self.mark()
        self.calls.clear()
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def mark(self) -> None:
        """Book the time since the last look on the part it was spent in."""
        if self._synchronize is not None:  # what was launched in a part belongs to it
            self._synchronize()
        now = perf_counter()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    def enter(self, part: str) -> None:
        """From here on it is `part`."""
        self.mark()
        if part == "inference" and self._parts[-1] == "learn":
            part = "learn"  # learning asks the policy, too
        self._parts.append(part)

    def leave(self) -> None:
        """From here on it is what it was before."""
        self.mark()
        self._parts.pop()

    def wrap(self, function: Callable[..., Any], name: str, part: str) -> Callable[..., Any]:
        """`function`, called `name`, with its time booked on `part`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed


@contextmanager
def measured(trainer: Trainer) -> Iterator[Stopwatch]:
    """A stopwatch that follows a trainer while in this block.

    Everything in an iteration that is not collection is learning. On a GPU every change of parts waits for
    what has been launched, which slows training down; copies between host and device are parts there.
    """
    device, collector = trainer.device, trainer.collector
    on_gpu = device.type == "cuda"
    synchronize = (lambda: torch.cuda.synchronize(device)) if on_gpu else None
    pipelined = isinstance(collector, PipelinedCollector)
    watch = Stopwatch(synchronize, PIPELINED_PARTS if pipelined else PARTS)
    with ExitStack() as undo:
        for owner, name, part in [*_seams(trainer), *(_crossings(trainer) if on_gpu else [])]:
            if name in vars(owner):
                undo.callback(setattr, owner, name, vars(owner)[name])
            else:
                undo.callback(delattr, owner, name)
            setattr(owner, name, watch.wrap(getattr(owner, name), name, part))
        watch.restart()
        before = dict(collector.seconds) if isinstance(collector, PipelinedCollector) else {}
        yield watch
        watch.mark()
        if isinstance(collector, PipelinedCollector):
            watch.sampler = {part: collector.seconds[part] - seconds for part, seconds in before.items()}


def updating(trainer: Any) -> tuple[Any, str]:
    """Where a trainer's updates are made: the owner of the callable, and its name."""
    return (trainer, "updates") if hasattr(trainer, "updates") else (trainer.algorithm, "update")


def _seams(trainer: Any) -> list[tuple[Any, str, str]]:
    """Where one kind of work becomes another: an object, its method, and what that is."""
    envs, collector, algorithm = trainer.envs, trainer.collector, trainer.algorithm
    seams = [
        (trainer, "iterate", "learn"),
        (*updating(trainer), "learn"),
        (collector, "collect", "overhead"),
        (collector, "collect_transitions", "overhead"),
        (collector, "_wait", "wait"),
        (envs, "step", "env"),
        (envs, "step_tensors", "env"),
        *((algorithm.policy, name, "inference") for name in ACTING),
        (getattr(algorithm, "exploration", None), "explore", "inference"),
        (collector, "_choices", "inference"),
    ]
    return [seam for seam in seams if getattr(seam[0], seam[1], None) is not None]


def _crossings(trainer: Any) -> list[tuple[Any, str, str]]:
    """Where data goes between the host and the device."""
    collector, buffer = trainer.collector, trainer.buffer
    if trainer.family == "off-policy":
        stored_there = buffer.device.type == trainer.device.type
        storing = (buffer, "add") if stored_there else (trainer, "move")
        places = [(collector, "to_device"), (collector, "to_host"), storing]
    elif collector.stepping.tensors:
        places = []
    else:
        places = [(collector, "to_host"), (buffer, "observe"), (buffer, "_publish")]
    return [(owner, name, "transfer") for owner, name in places]
