"""The outer loop: collect, update, evaluate, checkpoint, stop. No algorithm's maths is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rl_training.algorithms.base import Algorithm
from rl_training.envs.snapshot import Grade, worst
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError, NonFiniteError
from rl_training.policies.config import IntrinsicConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compilation import Updates, Workload, plan_for
from rl_training.runtime.logbook import Logbook, MetricSink, require_finite_weights
from rl_training.runtime.pipelined import make_collector
from rl_training.runtime.random import RandomStreams
from rl_training.runtime.rewards import RewardSettings, RewardTransform
from rl_training.types import Batch, Evaluation, UpdateResult

if TYPE_CHECKING:
    from rl_training.runtime.averaging import Seat
    from rl_training.runtime.team import Team


class CheckpointSink(Protocol):
    """Where checkpoints go. The experiment layer implements it; None: not saved this time, but go on."""

    def save(self, state: Mapping[str, Any], step: int, *, best: bool) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the loop itself needs to know."""

    total_timesteps: int
    seed: int
    log_every: int = 2000
    on_nan: str = "raise"
    compile: str = "off"
    """auto, on or off: whether updates are compiled or captured."""
    reward_scale: float = 1.0
    normalize_reward: bool = False
    clip_reward: float | None = None
    frame_stack: int = 1
    """How many frames the env section stacks into an observation."""
    intrinsic: IntrinsicConfig = field(default_factory=IntrinsicConfig)
    scratch: Path | None = None
    """Where large temporary files may go."""


