"""A process that collects experience while the learner learns, as the learner sees it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.algorithms.base import Algorithm
from rl_training.envs.base import VectorEnv
from rl_training.envs.processes import (
    CLOSE_SECONDS,
    describe_death,
    forks,
    kill,
    process_context,
    raise_as_told,
    start_process,
)
from rl_training.envs.snapshot import Grade
from rl_training.errors import EnvError
from rl_training.runtime.exchange import SharedTensors, SharedWeights, packed, unpacked
from rl_training.runtime.freight import freight_of
from rl_training.runtime.sampler_process import Recipe, sample
from rl_training.types import Array, GoalTask, Obs, StepResult

_NOT_HERE = "these envs belong to a sampler, which alone steps them"


class Sampler(VectorEnv):
    """Envs in a process of their own, together with the collector that steps them.

    It is given one command at a time. What goes wrong there is raised here, as the same error, by whoever
    waits for the answer.
    """

    def __init__(self, recipe: Recipe, algorithm: Algorithm) -> None:
        self.env_id, self._recipe = recipe.env_id, recipe
        self._grade: Grade = ("exact", "nothing has been saved")
        context = process_context()
        shared = SharedTensors(context)
        self.weights = SharedWeights(algorithm.policy, shared.allocate)
        self.freight = freight_of(algorithm, recipe.num_envs, shared.allocate)
        self._judge: VectorEnv | None = None
        self._busy = True
        make: Any = lambda: recipe  # noqa: E731 - a function is what can be sent to any process
        make = make if forks(context) else CloudpickleWrapper(make)
        # No daemon: its envs may be processes too.
        self._pipe, self._process = start_process(
            context, sample, (make, shared), name="sampler", daemon=False
        )
        weakref.finalize(self, kill, [self._process], os.getpid())
        try:
            spec, backend, fps, limit, self._grade = self.finish()
        except BaseException:
            kill([self._process])
            raise
        super().__init__(backend, spec, recipe.num_envs, seed=recipe.seed, render_fps=fps)
        self._limit = limit

    def order(self, command: str, *payload: Any) -> None:
        """Give a command, without waiting for what comes of it."""
        if self._busy:  # a callback may ask at any time
            raise EnvError(f"the sampler of {self.env_id} is collecting: it cannot be asked for more now")
        self._check_open()
        self._busy = True
        with suppress(OSError):  # it is dead, which shows when it should answer
            self._pipe.send((command, tuple(packed(part) for part in payload)))

    def finish(self) -> Any:
        """Wait for the answer to the last command."""
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise EnvError(f"the sampler of {self.env_id} {describe_death(self._process)}") from None
        found = raise_as_told(answer, f"the sampler of {self.env_id}")
        self._busy = False
        return unpacked(found)

    def ask(self, command: str, *payload: Any) -> Any:
        """Give a command and wait for the answer."""
        self.order(command, *payload)
        return self.finish()

    # As a vector env: what it can say without stepping.

    @property
    def episode_seeds(self) -> Array:
        """The seed each env's current episode started from."""
        seeds: Array = self.ask("seeds")
        return seeds

    @property
    def resume_grade(self) -> Grade:
        """What `load_state_dict` can promise for the state that was last given, and why."""
        return self._grade

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to put every env back."""
        state: dict[str, Any]
        state, self._grade = self.ask("save_envs")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Grade:
        """Put every env back; says whether that was `exact`, or why some began their next `episode`."""
        grade: Grade = self.ask("load_envs", state)
        return grade

    def goal_task(self) -> GoalTask:
        """How the env judges goals, by an env of this process, made when it is first needed."""
        self._judge = self._judge or self._recipe.make_envs(1)
        return self._judge.goal_task()

    def observations(self) -> Obs:
        """Nobody here sees them."""
        raise EnvError(_NOT_HERE)

    def reset(self, *, seed: int | None = None) -> Obs:
        """Not from here."""
        raise EnvError(_NOT_HERE)

    def step(self, actions: Array) -> StepResult:
        """Not from here."""
        raise EnvError(_NOT_HERE)

    def cap_episodes(self, steps: int) -> None:
        """Not from here."""
        raise EnvError(_NOT_HERE)

    def render(self) -> list[Any]:
        """Not from here."""
        raise EnvError(_NOT_HERE)

    def close(self) -> None:
        """End the process: politely if it is listening, at once if it is not; may be called twice."""
        if self._closed:
            return
        super().close()
        if not self._busy:
            with suppress(OSError):
                self._pipe.send(("close", None))
            self._process.join(CLOSE_SECONDS)
        kill([self._process])
        self._pipe.close()
        if self._judge is not None:
            self._judge.close()
