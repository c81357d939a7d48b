"""The files an export can be: how each is written, as bytes, and how it is opened again to be verified."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.export import ExportedProgram

from rl_training.errors import ExportError, MissingExtraError, UnknownNameError
from rl_training.export.deploy import DeployedPolicy, quiet
from rl_training.export.graph import graph_tensors, graph_to_json, run_graph
from rl_training.types import Array

FormatName = Literal["onnx", "torch", "safetensors"]
Model = Callable[[Mapping[str, Array]], dict[str, Array]]
"""An exported policy that can be run: arrays by name in, arrays by name out."""


@dataclass(frozen=True, slots=True)
class Written:
    """The contents of a model file, and what its description says besides what all of them say."""

    data: bytes
    about: dict[str, Any]


class Format(Protocol):
    """One kind of file."""

    file_name: str
    modules: tuple[str, ...]
    """What the extra `export` brings for it."""

    def write(self, program: ExportedProgram, deployed: DeployedPolicy) -> Written:
        """The file, from a policy and its captured graph."""

    def open(self, written: Written, deployed: DeployedPolicy) -> Model:
        """The policy again, from the file alone."""


class Onnx:
    """For any runtime that reads ONNX."""

    file_name: str = "model.onnx"
    modules: tuple[str, ...] = ("onnx", "onnx_ir", "onnxscript", "onnxruntime")

    def write(self, program: ExportedProgram, deployed: DeployedPolicy) -> Written:
        """By torch's exporter of captured graphs."""
        import onnx_ir

        try:
            with quiet(), _silent("torch.onnx"):
                exported = torch.onnx.export(
                    program,
                    (),
                    input_names=[port.name for port in deployed.inputs],
                    output_names=[port.name for port in deployed.outputs],
                    dynamic_shapes=(tuple({0: "batch"} for _ in deployed.inputs),),  # what to call the axis
                    dynamo=True,
                    verbose=False,
                )
                assert exported is not None  # only the old exporter answers nothing
                onnx_ir.passes.common.ClearMetadataAndDocStringPass()(exported.model)
                proto = exported.model_proto
        except Exception as error:  # an operator that ONNX does not have, for example
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(
                f"the policy cannot be written as ONNX: {type(error).__name__}: {reason}"
            ) from error
        found = {name: import_module(name).__version__ for name in self.modules}
        return Written(proto.SerializeToString(), {"opset": proto.opset_import[0].version, "versions": found})

    def open(self, written: Written, deployed: DeployedPolicy) -> Model:
        """In ONNX Runtime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(written.data, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))

        return run


class Torch:
    """For torch alone: a program of `torch.export`, of data and no code."""

    file_name: str = "model.pt2"
    modules: tuple[str, ...] = ()

    def write(self, program: ExportedProgram, deployed: DeployedPolicy) -> Written:
        """As torch saves it, if it did so without anything that runs when it is read."""
        buffer = io.BytesIO()
        with quiet():
            torch.export.save(program, buffer)
        _require_data_only(buffer)
        return Written(buffer.getvalue(), {})

    def open(self, written: Written, deployed: DeployedPolicy) -> Model:
        """As torch loads it: only ever what `write` has just made, for a stranger's file could hold code."""
        with quiet():
            module = torch.export.load(io.BytesIO(written.data)).module()

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            outputs = module(*(torch.from_numpy(inputs[port.name]) for port in deployed.inputs))
            return _arrays(dict(zip((port.name for port in deployed.outputs), outputs, strict=True)))

        return run


class Safetensors:
    """For those who build the network themselves: its tensors, and its operations in the description."""

    file_name: str = "model.safetensors"
    modules: tuple[str, ...] = ()

    def write(self, program: ExportedProgram, deployed: DeployedPolicy) -> Written:
        """Tensors to the file, the graph to the description."""
        tensors = graph_tensors(program)
        graph = graph_to_json(
            program, [port.name for port in deployed.inputs], [port.name for port in deployed.outputs]
        )
        listed = {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in tensors.items()
        }
        return Written(save_tensors(tensors), {"network": {"tensors": listed, **graph}})

    def open(self, written: Written, deployed: DeployedPolicy) -> Model:
        """By the description."""
        tensors = load_tensors(written.data)
        network = json.loads(json.dumps(written.about["network"]))  # what a reader of the file would have

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            given = {name: torch.from_numpy(value) for name, value in inputs.items()}
            return _arrays(run_graph(network, tensors, given))

        return run


FORMATS: dict[str, Format] = {"onnx": Onnx(), "torch": Torch(), "safetensors": Safetensors()}


def require_format(name: str) -> Format:
    """The format of this name, if what it needs is installed."""
    if name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    for module in FORMATS[name].modules:
        try:
            import_module(module)
        except ImportError:
            raise MissingExtraError(f"exporting to {name}", "export") from None
    return FORMATS[name]


def _require_data_only(archive: io.BytesIO) -> None:
    """Torch's format has places for serialised Python objects (odd tensors, sample inputs): all are empty."""
    with zipfile.ZipFile(archive) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    listed = [json.loads(data) for name, data in contents.items() if name.endswith("_config.json")]
    entries = [entry for one in listed for entry in one.get("config", {}).values()]
    odd = [name for name, data in contents.items() if name.endswith(".pt") and data]
    if odd or any(entry.get("use_pickle", True) for entry in entries):
        raise ExportError("the policy holds objects that torch would store as code; use onnx or safetensors")


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Let only errors of a logger through: what is not installed there is of no use to us."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
