"""On-policy experience: a fixed number of steps of all envs, their advantages, and minibatches of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.data.minibatches import map_obs, require_parts, rows_of, split
from rl_training.data.sequence_states import SequenceStates
from rl_training.data.storage import Allocate
from rl_training.errors import AxiomError, ConfigError
from rl_training.functional.returns import gae
from rl_training.types import RolloutBatch

if TYPE_CHECKING:
    from rl_training.types import Array, Obs, PolicyState, TensorObs

    Rows: TypeAlias = Array | Tensor
    Shape: TypeAlias = tuple[int, ...]

STEPS = ("rewards", "dones", "truncated")
SCALARS = ("logprobs", "rewards", "dones", "truncated", "values", "final_values", "advantages", "returns")


class RolloutBuffer:
    """`num_steps` transitions of `num_envs` envs in preallocated tensors `[num_steps, num_envs, …]`.

    Transition `t` starts from `obs[t]`, and `dones[t]` says that it ended its episode. It ended by
    termination unless `truncated[t]` is set; then `final_values[t]` is the value of the episode's true last
    observation. `final_values` are NaN until set, so that a forgotten bootstrap cannot pass for a number.
    Fill the tensors yourself, or step by step with `add`. With `tensor_steps`, what is added are tensors on
    `device`; none of it passes through the host, and a step that is done has ended its episode. `allocate`
    makes all of its tensors, on `device`, always in the same order.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        *,
        obs_dtype: torch.dtype | Mapping[str, torch.dtype] = torch.float32,
        action_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        sequence_length: int | None = None,
        tensor_steps: bool = False,
        allocate: Allocate | None = None,
    ) -> None:
        self.num_steps, self.num_envs, self.device = num_steps, num_envs, torch.device(device)
        self.sequence_length = num_steps if sequence_length is None else sequence_length
        if num_steps % self.sequence_length:
            raise ConfigError(f"sequence_length {sequence_length} does not divide num_steps {num_steps}")

        def anywhere(shape: Shape, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        make = allocate or anywhere

        def zeros(shape: Shape = (), dtype: torch.dtype = torch.float32) -> Tensor:
            return make((num_steps, num_envs, *shape), dtype)

        self.obs: TensorObs
        if isinstance(obs_shape, Mapping):
            dtypes = obs_dtype if isinstance(obs_dtype, Mapping) else dict.fromkeys(obs_shape, obs_dtype)
            self.obs = {name: zeros(shape, dtypes[name]) for name, shape in obs_shape.items()}
        elif isinstance(obs_dtype, Mapping):
            raise ConfigError("obs_dtype is a mapping but obs_shape is not: give both for Dict observations")
        else:
            self.obs = zeros(obs_shape, obs_dtype)
        self.actions = zeros(action_shape, action_dtype)
        self.logprobs, self.rewards, self.dones, self.truncated = (zeros() for _ in range(4))
        self.values, self.advantages, self.returns = (zeros() for _ in range(3))
        self.final_values = zeros().fill_(torch.nan)

        self.initial_episode_starts = make((num_envs,), torch.float32).fill_(1.0)
        """1 where the first stored observation of an env is the first of an episode."""
        self.states = SequenceStates()
        """Recurrent states, where the policy has them."""
        self.tensor_steps = tensor_steps
        self.carried = zeros(dtype=torch.bool).to(self.device if tensor_steps else "cpu")
        """With the steps: where a transition is done for the learner, but its episode goes on."""
        self.position = 0
        """Steps added since the last reset."""

        # Rows written every step. On the CPU they are NumPy views of the tensors, cheaper to assign to.
        # Rewards and flags that come from the host to a device are staged and sent once a rollout.
        self._staged = not (self.on_host or tensor_steps)
        self._obs_rows = self._writable(self.obs)
        self._rows: dict[str, Any] = {
            name: self._writable(getattr(self, name)) for name in ("actions", "logprobs", "values", *STEPS)
        }
        if self._staged:
            self._rows |= {name: np.zeros((num_steps, num_envs), np.float32) for name in STEPS}
        if not tensor_steps:
            self._rows["carried"] = self.carried.numpy()
        self._published = 0

    @property
    def on_host(self) -> bool:
        """Whether the tensors live in main memory, where NumPy can share them."""
        return self.device.type == "cpu"

    @property
    def full(self) -> bool:
        """Whether every step has been added."""
        return self.position == self.num_steps

    @property
    def terminated(self) -> Tensor:
        """1 where a transition ended its episode in a terminal state."""
        return self.dones * (1 - self.truncated)

    def reset(self, state: PolicyState | None = None) -> None:
        """Start a new rollout where the last one stopped, from recurrent `state` if the policy has one."""
        if self.position:
            self._publish()
            self.initial_episode_starts.copy_(self._episode_ended()[self.position - 1])
        self.states.begin(state)
        self.final_values.fill_(torch.nan)
        self.position = self._published = 0

    def observe(self, obs: Obs | TensorObs, state: PolicyState | None = None) -> TensorObs:
        """Store the observation of the step about to be taken; the row on the device, for the policy.

        The recurrent `state` before it is kept where a sequence begins.
        """
        t = self._next_step()
        if state is not None and t and t % self.sequence_length == 0:
            self.states.add(state)
        self._write_obs(t, obs)
        stored = self.obs
        return {k: v[t] for k, v in stored.items()} if isinstance(stored, dict) else stored[t]

    def add(
        self,
        obs: Obs | TensorObs | None,
        actions: Rows,
        logprobs: Rows,
        rewards: Rows,
        values: Rows,
        terminated: Rows,
        truncated: Rows,
        ended: Array | None = None,
    ) -> None:
        """Copy one step of all envs into the buffer; where both flags are set, termination counts.

        `obs` is None where `observe` has stored it already. `ended` are the envs whose episode is over, where
        that is not the same as done: after a lost life a recurrent state goes on.
        """
        t = self._next_step()
        if obs is not None:
            self._write_obs(t, obs)
        rows = self._rows
        _write(rows["actions"], t, actions)
        _write(rows["logprobs"], t, logprobs)
        _write(rows["rewards"], t, rewards)
        _write(rows["values"], t, values)
        dones = rows["dones"][t]
        maths: Any = torch  # which calls these two as NumPy does
        if not isinstance(dones, Tensor):
            maths, terminated, truncated = np, _host_array(terminated), _host_array(truncated)
        maths.logical_or(terminated, truncated, out=dones)
        maths.greater(truncated, terminated, out=rows["truncated"][t])
        if not self.tensor_steps:
            carried = rows["carried"][t]
            carried[...] = False if ended is None else dones
            if ended is not None and len(ended):
                carried[ended] = False
        self.position = t + 1

    def steps(self, name: str) -> Rows:
        """`rewards`, `dones` or `truncated` where `add` puts it: arrays, or with `tensor_steps` on a device
        the tensors. Changes made before the advantages are computed count."""
        rows: Rows = self._rows[name]
        return rows

    def set_final_values(self, steps: Rows, envs: Rows, values: Rows) -> None:
        """Set the values of the last observations of the episodes truncated at `(steps, envs)`."""
        index = (torch.as_tensor(steps, device=self.device), torch.as_tensor(envs, device=self.device))
        self.final_values[index] = torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def compute_returns_and_advantages(self, last_value: Rows, gamma: float, gae_lambda: float) -> None:
        """Fill `advantages` (GAE) and `returns` (advantages + values).

        `last_value` `[num_envs]` is the value of the observation after the last step.
        """
        if 0 < self.position < self.num_steps:
            raise AxiomError(
                f"the rollout is not complete: {self.position} of {self.num_steps} steps have been added"
            )
        self._publish()
        last = torch.as_tensor(last_value, dtype=torch.float32, device=self.device).detach()
        next_values = torch.cat([self.values[1:], last.reshape(1, self.num_envs)])
        next_values = torch.where(self.truncated != 0, self.final_values, next_values)
        inputs = (self.rewards, self.values, next_values, self.terminated, self._ended())
        if self.on_host:  # NumPy's loop over steps is several times faster than torch's
            rewards, values, nexts, terminated, ended = (x.numpy() for x in inputs)
            array = gae(rewards, values, nexts, terminated, ended, gamma, gae_lambda)
            self.advantages.copy_(torch.from_numpy(array))
        else:
            self.advantages.copy_(gae(*inputs, gamma, gae_lambda))
        torch.add(self.advantages, self.values, out=self.returns)

    def whole(self) -> RolloutBatch:
        """All of the rollout as one flat batch in the order of time, without a copy."""
        return next(split(self, 1, lambda x: x.flatten(0, 1), dim=0))

    def minibatches(self, num_minibatches: int, generator: torch.Generator) -> Iterator[RolloutBatch]:
        """One epoch of shuffled flat minibatches `[batch, …]`, every transition exactly once."""
        require_parts(num_minibatches, self.num_steps * self.num_envs, "transitions")
        # One gather a field and epoch, then views: fewer and cheaper operations than a gather a minibatch.
        order = self._permutation(self.num_steps * self.num_envs, generator)
        return split(self, num_minibatches, lambda x: rows_of(x.flatten(0, 1), order), dim=0)

    def sequences(self, num_minibatches: int, generator: torch.Generator) -> Iterator[RolloutBatch]:
        """One epoch of minibatches of sequences `[sequence_length, sequences, …]`, in order of time.

        `episode_starts` (booleans on the host) says before which steps a recurrent state is to be reset;
        `state` is the state before the first one, reset already where an episode starts there.
        """
        length = self.sequence_length
        what = f"sequences of {length} steps ({self.num_envs} envs of {self.num_steps} steps)"
        count = self.num_envs * self.num_steps // length
        require_parts(num_minibatches, count, what)
        order = self._permutation(count, generator)

        def select(x: Tensor) -> Tensor:
            """Every env's column in pieces, side by side and shuffled."""
            pieces = x.view(-1, length, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
            return pieces.index_select(1, order.to(x.device))

        starts = torch.cat([self.initial_episode_starts[None], self._episode_ended()[:-1]]) != 0
        states = self.states.in_order(order)
        return split(self, num_minibatches, select, dim=1, episode_starts=starts.cpu(), states=states)

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor of the buffer by name; they are the buffer's own, not copies."""
        self._publish()
        position = torch.tensor(self.position)
        return {**self._named_tensors(), "position": position, **self.states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave, from a buffer of the same shape."""
        for name, tensor in self._named_tensors().items():
            if name not in state:
                raise AxiomError(f"the saved rollout buffer has no {name!r}")
            if state[name].shape != tensor.shape:
                raise AxiomError(
                    f"the saved rollout buffer's {name!r} has shape {tuple(state[name].shape)}, "
                    f"this one has {tuple(tensor.shape)}"
                )
        for name, tensor in self._named_tensors().items():
            tensor.copy_(state[name])
        if self._staged:
            for name in STEPS:
                self._rows[name][...] = state[name].numpy(force=True)
        self.states.load_state_dict(state, self.device)
        self.position = self._published = int(state["position"])

    def _write_obs(self, t: int, obs: Obs | TensorObs) -> None:
        if isinstance(self._obs_rows, dict):
            for name, rows in self._obs_rows.items():
                _write(rows, t, obs[name])
        else:
            _write(self._obs_rows, t, obs)  # type: ignore[arg-type]

    def _next_step(self) -> int:
        """The step that is written now, if there is room for one."""
        if self.position == self.num_steps:
            raise AxiomError(
                f"the rollout buffer is full ({self.num_steps} steps): call reset() before adding more"
            )
        return self.position

    def _ended(self) -> Tensor:
        """`dones`, also for those who fill the tensors by hand and set only `truncated`."""
        return torch.maximum(self.dones, self.truncated)

    def _episode_ended(self) -> Tensor:
        """Where episodes were really over, for those who remember."""
        return self._ended() * ~self.carried.to(self.device)

    def _publish(self) -> None:
        """Send the rewards and flags that `add` staged on the host to the device, each step once."""
        new = slice(self._published, self.position)
        if self._staged and new.start < new.stop:
            for name in STEPS:
                getattr(self, name)[new] = torch.from_numpy(self._rows[name][new]).to(self.device)
        self._published = self.position

    def _writable(self, tensors: TensorObs) -> Any:
        """What a step is written into: views in NumPy in main memory, the tensors themselves elsewhere."""
        return map_obs(lambda x: x.numpy(), tensors) if self.on_host else tensors

    def _permutation(self, length: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(length, generator=generator, device=generator.device).to(self.device)

    def _named_tensors(self) -> dict[str, Tensor]:
        parts = self.obs if isinstance(self.obs, dict) else {"": self.obs}
        obs = {f"obs.{k}" if k else "obs": v for k, v in parts.items()}
        names = ("actions", *SCALARS, "carried", "initial_episode_starts")
        return {**obs, **{name: getattr(self, name) for name in names}}


def _write(rows: Rows, t: int, value: Rows) -> None:
    if isinstance(rows, Tensor):
        rows[t] = torch.as_tensor(value, device=rows.device)
    else:
        rows[t] = value.numpy(force=True) if isinstance(value, Tensor) else value


def _host_array(x: Rows) -> Array:
    return x.numpy(force=True) if isinstance(x, Tensor) else x
