"""A policy's choices for envs on the host as one CUDA graph: observations in, actions out, one wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.policies.obs import to_tensor
from rl_training.runtime.recorded import captured
from rl_training.runtime.tracing import Recording
from rl_training.types import Obs, TensorObs

Choose = Callable[[TensorObs], Sequence[Tensor]]
"""From observations to what follows from them, all of it on the device."""


class CapturedActing:
    """`choose` recorded with both transfers, through memory that the GPU reads and writes by itself."""

    def __init__(self, choose: Choose, obs: Obs, device: torch.device, *, told: Sequence[bool]) -> None:
        """`told`: which of the results the host wants to know; the others stay on the device."""
        self._shown = _each(to_tensor(obs), lambda tensor: tensor.pin_memory())
        self.seen: TensorObs = _each(self._shown, lambda tensor: tensor.to(device))
        """The observations of the last call, on the device."""
        self._told = told
        with Recording() as first:
            examples = choose(self.seen)
        first.undo()  # it has only shown the shapes: no random number may be lost to that
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


def _items(obs: Any) -> list[tuple[str, Any]]:
    return list(obs.items()) if isinstance(obs, Mapping) else [("", obs)]


def _part(obs: Any, key: str) -> Any:
    return obs[key] if isinstance(obs, Mapping) else obs


def _each(obs: Any, function: Callable[[Any], Tensor]) -> Any:
    if isinstance(obs, Mapping):
        return {key: function(part) for key, part in obs.items()}
    return function(obs)
