"""Collection ahead of learning: what is handed out was collected while the learner was busy with the last.

The lag is fixed. While the learner is busy with rollout k, a sampler collects rollout k+1 with the weights
from which that learning starts. So the policy that acted is always one iteration older than the policy that
learns (in the first iteration it is the same), whoever is faster, and a run is the same however long either
side takes. Of off-policy algorithms, read "block of steps" for "rollout".
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.vector import VectorEnv
from rl_training.policies.exploration import Exploration
from rl_training.policies.obs import to_tensor
from rl_training.runtime.acting import CompiledActing
from rl_training.runtime.collector import Block, Collector, CompileChoices, Store
from rl_training.runtime.freight import SharedRollout, SharedTransitions
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.random import RandomStreams
from rl_training.runtime.rewards import RewardTransform
from rl_training.runtime.sampler import Sampler
from rl_training.runtime.tracing import CompileRun, Uncapturable

PARTS = ("wait", "learn", "evaluate", "save")
"""What a learner does that does not collect."""


def make_collector(
    envs: VectorEnv, algorithm: Algorithm, rewards: RewardTransform, streams: RandomStreams, *, tensors: bool
) -> Collector:
    """A collector for envs: here, or ahead of the learner where they belong to a sampler."""
    if isinstance(envs, Sampler):
        return PipelinedCollector(envs, algorithm, rewards, streams)
    actions, device = streams.get("actions"), algorithm.context.device
    return Collector(envs, algorithm.policy, rewards, actions, device, Profiler(), tensors=tensors)


class PipelinedCollector(Collector):
    """Hands out what a sampler has collected, and has it collect the next with the weights of now.

    Statistics are those of what was handed out. Generators and noise are the sampler's, known here when it is
    parked.
    """

    def __init__(
        self, sampler: Sampler, algorithm: Algorithm, rewards: RewardTransform, streams: RandomStreams
    ) -> None:
        actions, device = streams.get("actions", "cpu"), algorithm.context.device
        super().__init__(sampler, algorithm.policy, rewards, actions, device, Profiler(PARTS))
        self.sampler, self.streams = sampler, streams
        self.exploration = algorithm.exploration if isinstance(algorithm, OffPolicyAlgorithm) else None
        self.lag = 0
        """How many iterations older than the learner's the policy was that acted in what was handed out."""
        self._begun = self._running = False
        self._finished: dict[str, Any] | None = None
        """What the sampler said about experience that has not been handed out yet."""
        self._next_lag = 0
        self.seconds = dict.fromkeys(("env", "inference", "idle"), 0.0)
        """What the sampler has done with its time so far."""
        self._told = dict(self.seconds)
        self._report: CompileChoices | None = None
        """Knows what to do if the sampler cannot compile the policy's choices."""

    def start(self) -> None:
        """Have the first episode of every env begun, unless a restored run is already inside one."""
        noise = {} if self.exploration is None else self.exploration.state_dict()
        positions = {"streams": self.streams.state_dict(), "exploration": noise}
        self.obs = self.sampler.ask("begin", positions)
        self.started = self._begun = True

    def collect(self, buffer: RolloutBuffer) -> Tensor:
        """Hand out the rollout that is ready, and have the next one collected."""
        begin = perf_counter()
        freight = self.sampler.freight
        assert isinstance(freight, SharedRollout)
        self._have_compiled()
        last_values = freight.hand_out(buffer, self._take())
        self._order(lag=1)
        self.profiler.add("wait", perf_counter() - begin)
        return last_values

    def collect_transitions(
        self,
        store: Store,
        block: Block,
        exploration: Exploration | None,
        generator: torch.Generator,
        *,
        ahead: Block,
    ) -> None:
        """Hand out the steps that are ready, and have those `ahead` taken."""
        begin = perf_counter()
        freight = self.sampler.freight
        assert isinstance(freight, SharedTransitions)
        self._have_compiled()
        if self.device.type == "cuda":  # which may still be reading the buffer for the last updates
            torch.cuda.current_stream(self.device).synchronize()
        for actions, result in freight.results(self._take(block, ahead)):
            store(actions, result)
            self.obs = result.obs
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(to_tensor(self.obs, self.device))
        self._order(ahead, ahead, lag=1)
        self.profiler.add("wait", perf_counter() - begin)

    def _have_compiled(self) -> None:
        """Tell the sampler to compile the policy's choices, if they are to be."""
        if self.compiling is not None:
            self._report, self.compiling = self.compiling, None
            self.sampler.ask("compile")

    def _take(self, *order: Block) -> dict[str, Any]:
        """Wait for what has been ordered, or order it now if nothing has; what was said about it."""
        if not self._running and self._finished is None:
            self._order(*order, lag=0)
        self._wait()
        assert self._finished is not None
        finished, self._finished = self._finished, None
        if finished["statistics"] is not None:
            self.statistics.load_state_dict(finished["statistics"])
        self.lag = self._next_lag
        rest: dict[str, Any] = finished["rest"]
        return rest

    def _order(self, *order: Block, lag: int) -> None:
        self.sampler.weights.publish()
        self.sampler.order("collect", *order)
        self._running, self._next_lag = True, lag

    def _wait(self) -> None:
        """Until the sampler has nothing to do."""
        if self._running:
            self._finished = self.sampler.finish()
            self._running = False
            for part, seconds in self._finished["seconds"].items():
                self.seconds[part] += seconds
            if (problem := self._finished["problem"]) and self._report is not None:

                def refused(_: CompileRun) -> CompiledActing:
                    raise Uncapturable(problem)

                self._report(refused)

    def park(self) -> None:
        """Wait until the sampler has nothing to do, and note where its generators and its noise are."""
        if not self._begun:
            return  # it has not been told yet: what is known here is right
        self._wait()
        positions = self.sampler.ask("position")
        self.streams.load_state_dict(positions["streams"])
        if self.exploration is not None:
            self.exploration.load_state_dict(positions["exploration"])

    def abandon_episodes(self) -> None:
        """Have the sampler forget what it remembers of episodes that could not be restored.

        Steps that have not been handed out belong to them; a rollout stands for itself.
        """
        self.sampler.ask("abandon")
        if isinstance(self.sampler.freight, SharedTransitions):
            self._finished = None

    def metrics(self) -> dict[str, float]:
        """Besides, how the sampler spent its time, and how old the policy was that acted."""
        news = {part: seconds - self._told[part] for part, seconds in self.seconds.items()}
        self._told = dict(self.seconds)
        total = max(sum(news.values()), 1e-9)
        shares = {f"sampler/{part}": seconds / total for part, seconds in news.items()}
        return {**super().metrics(), **shares, "train/policy_lag": float(self.lag)}

    def state_dict(self) -> dict[str, Any]:
        """The stream of experience as the parked sampler has it, and what it has collected ahead."""
        state: dict[str, Any] = self.sampler.ask("save")
        if self._finished is not None:
            experience = self.sampler.freight.state_dict(self._finished["rest"])
            state["ahead"] = {
                "lag": self._next_lag,
                "shape": self.sampler.freight.shape,
                "experience": experience,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the stream; what was collected ahead is handed out next, unless its shape was changed."""
        own = {key: value for key, value in state.items() if key != "ahead"}
        rest, freight, ahead = None, self.sampler.freight, state.get("ahead")
        self.gap = ahead is not None and ahead.get("shape", freight.shape) != freight.shape
        if ahead is not None and not self.gap:
            rest = freight.load_state_dict(ahead["experience"])
            self._finished = {"rest": rest, "statistics": own["statistics"]}
            self._next_lag = int(ahead["lag"])
        self.statistics.load_state_dict(own["statistics"])
        self.obs = self.sampler.ask("load", own, rest)
        self.started = True
