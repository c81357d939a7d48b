"""Off-policy experience: every observation stored once, in one ring of slots an env.

A column is the life of one env, slot after slot. The transition that starts in a slot ends in the next slot
of its column. An episode that ended has its true final observation in a slot of its own, which never starts a
transition; neither does the slot at the write head, which holds what the env shows now.

    slot      … 41      42      43       44       45 …
    obs         s_T-1   s_T     s'_0     s'_1     (free)
    starts      yes     no      yes      no: the write head
                 └ terminated or truncated belongs to the transition that starts here
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data.layout import RolloutLayout, Shape
from rl_training.errors import ConfigError
from rl_training.types import Array, Obs, Segment, StepResult, TensorObs

SCALARS: dict[str, torch.dtype] = {
    "rewards": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "starts": torch.bool,
    "generation": torch.int32,
    "age": torch.int32,
}


SEGMENT_TRANSITIONS = 16_384
"""Transitions that are saved together: about what saving one transition more costs."""


class Written(NamedTuple):
    """Flat indices of the transitions that an `add` completed, and of those it overwrote."""

    completed: Array
    overwritten: Array


class ReplayBuffer:
    """`capacity` transitions of `num_envs` envs in preallocated rings. Stores what the env gave, unchanged.

    All tensors are `[slots, num_envs, …]`; a flat index is `slot * num_envs + env`, and the next slot of the
    same env is `num_envs` further on, modulo the size.
    """

    def __init__(
        self, capacity: int, num_envs: int, layout: RolloutLayout, *, device: torch.device | str = "cpu"
    ) -> None:
        if capacity < 2 * num_envs:
            raise ConfigError(
                f"hyperparams.buffer_size: {capacity} is too small for {num_envs} envs; "
                f"at least {2 * num_envs} is needed"
            )
        self.num_envs, self.device = num_envs, torch.device(device)
        self.slots = -(-capacity // num_envs) + 1  # one more: the write head starts nothing
        self.size = self.slots * num_envs
        self.segment_slots = max(1, SEGMENT_TRANSITIONS // num_envs)

        def zeros(shape: Shape, dtype: torch.dtype) -> Tensor:
            return torch.zeros((self.slots, num_envs, *shape), dtype=dtype, device=self.device)

        shapes, dtypes = layout["obs_shape"], layout["obs_dtype"]
        self.obs: TensorObs
        if isinstance(shapes, dict) and isinstance(dtypes, dict):
            self.obs = {key: zeros(shape, dtypes[key]) for key, shape in shapes.items()}
        else:
            assert isinstance(shapes, tuple)
            assert isinstance(dtypes, torch.dtype)
            self.obs = zeros(shapes, dtypes)
        self.actions = zeros(layout["action_shape"], layout["action_dtype"])
        self.rewards, self.terminated, self.truncated, self.starts, self.generation, self.age = (
            zeros((), dtype) for dtype in SCALARS.values()
        )
        self.heads = np.zeros(num_envs, np.int64)
        """The slot of each env's current observation, counted without wrapping around."""
        self.total = 0
        """Transitions ever added."""
        self.count = 0
        """Transitions that can be drawn now."""
        self._columns = np.arange(num_envs)
        self._clock = np.zeros(num_envs, np.int32)
        on_host = self.device.type == "cpu"
        self._fields: dict[str, Any] = {
            name: tensor.numpy() if on_host else tensor for name, tensor in self.tensors().items()
        }

    @staticmethod
    def predict_bytes(capacity: int, layout: RolloutLayout) -> int:
        """Memory a buffer would take, before any of it is allocated."""
        return ReplayBuffer(2, 1, layout).bytes_per_transition * capacity

    @property
    def bytes_per_transition(self) -> int:
        """Memory a transition takes."""
        return sum(t.element_size() * t[0, 0].numel() for t in self.tensors().values())

    @property
    def ages(self) -> Array:
        """How many steps each env's current episode has taken: 0 where one has just begun."""
        return self._clock

    @property
    def filled(self) -> int:
        """Slots of a column that have been written, at most."""
        return int(min(self.heads.max() + 1, self.slots))

    def __len__(self) -> int:
        return self.count

    def begin(self, obs: Obs) -> None:
        """Take in the first observations of all envs, at the start or when their episodes were abandoned."""
        if self.total:
            self.heads += 1
        self._clock.fill(0)
        self._open(self.heads, self._columns, obs)

    def add(self, actions: Tensor, result: StepResult) -> Written:
        """Take in one step of all envs: the policy's actions and what came of them."""
        here, columns = self.heads % self.slots, self._columns
        rows = (here, columns)
        self._put("actions", rows, actions)
        self._put("rewards", rows, result.rewards)
        self._put("terminated", rows, result.terminated)
        self._put("truncated", rows, result.truncated)
        self._put("starts", rows, True)
        overwritten = []
        ended = result.ended
        if len(ended) and result.final_obs is not None:
            self.heads[ended] += 1
            self._clock[ended] += 1
            overwritten.append(self._open(self.heads[ended], ended, result.final_obs))
        self.heads += 1
        self._clock += 1
        self._clock[ended] = 0
        overwritten.append(self._open(self.heads, columns, result.obs))
        self.total += self.num_envs
        self.count += self.num_envs
        return Written(here * self.num_envs + columns, np.concatenate(overwritten))

    def _open(self, heads: Array, columns: Array, obs: Obs) -> Array:
        """Put observations into slots that start nothing yet; what was there before is gone."""
        slots = heads % self.slots
        rows = (slots, columns)
        self.count -= int(self._get("starts", rows).sum())
        for name in ("starts", "terminated", "truncated"):
            self._put(name, rows, False)
        self._put("generation", rows, self._get("generation", rows) + 1)
        self._put("age", rows, self._clock[columns])
        if isinstance(obs, dict):
            for key, part in obs.items():
                self._put(f"obs/{key}", rows, part)
        else:
            self._put("obs", rows, obs)
        flat: Array = slots * self.num_envs + columns
        return flat

    def _put(self, name: str, rows: tuple[Array, Array], values: Any) -> None:
        """Write rows of a field; in main memory through NumPy, which is cheaper for few rows."""
        target = self._fields[name]
        if isinstance(target, Tensor):
            index = tuple(torch.from_numpy(part).to(self.device) for part in rows)
            target[index] = torch.as_tensor(values).to(self.device, target.dtype)
        else:
            target[rows] = values.numpy() if isinstance(values, Tensor) else values

    def _get(self, name: str, rows: tuple[Array, Array]) -> Any:
        target = self._fields[name]
        if isinstance(target, Tensor):
            return target[tuple(torch.from_numpy(part).to(self.device) for part in rows)]
        return target[rows]

    def next_index(self, index: Tensor, steps: Tensor | int = 1) -> Tensor:
        """The flat index so many slots further on in the same column."""
        return (index + steps * self.num_envs) % self.size

    def take(self, name: str, index: Tensor) -> Any:
        """Rows of a field by flat index; for `obs` a tensor or a dict of them."""
        field = getattr(self, name)
        if isinstance(field, dict):
            return {key: tensor.flatten(0, 1)[index] for key, tensor in field.items()}
        return field.flatten(0, 1)[index]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the buffer by name."""
        obs = self.obs if isinstance(self.obs, dict) else {"": self.obs}
        named = {f"obs/{key}" if key else "obs": tensor for key, tensor in obs.items()}
        return {**named, "actions": self.actions, **{name: getattr(self, name) for name in SCALARS}}

    def state_dict(self) -> dict[str, Any]:
        """Heads and counters, and the slots in segments that change only where something was written."""
        return {
            "segments": [self._segment(block) for block in range(-(-self.filled // self.segment_slots))],
            "heads": self.heads.copy(),
            "clock": self._clock.copy(),
            "total": self.total,
            "count": self.count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, from a buffer of the same shape."""
        segments: list[Mapping[str, Tensor]] = state["segments"]
        for name, tensor in self.tensors().items():
            tensor.zero_()
            for block, segment in enumerate(segments):
                begin, saved = block * self.segment_slots, segment[name]
                target = tensor[begin : begin + self.segment_slots]
                if saved.shape[1:] != tensor.shape[1:] or len(saved) > len(target):
                    raise ConfigError(
                        f"the saved replay buffer's {name!r} has rows of shape {tuple(saved.shape[1:])}, "
                        f"this one of {tuple(tensor.shape[1:])}, or it is larger than this one"
                    )
                target[: len(saved)] = saved.to(self.device)
        self.heads[:] = state["heads"]
        self._clock[:] = state["clock"]
        self.total, self.count = int(state["total"]), int(state["count"])

    def _segment(self, block: int) -> Segment:
        begin = block * self.segment_slots
        end = min(begin + self.segment_slots, self.filled)
        # A slot is written twice: its observation when the head arrives, the rest when the head moves on.
        arrived, left = self.heads, self.heads - 1
        writes = _last_in(arrived, begin, end, self.slots) + _last_in(left, begin, end, self.slots)
        return Segment(
            version=f"{end - begin}.{int(writes.sum())}",
            tensors=lambda: {name: tensor[begin:end] for name, tensor in self.tensors().items()},
        )


def _last_in(heads: Array, begin: int, end: int, slots: int) -> Array:
    """The last position at or before each head, counted without wrapping, that lies in `begin … end`."""
    first = heads // slots * slots + begin
    first = np.where(first > heads, first - slots, first)
    last: Array = np.where(first < 0, -1, np.minimum(first + (end - begin) - 1, heads))
    return last
