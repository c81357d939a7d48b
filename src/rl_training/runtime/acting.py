"""A policy's choices as one piece: a CUDA graph, or compiled; of envs that are tensors, with their step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from rl_training.errors import EnvError
from rl_training.policies.obs import to_tensor
from rl_training.runtime.recorded import captured
from rl_training.runtime.tracing import CompileRun, Recording
from rl_training.types import Obs, PolicyOutput, TensorObs, TensorStep

Choose = Callable[[TensorObs], Sequence[Tensor]]
"""From observations to what follows from them, all of it on the device."""
Step = Callable[[TensorObs], tuple[PolicyOutput, TensorStep]]
"""From observations to what a policy says to them and what comes of it, all of it on the device."""


class CapturedActing:
    """`choose` recorded with both transfers, through memory that the GPU reads and writes by itself."""

    def __init__(self, choose: Choose, obs: Obs, device: torch.device, *, told: Sequence[bool]) -> None:
        """`told`: which of the results the host wants to know; the others stay on the device."""
        self._shown = _each(to_tensor(obs), lambda tensor: tensor.pin_memory())
        self.seen: TensorObs = _each(self._shown, lambda tensor: tensor.to(device))
        """The observations of the last call, on the device."""
        self._told = told
        examples = _first(choose, self.seen)
        self._results = [
            torch.zeros_like(example, device="cpu").pin_memory() if host else torch.zeros_like(example)
            for example, host in zip(examples, told, strict=True)
        ]

        def run() -> list[Tensor]:
            for key, tensor in _items(self.seen):
                tensor.copy_(_part(self._shown, key), non_blocking=True)
            for kept, result in zip(self._results, choose(self.seen), strict=True):
                kept.copy_(result, non_blocking=True)
            return []

        self._graph = captured(run)

    def __call__(self, obs: Obs) -> list[Tensor]:
        """The results; those that stay on the device are overwritten by the next call."""
        for key, tensor in _items(self._shown):
            tensor.numpy()[...] = _part(obs, key)
        self._graph()
        torch.cuda.current_stream().synchronize()
        return [
            result.clone() if host else result for result, host in zip(self._results, self._told, strict=True)
        ]


class CompiledActing:
    """`choose` as one piece of machine code, without what lies between the operations of small networks."""

    def __init__(self, choose: Choose, obs: TensorObs, compile_run: CompileRun) -> None:
        """`obs` are an example of what it will be given."""
        leaves, given = tree_flatten(obs)

        @torch.no_grad()
        def run(*parts: Tensor) -> list[Tensor]:
            return list(choose(tree_unflatten(list(parts), given)))

        _first(run, *leaves)
        self._run = compile_run(run, leaves)

    def __call__(self, obs: TensorObs) -> Sequence[Tensor]:
        """What follows from these observations."""
        return self._run(obs) if isinstance(obs, Tensor) else self._run(*tree_leaves(obs))


class CompiledStep:
    """A policy's choices for envs that are tensors and what comes of them, compiled as one piece."""

    def __init__(self, step: Step, obs: TensorObs, compile_run: CompileRun) -> None:
        """`step` writes to nothing but what envs keep; `obs` are an example of what it will be given."""
        self._made: TreeSpec | None = None

        def choose(obs: TensorObs) -> list[Tensor]:
            output, result = step(obs)
            said = (output.actions, output.logprobs, output.values)
            came = [getattr(result, field.name) for field in dataclasses.fields(TensorStep)]
            found, self._made = tree_flatten((said, came))
            return found

        self._run = CompiledActing(choose, obs, compile_run)

    def __call__(self, obs: TensorObs) -> tuple[PolicyOutput, TensorStep]:
        """One step of all envs."""
        try:
            found = self._run(obs)
        except Exception as error:  # an index beside a tensor, say: machine code knows no lines of Python
            words = f"{type(error).__name__}: {' '.join(str(error).split())}"
            hint = "with compile: off the line is named"
            raise EnvError(f"a compiled step of policy and envs failed: {words}; {hint}") from error
        assert self._made is not None
        said, came = tree_unflatten(list(found), self._made)
        return PolicyOutput(*said), TensorStep(*came)


def _first(choose: Callable[..., Sequence[Tensor]], *obs: Any) -> Sequence[Tensor]:
    """What is chosen first, taken back: no random number is lost to it, and noise with a memory has begun."""
    recording = Recording()
    try:
        with recording:
            return choose(*obs)
    finally:
        recording.undo()


def _items(obs: Any) -> list[tuple[str, Any]]:
    return list(obs.items()) if isinstance(obs, Mapping) else [("", obs)]


def _part(obs: Any, key: str) -> Any:
    return obs[key] if isinstance(obs, Mapping) else obs


def _each(obs: Any, function: Callable[[Any], Tensor]) -> Any:
    if isinstance(obs, Mapping):
        return {key: function(part) for key, part in obs.items()}
    return function(obs)
