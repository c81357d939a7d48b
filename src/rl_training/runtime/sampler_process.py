"""The other side of `sampler`: a process that plays with the policy it is sent, in envs of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm
from rl_training.envs.processes import converse
from rl_training.envs.vector import VectorEnv
from rl_training.policies.exploration import Exploration
from rl_training.runtime.acting import CompiledActing
from rl_training.runtime.collector import Collector
from rl_training.runtime.compilation import words
from rl_training.runtime.device import torch_settings
from rl_training.runtime.exchange import SharedTensors, SharedWeights, packed, unpacked
from rl_training.runtime.freight import freight_of
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.random import RandomStreams
from rl_training.runtime.recorded import by_inductor
from rl_training.runtime.rewards import RewardSettings, RewardTransform
from rl_training.runtime.tracing import CompileRun


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a sampler makes its envs and its policy from."""

    env_id: str
    num_envs: int
    seed: int
    deterministic: bool | str
    rewards: RewardSettings
    make_envs: Callable[[int], VectorEnv]
    make_algorithm: Callable[[], Algorithm]
    """On the CPU, whatever the learner computes on."""


def sample(pipe: Connection, make: Callable[[], Recipe], shared: SharedTensors) -> None:
    """The life of a sampler: make everything, say what kind of envs they are, then answer commands."""
    torch.set_float32_matmul_precision("highest")  # a forked sampler inherits what suits the learner's GPU
    recipe = make()

    def prepare() -> tuple[_Sampler, Any]:
        sampler = _Sampler(recipe, shared)
        envs = sampler.envs
        return sampler, (envs.spec, envs.backend, envs.render_fps, envs.time_limit, envs.resume_grade)

    with torch_settings(torch.device("cpu"), threads=1, deterministic=recipe.deterministic):
        converse(pipe, prepare)


class _Sampler:
    """Executes the learner's commands: to collect, or to save and restore what belongs to collecting."""

    def __init__(self, recipe: Recipe, shared: SharedTensors) -> None:
        algorithm, device = recipe.make_algorithm(), torch.device("cpu")
        self.envs = recipe.make_envs(recipe.num_envs)
        self.close = self.envs.close
        self.profiler = Profiler(("env", "inference", "idle"))
        self.streams = RandomStreams(recipe.seed, device)
        self.exploration: Exploration | None = None
        self.exploring = self.streams.get("actions")
        if isinstance(algorithm, OffPolicyAlgorithm):
            self.exploration, self.exploring = algorithm.exploration, self.streams.get("exploration")
        rewards = RewardTransform(recipe.rewards, recipe.num_envs)
        self.collector = Collector(
            self.envs, algorithm.policy, rewards, self.streams.get("actions"), device, self.profiler
        )
        found = shared.found()
        self.weights = SharedWeights(algorithm.policy, found)
        self.freight = freight_of(algorithm, recipe.num_envs, found)
        self._told = -1
        """How many finished episodes the learner knows of."""
        self._answered = perf_counter()
        self._problem = ""
        """Why the policy's choices are not compiled, until it is told."""

    def answer(self, command: str, payload: Any) -> Any:
        """Do as told; `command` is the name of a method."""
        self.profiler.add("idle", perf_counter() - self._answered)
        result = getattr(self, command)(*payload)
        self._answered = perf_counter()
        return packed(result)

    def begin(self, positions: Any) -> Any:
        """Take over generators and noise, and begin an episode in every env unless it is inside one."""
        given = unpacked(positions)
        streams = given["streams"]
        self.streams.load_state_dict({name: streams[name] for name in self.streams.state_dict()})
        if self.exploration is not None:
            self.exploration.load_state_dict(given["exploration"])
        self.collector.start()
        return self.collector.obs

    def position(self) -> Any:
        """Where generators and noise are."""
        noise = {} if self.exploration is None else self.exploration.state_dict()
        return {"streams": self.streams.state_dict(), "exploration": noise}

    def collect(self, *order: Any) -> Any:
        """Play with the weights published last; what of it is not in shared memory is the answer."""
        self.weights.adopt()
        rest = self.freight.fill(self.collector, self.exploration, self.exploring, *order)
        statistics = self.collector.statistics
        news = None if statistics.count == self._told else statistics.state_dict()
        self._told = statistics.count
        problem, self._problem = self._problem, ""
        return {"rest": rest, "statistics": news, "seconds": self.profiler.take(), "problem": problem}

    def compile(self) -> None:
        """Have the policy's choices compiled at the first of them, as a learner does that collects itself."""
        self.collector.compiling = self._compiled

    def _compiled(self, make: Callable[[CompileRun], CompiledActing]) -> CompiledActing | None:
        try:
            return make(by_inductor)
        except Exception as error:  # the learner says so; choices can be made as they are
            self._problem = words(error)
            return None

    def save(self) -> Any:
        """What the collector has to say."""
        return self.collector.state_dict()

    def load(self, state: Any, rest: Any) -> Any:
        """Continue a saved stream of experience, after what is in shared memory, if that was not None."""
        self.collector.load_state_dict(unpacked(state))
        if rest is not None:
            self.freight.go_on(unpacked(rest))
        return self.collector.obs

    def abandon(self) -> None:
        """Forget episodes that could not be restored."""
        self.collector.abandon_episodes()

    def seeds(self) -> Any:
        """Of the episodes under way."""
        return self.envs.episode_seeds

    def save_envs(self) -> Any:
        """The state of the envs, and what restoring it would give."""
        return [self.envs.state_dict(), self.envs.resume_grade]

    def load_envs(self, state: Any) -> Any:
        """Put the envs back."""
        return self.envs.load_state_dict(unpacked(state))
