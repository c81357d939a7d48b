"""Off-policy experience: every observation stored once, in one ring of slots an env.

A column is the life of one env, slot after slot. The transition that starts in a slot ends in the next slot
of its column. An episode that ended has its true final observation in a slot of its own, which never starts a
transition; neither does the slot at the write head, which holds what the env shows now.

    slot      … 41      42      43       44       45 …
    obs         s_T-1   s_T     s'_0     s'_1     (free)
    starts      yes     no      yes      no: the write head
                 └ terminated or truncated belongs to the transition that starts here

Of an observation that is a stack of frames a slot stores the newest one. The older ones are in the slots
before it, up to `history` of them; copies of the oldest of these stand for what came earlier. A stack that
does not follow from the one before (an episode need not begin with copies of its first frame) gets slots for
its older frames, which start nothing; a transition into such a stack is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data.frame_stacks import FrameHistory, Stack
from rl_training.data.layout import RolloutLayout, Shape
from rl_training.data.segments import SEGMENT_TRANSITIONS, restore, segment_version
from rl_training.data.storage import Allocate, in_memory, rows_of
from rl_training.errors import AxiomError, ConfigError
from rl_training.types import Array, Obs, Segment, StepResult, TensorObs

SCALARS: dict[str, torch.dtype] = {
    "rewards": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "starts": torch.bool,
    "generation": torch.int32,
    "age": torch.int32,
}


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
        self,
        capacity: int,
        num_envs: int,
        layout: RolloutLayout,
        *,
        device: torch.device | str = "cpu",
        stacks: Mapping[str, Stack] | None = None,
        allocate: Allocate | None = None,
        view: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        if capacity < 2 * num_envs:
            raise ConfigError(
                f"hyperparams.buffer_size: {capacity} is too small for {num_envs} envs; "
                f"at least {2 * num_envs} is needed"
            )
        self.num_envs = num_envs
        self.segment_slots = max(1, SEGMENT_TRANSITIONS // num_envs)
        shapes, dtypes = _by_key(layout["obs_shape"]), _by_key(layout["obs_dtype"])
        host_dtypes = {key: torch.zeros(0, dtype=dtype).numpy().dtype for key, dtype in dtypes.items()}
        self._stacks = FrameHistory(stacks, host_dtypes, num_envs) if stacks else None
        self._lookback = self._stacks.lookback if self._stacks else 0
        self.slots = _slots(capacity, num_envs, self._lookback)
        self.size = self.slots * num_envs
        allocate = allocate or in_memory(device)

        def zeros(shape: Shape, dtype: torch.dtype) -> Tensor:
            return allocate((self.slots, num_envs, *shape), dtype)

        stored = {**shapes, **{key: stack.frame_shape for key, stack in (stacks or {}).items()}}
        obs = {key: zeros(shape, dtypes[key]) for key, shape in stored.items()}
        self.obs: TensorObs = obs if isinstance(layout["obs_shape"], dict) else obs[""]
        self.actions = zeros(layout["action_shape"], layout["action_dtype"])
        self.rewards, self.terminated, self.truncated, self.starts, self.generation, self.age = (
            zeros((), dtype) for dtype in SCALARS.values()
        )
        self.history = zeros((), torch.uint8) if self._stacks else None
        self.heads = np.zeros(num_envs, np.int64)
        """The slot of each env's current observation, counted without wrapping around."""
        self.total = 0
        """Transitions ever added."""
        self.count = 0
        """Transitions that can be drawn now."""
        self.dropped = 0
        """Transitions that were not kept because their observations are no stacks that follow each other."""
        self._columns = self._here = np.arange(num_envs)
        self._clock = np.zeros(num_envs, np.int32)
        self._fields = {name: rows_of(tensor) for name, tensor in self.tensors().items()}
        self._flat = {name: view(tensor).flatten(0, 1) for name, tensor in self.tensors().items()}
        self.device = self._flat["actions"].device
        """Where batches are made: `view` may show the tensors to another device than the one they are on."""

    @staticmethod
    def predict_bytes(
        capacity: int,
        layout: RolloutLayout,
        stacks: Mapping[str, Stack] | None = None,
        *,
        num_envs: int = 1,
        taken: Callable[[int], int] = int,
    ) -> int:
        """Memory a buffer would take, before any is allocated; `taken` says what so many bytes take."""
        small = ReplayBuffer(2, 1, layout, stacks=stacks)
        rows = _slots(capacity, num_envs, small._lookback) * num_envs
        return sum(taken(rows * t.element_size() * t[0, 0].numel()) for t in small.tensors().values())

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
        return min(int(np.maximum.reduce(self.heads)) + 1, self.slots)

    def __len__(self) -> int:
        return self.count

    def begin(self, obs: Obs) -> None:
        """Take in the first observations of all envs, at the start or when their episodes were abandoned."""
        if self.total:
            self.heads += 1
        self._clock.fill(0)
        self._begin_stacks(self._columns, obs)
        self._arrive(obs)

    def add(self, actions: Tensor, result: StepResult) -> Written:
        """Take in one step of all envs: the policy's actions and what came of them."""
        here, fields, ended = self._here, self._fields, result.ended
        kept = self._kept(result)
        on_host = isinstance(fields["actions"], np.ndarray)
        fields["actions"][here] = actions.numpy(force=True) if on_host else actions
        fields["rewards"][here] = np.asarray(result.rewards, np.float32)  # NumPy would cast them one by one
        fields["terminated"][here] = result.terminated
        fields["truncated"][here] = result.truncated
        fields["starts"][here] = True if kept is None else kept
        overwritten = []
        if len(ended) and result.final_obs is not None:
            self.heads[ended] += 1
            self._clock[ended] += 1
            overwritten.append(self._open(self._at_head(ended), ended, self._stored(result.final_obs)))
        self.heads += 1
        self._clock += 1
        if len(ended):
            self._clock[ended] = 0
        if kept is not None:
            overwritten += self._begin_stacks(np.union1d(ended, np.flatnonzero(~kept)), result.obs)
        overwritten.append(self._arrive(result.obs))
        completed = here if kept is None else here[kept]
        self.total += self.num_envs
        self.count += len(completed)
        return Written(completed, np.concatenate(overwritten) if len(overwritten) > 1 else overwritten[0])

    def _kept(self, result: StepResult) -> Array | None:
        """Which envs' transitions can be drawn later: those whose stacks follow each other. None: all."""
        stacks = self._stacks
        if stacks is None:
            return None
        kept = stacks.follows(result.obs)
        if len(result.ended) and result.final_obs is not None:
            kept[result.ended] = stacks.follows(result.final_obs, result.ended)
        stacks.known[:] = np.minimum(stacks.known + 1, stacks.lookback)
        self.dropped += int((~kept).sum())
        if self.dropped > max(1000, self.total // 2):
            raise AxiomError(
                f"env.frame_stack: the observations are no stacks of {stacks.lookback + 1} frames; an env "
                "that shows images as (height, width, channels) leaves no doubt where its frames are"
            )
        return kept

    def _begin_stacks(self, columns: Array, obs: Obs) -> list[Array]:
        """New stacks in some envs: older frames that are no copies of the newest get slots of their own."""
        stacks, overwritten = self._stacks, []
        if stacks is not None:
            stacks.keep(obs)
            stacks.known[columns] = 0
            odd = columns[~stacks.repeats(columns)]
            for frame in range(stacks.lookback if len(odd) else 0):
                overwritten.append(self._open(self._at_head(odd), odd, stacks.older(odd, frame)))
                self.heads[odd] += 1
                stacks.known[odd] += 1
        return overwritten

    def _stored(self, obs: Obs) -> Obs:
        return obs if self._stacks is None else self._stacks.newest(obs)

    def _arrive(self, obs: Obs) -> Array:
        """Put what all envs show now at their heads; what happens in the next step belongs there, too."""
        self._here = self._at_head(self._columns)
        return self._open(self._here, self._columns, self._stored(obs))

    def _at_head(self, columns: Array) -> Array:
        """The flat indices of some envs' heads."""
        rows: Array = self.heads[columns] % self.slots * self.num_envs + columns
        return rows

    def _open(self, rows: Array, columns: Array, obs: Obs) -> Array:
        """Put observations into slots that start nothing yet; what was there before is gone.

        With it goes what starts less than a stack further on, for its older frames were there.
        """
        fields = self._fields
        gone = (rows + self._lookback * self.num_envs) % self.size if self._lookback else rows
        started = fields["starts"][gone]
        self.count -= int(started.sum() if isinstance(started, Tensor) else np.count_nonzero(started))
        fields["starts"][gone] = False
        fields["terminated"][rows] = False
        fields["truncated"][rows] = False
        fields["generation"][rows] = fields["generation"][rows] + 1
        fields["age"][rows] = self._clock[columns]
        if self._stacks is not None:
            fields["history"][rows] = self._stacks.known[columns]
        if isinstance(obs, dict):
            for key, part in obs.items():
                fields[f"obs/{key}"][rows] = part
        else:
            fields["obs"][rows] = obs
        return gone

    def next_index(self, index: Tensor, steps: Tensor | int = 1) -> Tensor:
        """The flat index so many slots further on in the same column."""
        return (index + steps * self.num_envs) % self.size

    def starting(self, index: Tensor, most: int) -> Tensor:
        """Those of some flat indices at which a transition starts, the first `most` of them."""
        starts = self._fields["starts"]
        if index.device.type != "cpu" or not isinstance(starts, np.ndarray):
            return index[self.take("starts", index)][:most]
        rows = index.numpy()
        return torch.from_numpy(rows[starts[rows]][:most])

    def take(self, name: str, index: Tensor) -> Any:
        """Rows of a field by flat index; for `obs` a tensor or a dict of them."""
        if name == "obs":
            if self._stacks is not None:
                return self._rebuilt(index)
            if isinstance(self.obs, dict):
                return {key: _rows(self._flat[f"obs/{key}"], index) for key in self.obs}
        return _rows(self._flat[name], index)

    def _rebuilt(self, index: Tensor) -> TensorObs:
        """Observations by flat index, their stacks put together from the slots before."""
        assert self._stacks is not None
        back = torch.arange(self._lookback, -1, -1, device=index.device)
        steps = torch.minimum(back, self.take("history", index)[..., None])
        path = (index[..., None] - steps * self.num_envs) % self.size
        stacks = self._stacks.stacks
        taken = {
            key: stacks[key].join(_rows(rows, path)) if key in stacks else rows[index]
            for key, rows in ((key, self._flat[f"obs/{key}" if key else "obs"]) for key in _by_key(self.obs))
        }
        return taken if isinstance(self.obs, dict) else taken[""]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the buffer by name."""
        named = {f"obs/{key}" if key else "obs": tensor for key, tensor in _by_key(self.obs).items()}
        scalars = {name: getattr(self, name) for name in SCALARS}
        history = {} if self.history is None else {"history": self.history}
        return {**named, "actions": self.actions, **scalars, **history}

    def state_dict(self) -> dict[str, Any]:
        """Heads and counters, and the slots in segments that change only where something was written."""
        return {
            "segments": [self._segment(block) for block in range(-(-self.filled // self.segment_slots))],
            "heads": self.heads.copy(),
            "clock": self._clock.copy(),
            "total": self.total,
            "count": self.count,
            "dropped": self.dropped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, from a buffer of the same shape."""
        restore(self.tensors(), state["segments"], self.segment_slots)
        self.heads[:] = state["heads"]
        self._here = self._at_head(self._columns)
        self._clock[:] = state["clock"]
        self.total, self.count = int(state["total"]), int(state["count"])
        self.dropped = int(state.get("dropped", 0))
        if self._stacks is not None:
            index = torch.from_numpy(self._here).to(self.device)
            self._stacks.keep(_host(self._rebuilt(index)))
            self._stacks.known[:] = self.take("history", index).numpy(force=True)

    def _segment(self, block: int) -> Segment:
        begin = block * self.segment_slots
        end = min(begin + self.segment_slots, self.filled)
        # A slot is written twice: its observation when the head arrives, the rest when the head moves on.
        # Where stacks lose older frames to the head, what starts there is marked as gone ahead of it.
        moments = [self.heads, self.heads - 1, *([self.heads + self._lookback] if self._lookback else [])]
        return Segment(
            version=segment_version(moments, begin, end, self.slots),
            tensors=lambda: {name: tensor[begin:end] for name, tensor in self.tensors().items()},
        )


def _slots(capacity: int, num_envs: int, lookback: int) -> int:
    """One more than needed: the write head starts nothing. Stacks need some before it, and some to begin."""
    return -(-capacity // num_envs) + 1 + 2 * lookback


def _by_key(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"": value}


def _rows(rows: Tensor, index: Tensor) -> Tensor:
    """`rows[index]`, copied row by row and not number by number."""
    if index.ndim == 1:
        return rows.index_select(0, index)
    return rows.index_select(0, index.flatten()).view(index.shape + rows.shape[1:])


def _host(obs: TensorObs) -> Obs:
    if isinstance(obs, dict):
        return {key: tensor.numpy(force=True) for key, tensor in obs.items()}
    return obs.numpy(force=True)
