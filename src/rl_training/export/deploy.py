"""A policy as a plain function of tensors, captured as a graph: what every format is written from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from rl_training.envs.spaces import allocate
from rl_training.errors import ExportError
from rl_training.policies.encoders import set_precision
from rl_training.policies.obs import to_tensor
from rl_training.types import ACTION_MASK, Array, Decision, Spec, TensorObs

ACTION = "action"
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
"""What a graph remembers of the code it was captured from: file names of this machine."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output: tensors of `shape` behind a batch axis."""

    name: str
    kind: Literal["observation", "state", "action", "detail"]
    shape: tuple[int, ...]
    dtype: str
    key: str
    """Where it belongs: the key of a Dict observation, of the state, or of what the action rests on."""


class DeployedPolicy(nn.Module):
    """The deterministic policy on its own: named tensors in, the env's actions out, a memory through both.

    Inputs are observations as the env gives them (and the action mask, where there is one), then the state;
    outputs are the actions, what they rest on, then the next state. Computes in float32 on the CPU.
    """

    def __init__(self, policy: Any, spec: Spec) -> None:
        super().__init__()
        self.policy = copy.deepcopy(policy).cpu().eval().requires_grad_(False)
        set_precision(self.policy, torch.float32)
        example = to_tensor(allocate(spec.observation_space, 2))
        self._plain = isinstance(example, Tensor)
        entries = {"obs": example} if isinstance(example, Tensor) else example
        self._obs_keys = tuple(entries)
        with torch.no_grad():
            begin = self.policy.initial_state(2) or {}
            decision = self._decide(example, begin)
            actions = self.policy.env_actions(decision.actions)
        self._state_keys = tuple(decision.state)
        self.initial = {f"state.{key}": begin[key][0].numpy() for key in self._state_keys}
        """The state at the start of an episode, without a batch axis, by the name of its input."""
        state = {key: begin[key] for key in self._state_keys}
        self.example = (*entries.values(), *state.values())
        self.inputs = (
            *(_port(_input_name(key, entries), "observation", entries[key], key) for key in entries),
            *(_port(f"state.{key}", "state", state[key], key) for key in state),
        )
        self.outputs = (
            _port(ACTION, "action", actions, ACTION),
            *(_port(key, "detail", value, key) for key, value in decision.details.items()),
            *(_port(f"next_state.{key}", "state", state[key], key) for key in state),
        )

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Outputs in the order of `outputs`, from inputs in the order of `inputs`."""
        seen = dict(zip(self._obs_keys, tensors, strict=False))
        state = dict(zip(self._state_keys, tensors[len(seen) :], strict=True))
        decision = self._decide(tensors[0] if self._plain else seen, state)
        actions = self.policy.env_actions(decision.actions)
        return (actions, *decision.details.values(), *(decision.state[key] for key in self._state_keys))

    def _decide(self, obs: TensorObs, state: dict[str, Tensor]) -> Decision:
        if hasattr(self.policy, "decide"):
            decision: Decision = self.policy.decide(obs, state)
            return decision
        output = self.policy.act(obs, state or None, deterministic=True)  # a policy of the user's own
        return Decision(output.actions, {}, output.state or {})

    def arrays(self, obs: TensorObs, state: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs by name, from observations as tensors and a state by the names of its inputs."""
        entries = {"obs": obs} if isinstance(obs, Tensor) else obs
        seen = [port for port in self.inputs if port.kind == "observation"]
        return {**{port.name: entries[port.key].numpy() for port in seen}, **state}


def capture(deployed: DeployedPolicy) -> ExportedProgram:
    """The policy's graph with the tensors it needs, for any batch size."""
    program = _trace(copy.deepcopy(deployed))  # a file shares nothing with the policy
    _drop_unused(program)
    for node in program.graph.nodes:
        for name in _TRACES:
            node.meta.pop(name, None)
    program.example_inputs = None  # torch would store them in a way that runs code when it is read
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what exporters have to say about code that is not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _trace(module: DeployedPolicy) -> ExportedProgram:
    batch = Dim("batch")
    shapes = (tuple({0: batch} for _ in module.example),)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(module, module.example, dynamic_shapes=shapes)
    except Exception as error:  # whatever torch raises: it is about the policy's code
        lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "specialized" in line), lines[0] if lines else "")
        hint = "; len(x) of a tensor does that, x.shape[0] does not" if "specialized" in reason else ""
        raise ExportError(
            f"the policy cannot be captured as a graph: {type(error).__name__}: {reason}{hint}"
        ) from error


def _drop_unused(program: ExportedProgram) -> None:
    """Leave out the tensors no output depends on: a critic, noise, raw statistics."""
    graph, signature = program.graph, program.graph_signature
    graph.eliminate_dead_code()
    tensors = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    unused = [node for node in graph.nodes if node.name in tensors and not node.users]
    names = {node.name for node in unused}
    for node in unused:
        graph.erase_node(node)
        program.state_dict.pop(tensors[node.name], None)
        program.constants.pop(tensors[node.name], None)
    signature.input_specs[:] = [spec for spec in signature.input_specs if spec.arg.name not in names]
    program.graph_module.recompile()


def _input_name(key: str, keys: Mapping[str, Any]) -> str:
    """`obs` for an observation that is one array, `obs.KEY` for entries of a Dict; masks have their own."""
    if key == ACTION_MASK:
        return key
    return "obs" if set(keys) - {ACTION_MASK} == {"obs"} else f"obs.{key}"


def _port(
    name: str, kind: Literal["observation", "state", "action", "detail"], example: Tensor, key: str
) -> Port:
    return Port(name, kind, tuple(example.shape[1:]), str(example.dtype).removeprefix("torch."), key)