class Trainer(ABC):
    """Runs an algorithm on envs until a step budget or a callback ends it.

    Families differ only in `iterate`: where a batch comes from. Iterations are the only moments at which a
    run is saved, so a checkpoint never has to describe half of one.
    """

    family: ClassVar[str]
    takes_tensors: ClassVar[bool] = False
    """Whether envs that are tensors are stepped as such, or as arrays like all others."""
    families: ClassVar[dict[str, type[Trainer]]] = {}

    def __init_subclass__(cls) -> None:
        Trainer.families[cls.family] = cls

    def __init__(
        self,
        algorithm: Algorithm,
        envs: VectorEnv,
        settings: LoopSettings,
        *,
        metrics: MetricSink,
        checkpoints: CheckpointSink,
        evaluator: Callable[[], Evaluation],
        callbacks: Sequence[Callback] = (),
        seat: Seat | None = None,
        team: Team | None = None,
    ) -> None:
        """`seat`: this learner's among several that train together; `team`: the others, for the first."""
        self.algorithm, self.envs, self.settings = algorithm, envs, settings
        self.seat, self.team = seat, team
        self.learners = 1 if seat is None else seat.members
        self.checkpoints, self.evaluator = checkpoints, evaluator
        self.device = algorithm.context.device
        self.logbook = Logbook(metrics, every=settings.log_every, on_nan=settings.on_nan, device=self.device)
        self.latest = self.logbook.latest
        self.callbacks = list(callbacks)
        _check_names(self.callbacks)
        self.streams = RandomStreams(settings.seed, self.device)
        self.collector = make_collector(
            envs, algorithm, self._reward_transform(), self.streams, tensors=self.takes_tensors
        )
        self.profiler = self.collector.profiler
        if seat is not None:
            self.collector.averaging = seat
            algorithm.join(seat)
        self.horizon = settings.total_timesteps
        self.global_step = self.previous_step = self.iteration = 0
        self.stop_reason: str | None = None
        self.interrupted: str | None = None
        self.announcement = ""
        """One line for whoever watches the start of the run."""
        self.resources: dict[str, Any] = {}
        """What a family takes of the machine, for the run's metadata."""
        self._save_requested = self._save_as_best = False
        self._seconds_before, self._started = 0.0, perf_counter()
        self.build()
        plan = plan_for(algorithm, settings.compile, self.workload())
        self.updates = Updates(algorithm, plan) if seat is None else Updates(algorithm, plan, seat.alone)

    @classmethod  # noqa: B027 - most families take all
    def check(cls, algorithm: Algorithm, envs: VectorEnv, settings: LoopSettings) -> None:
        """Refuse what cannot be trained together, or not here, before the run has a directory."""

    @abstractmethod
    def build(self) -> None:
        """Create what the family needs beyond the shared parts."""

    def prepare(self, *, in_parts: bool = False) -> None:  # noqa: B027 - a family may have nothing to
        """Have compiled or captured what can be beside updates; `in_parts`: nothing across env and policy."""

    def compile_choices(self) -> None:
        """Have the policy's choices compiled where updates are, on a CPU."""
        if self.updates.compiles and self.device.type == "cpu":
            self.collector.compiling = partial(self.updates.compile, "the policy's choices")

    @abstractmethod
    def iterate(self) -> None:
        """Collect some experience and learn from it."""

    @abstractmethod
    def batch(self) -> Batch:
        """A batch as an update gets it, from the experience that is there."""

    @abstractmethod
    def workload(self) -> Workload:
        """How many updates the whole run makes, on how large batches."""

    @property
    def elapsed(self) -> float:
        """Seconds of training, over all the processes that took part in it."""
        return self._seconds_before + perf_counter() - self._started

    @property
    def finished(self) -> bool:
        """Every step of the budget has been taken."""
        return self.global_step >= self.settings.total_timesteps

    def run(self) -> None:
        """Train to the end; always leaves a final checkpoint.

        An interruption writes no extra log line: what is pending is saved, so that the resumed run reports it
        where a run that was never stopped would have.
        """
        self._started = perf_counter()
        self.profiler.start(self.global_step)
        self.collector.start()
        self.prepare()
        self._each("on_train_start")
        while not self.finished and self.stop_reason is None:
            self.advance()
            self._each("on_update")
            if self._save_requested and not self.finished and self.stop_reason is None:
                self._save()
        if not self.logbook.has_written(self.global_step) and (self.interrupted is None or self.finished):
            self._log()
        try:
            self._each("on_train_end")
        except Exception:  # what is trained must not be lost by it
            self._save()
            raise
        self._save()

    def advance(self) -> None:
        """One iteration, and a log line if one is due."""
        self.previous_step = self.global_step
        self.algorithm.set_progress(self.global_step / self.horizon)
        if self.team is None:
            self._iterate()
        else:
            if not self.team.begun:
                self.team.begin(self.updates.plan.mode, self._counters(), self.collector.rewards.moments)
            self.team.advance(self._iterate, self.collector.statistics, self.updates.of_updates)
        self.iteration += 1
        if self.logbook.due(self.previous_step, self.global_step):
            self._log()

    def _iterate(self) -> None:
        try:
            self.iterate()
        except NonFiniteError as error:
            raise NonFiniteError(f"{error} (the iteration that began at step {self.previous_step})") from None

    def stop(self, reason: str) -> None:
        """Ask the loop to end after this iteration; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self, by: str) -> None:
        """Ask the loop to save and end after this iteration, as something that is to be resumed."""
        self.interrupted = by
        self.stop(f"interrupted by {by}")

    def note(self, results: Sequence[UpdateResult]) -> None:
        """Keep metrics, unread, until the next log line; `check_finite` refuses or drops bad ones."""
        self.logbook.note(results)

    def check_finite(self) -> None:
        """Stop, or count, when an update met NaN or infinity."""
        self.logbook.check(self.global_step)

    def evaluate(self) -> Evaluation:
        """Measure the current policy in envs of its own."""
        begin = perf_counter()
        evaluation = self.evaluator()
        self.profiler.add("evaluate", perf_counter() - begin)
        return evaluation

    def notify_evaluation(self, evaluation: Evaluation) -> None:
        """Record an evaluation and tell the callbacks."""
        self.logbook.write_evaluation(self.global_step, self.elapsed, evaluation)
        self._each("on_evaluation", evaluation)

    def save_checkpoint(self, *, best: bool = False) -> None:
        """Ask for a checkpoint: it is written when every callback has seen this iteration."""
        self._save_requested = True
        self._save_as_best = self._save_as_best or best

    def _save(self) -> None:
        """Publish the whole state of the run as it is now."""
        begin = perf_counter()
        self.check_finite()
        require_finite_weights(self.algorithm, self.global_step)
        path = self.checkpoints.save(self.state_dict(), self.global_step, best=self._save_as_best)
        self._save_requested = self._save_as_best = False
        self.profiler.add("save", perf_counter() - begin)
        if path is not None:
            self._each("on_checkpoint", path)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, by component."""
        self.collector.park()
        return {
            **self.algorithm.state_dict(),
            **self.stream_state(),
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks},
            "trainer": {**self._counters(), **self.logbook.state_dict()},
            "clock": {"elapsed_s": self.elapsed},
            **self.family_state(),
            **({} if self.team is None else {"learners": self.team.state_dict()}),
        }

    def _counters(self) -> dict[str, int]:
        return {"global_step": self.global_step, "iteration": self.iteration, "horizon": self.horizon}

    def stream_state(self) -> dict[str, Any]:
        """What belongs to this learner's stream of experience."""
        return {
            "generators": self.streams.state_dict(),
            "collector": self.collector.state_dict(),
            "envs": self.envs.state_dict(),
        }

    def load_stream(self, state: Mapping[str, Any]) -> Grade:
        """Continue a stream of experience; answers how exactly, and why not better."""
        self.streams.load_state_dict(state["generators"])
        grade = self.envs.load_state_dict(state["envs"])
        self.collector.load_state_dict(state["collector"])
        if grade[0] == "episode":
            self.collector.abandon_episodes()
        return grade

    def load_state_dict(self, state: Mapping[str, Any]) -> Grade:
        """Continue a saved run; answers how exactly, and why not better."""
        self.algorithm.load_state_dict(state)
        self.updates.forget()
        grade = self.load_stream(state)
        if self.team is not None:
            grade = worst([grade, self.team.load_state_dict(state.get("learners", {}))])
        for callback in self.callbacks:
            if callback.name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.name])
        counters = state["trainer"]
        self.global_step = self.previous_step = counters["global_step"]
        self.iteration, self.horizon = counters["iteration"], counters["horizon"]
        self.logbook.load_state_dict(counters)
        self._seconds_before = state["clock"]["elapsed_s"]
        self.load_family_state(state)
        if grade[0] == "episode":
            self.episodes_abandoned()
        return grade

    def episodes_abandoned(self) -> None:  # noqa: B027 - most families look back no further
        """After a resume that could not bring every env back: nothing may reach across the break."""

    def family_state(self) -> dict[str, Any]:
        """Components that a family adds to the state."""
        return {}

    def load_family_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most families add none
        """Restore what `family_state` gave."""

    def _each(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            with nullcontext() if self.team is None else self.team.resting():
                getattr(callback, hook)(self, *args)

    def _log(self) -> None:
        """Write a line; metrics are read first, so that what the device still had to do is in the times."""
        train = self.logbook.read(self.global_step)
        schedules = {f"train/{name}": float(s.value) for name, s in self.algorithm.schedules.items()}
        timing = self.profiler.report(self.global_step)
        row = {
            "global_step": self.global_step,
            "elapsed_s": self.elapsed,
            **timing,
            **self.collector.metrics(),
            **train,
            **schedules,
            **self.family_metrics(),
        }
        self.logbook.write(row)

    def family_metrics(self) -> dict[str, float]:
        """What a family adds to a log line."""
        return {}

    def _reward_transform(self) -> RewardTransform:
        settings = reward_settings(self.settings, self.algorithm)
        return RewardTransform(settings, self.envs.num_envs, self.seat)


def reward_settings(settings: LoopSettings, algorithm: Algorithm) -> RewardSettings:
    """What happens to rewards before an algorithm sees them."""
    gamma = float(getattr(algorithm.hyperparams, "gamma", 0.99))
    return RewardSettings(settings.reward_scale, settings.normalize_reward, settings.clip_reward, gamma)


def _check_names(callbacks: Sequence[Callback]) -> None:
    """State is saved by name: two callbacks that keep some must not share one."""
    keepers = [callback.name for callback in callbacks if callback.state_dict()]
    if twice := sorted({name for name in keepers if keepers.count(name) > 1}):
        raise ConfigError(f"callbacks: two are called {twice[0]!r}; give one another name (override `name`)")
