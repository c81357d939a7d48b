"""A trainer without a run: it trains as a run would, and nothing is written, evaluated or saved."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, Self

import torch

from rl_training import registry
from rl_training.assembly import make_session
from rl_training.continuation import algorithm_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import Resolved, replace
from rl_training.participants import loop_settings, other_learners, training_envs
from rl_training.runtime.compilation import plan_for
from rl_training.runtime.device import torch_settings
from rl_training.runtime.nowhere import Nowhere, never
from rl_training.runtime.trainer import Trainer

SOON = 1000
"""Random steps before the first update are cut to so many: what is measured is training."""
WARM_UP = {"on-policy": 1, "off-policy": 8}
"""Iterations with updates before anything is measured."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How far training got in some time."""

    steps: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Env steps a second, over all envs."""
        return self.steps / self.seconds


def prepared(config: TrainConfig) -> TrainConfig:
    """A configuration as it is measured: learning begins soon."""
    if registry.algorithm(config.algo).family != "off-policy":
        return config
    hp = config.hyperparams
    soon = min(hp.learning_starts, max(SOON, hp.batch_size))
    return replace(config, hyperparams={"learning_starts": soon})


@cache
def importing_compiler() -> float:
    """The seconds that it takes to import torch's compiler, which is done by the first call."""
    begin = perf_counter()
    import torch._inductor.compile_fx  # noqa: F401

    return perf_counter() - begin


class Bench:
    """Trains a configuration for a while, in slices; a context manager."""

    def __init__(self, config: TrainConfig) -> None:
        begin = perf_counter()
        self.session = make_session(Resolved(config, {}), None)
        self.config, self.device = self.session.config, self.session.context.device
        self._stack = ExitStack()
        with self._stack as stack, self.settings():
            algorithm = algorithm_of(self.session)
            envs = stack.enter_context(training_envs(self.session, algorithm))
            team = other_learners(self.session, algorithm)
            if team is not None:
                stack.enter_context(team)
            settings = loop_settings(self.config)
            family = Trainer.families[algorithm.family]
            family.check(algorithm, envs, settings)
            nowhere = Nowhere()
            self.trainer = family(
                algorithm, envs, settings, metrics=nowhere, checkpoints=nowhere, evaluator=never,
                seat=None if team is None else team.seat, team=team,
            )  # fmt: skip
            self.trainer.collector.start()
            self._stack = stack.pop_all()
        self._making_s = perf_counter() - begin

    def settings(self) -> Any:
        """The threads and kernels that the configuration asks for, while in this block."""
        config = self.config
        return torch_settings(
            self.device,
            threads=config.threads,
            deterministic=config.deterministic,
            precision=config.precision,
        )

    def warm_up(self, *, in_parts: bool = False) -> float:
        """Train until steps and updates are made as they will be from then on; the seconds it took, all told.

        `in_parts` keeps env and policy apart, which a run may compile or capture as one, so that each can be
        timed.
        """
        trainer = self.trainer
        # Once a process, so that of all benches only the first would pay what every run has to.
        imports = importing_compiler() if trainer.updates.plan.mode.startswith("compiled") else 0.0
        begin = perf_counter()
        first = getattr(trainer.algorithm.hyperparams, "learning_starts", 0)
        with self.settings():
            trainer.prepare(in_parts=in_parts)
            while trainer.global_step < first:
                trainer.advance()
            for _ in range(WARM_UP[trainer.family]):
                trainer.advance()
            self.synchronize()
        return imports + self._making_s + perf_counter() - begin

    @property
    def compiling_s(self) -> float:
        """What compiling and capturing has taken."""
        return self.trainer.updates.seconds

    def compile_modes(self) -> dict[str, str]:
        """How updates would be computed for each value of `compile`."""
        algorithm, work = self.trainer.algorithm, self.trainer.workload()
        with warnings.catch_warnings():  # of values that nobody has set
            warnings.simplefilter("ignore")
            return {value: plan_for(algorithm, value, work).mode for value in ("auto", "on", "off")}

    def run(self, seconds: float) -> Speed:
        """Train for so long, or for one iteration if that takes longer."""
        trainer = self.trainer
        with self.settings():
            begin, first = perf_counter(), trainer.global_step
            while True:
                trainer.advance()
                if perf_counter() - begin >= seconds:
                    break
            self.synchronize()
            return Speed(trainer.global_step - first, perf_counter() - begin)

    def synchronize(self) -> None:
        """Wait for what has been launched."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """End the envs."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
