"""Experience on its way from a sampler to its learner, in shared memory: a rollout, or a block of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rl_training.data.layout import rollout_layout
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.storage import Allocate
from rl_training.envs.spaces import leaf_spaces
from rl_training.policies.exploration import Exploration
from rl_training.runtime.collector import Block, Collector
from rl_training.types import Array, Obs, StepResult


class SharedRollout:
    """A rollout."""

    def __init__(self, algorithm: OnPolicyAlgorithm, num_envs: int, allocate: Allocate) -> None:
        num_steps, length = algorithm.hyperparams.num_steps, algorithm.sequence_length
        self.shape = {"num_envs": num_envs, "num_steps": num_steps, "sequence_length": length}
        """What a rollout that was saved must agree with."""
        self.buffer = RolloutBuffer(
            num_steps,
            num_envs,
            sequence_length=length,
            allocate=allocate,
            **rollout_layout(algorithm.context.spec),
        )
        self.last_values = allocate((num_envs,), torch.float32)
        buffer = self.buffer.state_dict()
        del buffer["position"]
        self._shared = {**buffer, "last_values": self.last_values}

    def fill(self, collector: Collector, exploration: Exploration | None, generator: torch.Generator) -> Any:
        """Collect; what is not in shared memory is returned: what a policy remembered, and how full it is."""
        self.last_values.copy_(collector.collect(self.buffer))
        return {name: part for name, part in self.buffer.state_dict().items() if name not in self._shared}

    def hand_out(self, buffer: RolloutBuffer, rest: Mapping[str, Any]) -> Tensor:
        """Copy the rollout into the learner's own buffer; returns the values after its last step."""
        buffer.load_state_dict(self.state_dict(rest))
        return self.last_values.to(buffer.device, copy=True)

    def state_dict(self, rest: Mapping[str, Any]) -> dict[str, Any]:
        """All of it, shared memory and `rest`; not copies."""
        return {**self._shared, **rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Put a saved one into shared memory; the `rest` of it is returned."""
        for name, tensor in self._shared.items():
            tensor.copy_(state[name])
        return {name: part for name, part in state.items() if name not in self._shared}

    def go_on(self, rest: Mapping[str, Any]) -> None:
        """In the sampler: what is in shared memory came before; the next begins where it ends."""
        self.buffer.load_state_dict(self.state_dict(rest))


class SharedTransitions:
    """A few steps of all envs, as many as a learner takes between two rounds of updates."""

    def __init__(self, algorithm: OffPolicyAlgorithm, num_envs: int, allocate: Allocate) -> None:
        spec, hp = algorithm.context.spec, algorithm.hyperparams
        self.shape = {"num_envs": num_envs, "train_every": hp.train_every}
        """What steps that were saved must agree with."""
        most = max(1, -(-hp.train_every // num_envs))
        layout = rollout_layout(spec)
        leaves = leaf_spaces(spec.observation_space)
        rows: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "actions": (layout["action_shape"], layout["action_dtype"]),
            "rewards": ((), torch.float64),
            "terminated": ((), torch.bool),
            "truncated": ((), torch.bool),
            "ended": ((), torch.bool),
        }
        for key, space in leaves.items():
            leaf = (tuple(space.shape or ()), torch.from_numpy(np.zeros(0, space.dtype)).dtype)
            rows |= {f"obs/{key}": leaf, f"final/{key}": leaf}
        self._keys = None if list(leaves) == [""] else list(leaves)
        self._tensors = {
            name: allocate((most, num_envs, *shape), dtype) for name, (shape, dtype) in rows.items()
        }
        self._arrays: dict[str, Array] = {name: tensor.numpy() for name, tensor in self._tensors.items()}

    def fill(
        self,
        collector: Collector,
        exploration: Exploration | None,
        generator: torch.Generator,
        block: Block,
        ahead: Block,
    ) -> Any:
        """Collect; how many steps there are is returned."""
        if exploration is not None:
            exploration.set_progress(block.progress)
        steps = iter(range(block.steps))

        def store(actions: Tensor, result: StepResult) -> None:
            self._write(next(steps), actions, result)

        collector.collect_transitions(store, block, exploration, generator, ahead=ahead)
        return {"steps": block.steps}

    def _write(self, t: int, actions: Tensor, result: StepResult) -> None:
        arrays = self._arrays
        arrays["actions"][t] = actions.numpy()
        arrays["rewards"][t], arrays["terminated"][t] = result.rewards, result.terminated
        arrays["truncated"][t], arrays["ended"][t] = result.truncated, False
        for key in self._keys or [""]:
            arrays[f"obs/{key}"][t] = _leaf(result.obs, key)
        if result.final_obs is not None:
            arrays["ended"][t, result.ended] = True
            for key in self._keys or [""]:
                arrays[f"final/{key}"][t, result.ended] = _leaf(result.final_obs, key)

    def results(self, rest: Mapping[str, Any]) -> Iterator[tuple[Tensor, StepResult]]:
        """What the policy did and what came of it, step by step; what is kept of it must be copied."""
        arrays = self._arrays
        for t in range(rest["steps"]):
            ended = arrays["ended"][t].nonzero()[0]
            flags = arrays["terminated"][t], arrays["truncated"][t]
            final = self._obs("final", t, ended) if len(ended) else None
            result = StepResult(self._obs("obs", t), arrays["rewards"][t], *flags, ended, final)
            yield self._tensors["actions"][t], result

    def _obs(self, part: str, t: int, rows: Any = ...) -> Obs:
        if self._keys is None:
            plain: Array = self._arrays[f"{part}/"][t][rows]
            return plain
        return {key: self._arrays[f"{part}/{key}"][t][rows] for key in self._keys}

    def state_dict(self, rest: Mapping[str, Any]) -> dict[str, Any]:
        """All of it; not copies."""
        return {**{name: tensor[: rest["steps"]] for name, tensor in self._tensors.items()}, **rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Put a saved one into shared memory; the `rest` of it is returned."""
        for name, tensor in self._tensors.items():
            tensor[: state["steps"]] = state[name]
        return {"steps": int(state["steps"])}

    def go_on(self, rest: Mapping[str, Any]) -> None:
        """In the sampler: nothing looks back."""


Freight: TypeAlias = SharedRollout | SharedTransitions


def freight_of(algorithm: Algorithm, num_envs: int, allocate: Allocate) -> Freight:
    """What travels between the sampler and the learner of an algorithm."""
    if isinstance(algorithm, OnPolicyAlgorithm):
        return SharedRollout(algorithm, num_envs, allocate)
    assert isinstance(algorithm, OffPolicyAlgorithm)
    return SharedTransitions(algorithm, num_envs, allocate)


def _leaf(obs: Obs, key: str) -> Array:
    return obs[key] if isinstance(obs, dict) else obs
