"""A captured graph as JSON, readable without torch: its operations in order, each on the results of others.

An argument is a plain value or list of them, or says what it stands for: {"input": name}, {"tensor": name in
the safetensors file}, {"node": an earlier result}, {"number": "inf"}, or {"dtype" | "device" | …: name}.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from rl_training.errors import ExportError

_ON_SIZES: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "floordiv", "mod", "neg")
}
"""What a graph does outside of ATen: take one of several results, and compute with sizes."""
_NAMED = {torch.dtype: "dtype", torch.device: "device", torch.layout: "layout", torch.memory_format: "memory"}
_CHECKS = ("aten._assert", "aten.sym_constrain")


def graph_to_json(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
    """The graph's nodes, and which of their results the outputs are."""
    signature = program.graph_signature
    tensors = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    given = {name: {"tensor": target} for name, target in tensors.items()}
    given |= {str(name): {"input": port} for name, port in zip(signature.user_inputs, inputs, strict=True)}
    results = zip(outputs, signature.user_outputs, strict=True)
    nodes = [
        {
            "name": node.name,
            "op": _name(node.target),
            "args": [_encode(value, given) for value in node.args],
            **({"kwargs": kwargs} if (kwargs := _kwargs(node, given)) else {}),
        }
        for node in program.graph.nodes
        if node.op == "call_function" and not str(node.target).startswith(_CHECKS)
    ]
    return {"nodes": nodes, "outputs": {port: given.get(str(x), {"node": str(x)}) for port, x in results}}


def graph_tensors(program: ExportedProgram) -> dict[str, Tensor]:
    """The tensors that the nodes name."""
    signature = program.graph_signature
    stored: dict[str, Tensor] = {**program.constants, **program.state_dict}
    names = (
        *signature.inputs_to_parameters.values(),
        *signature.inputs_to_buffers.values(),
        *signature.inputs_to_lifted_tensor_constants.values(),
    )
    return {name: stored[name].detach().clone().contiguous() for name in names}


def run_graph(
    graph: Mapping[str, Any], tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Compute the outputs from a description and its tensors: ATen's operators and no other code."""
    results: dict[str, Any] = {}

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, name),) = value.items()
        match kind:
            case "node":
                return results[name]
            case "tensor":
                return tensors[name]
            case "input":
                return inputs[name]
            case "number":
                return float(name)
            case "device":
                return torch.device(name)
            case "dtype" | "layout" | "memory":
                return getattr(torch, name)
        raise ExportError(f"graph: unknown argument {value}")

    for node in graph["nodes"]:
        args = decode(node["args"])
        kwargs = {key: decode(value) for key, value in node.get("kwargs", {}).items()}
        results[node["name"]] = _operation(node["op"])(*args, **kwargs)
    return {port: decode(where) for port, where in graph["outputs"].items()}


def _name(target: Any) -> str:
    name = str(target) if isinstance(target, torch._ops.OpOverload) else target.__name__
    _operation(name)
    return name


def _operation(name: str) -> Callable[..., Any]:
    if name in _ON_SIZES:
        return _ON_SIZES[name]
    parts = name.split(".")
    if len(parts) != 3 or parts[0] != "aten":
        raise ExportError(f"the policy uses {name!r}, which is no operator of ATen; use another format")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, parts[1]), parts[2])
    return found


def _kwargs(node: Node, given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _encode(value, given) for key, value in node.kwargs.items()}


def _encode(value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, Node):
        return given.get(value.name, {"node": value.name})
    if isinstance(value, list | tuple):
        return [_encode(item, given) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    for kind, name in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ExportError(f"the policy's graph has an argument of type {type(value).__name__}")
