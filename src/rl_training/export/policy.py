"""`export_policy`: a trained policy as a model file and a description of how to use it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.assembly import Session, make_test_envs
from rl_training.errors import ConfigError, ExportError
from rl_training.experiment.files import explained, make_dirs, replace_atomically, to_json
from rl_training.experiment.find import Which
from rl_training.experiment.manifest import digest
from rl_training.experiment.metadata import versions
from rl_training.experiment.spaces import spec_to_json
from rl_training.export.deploy import DeployedPolicy, Port, capture
from rl_training.export.formats import FormatName, Written, require_format
from rl_training.export.origin import Agent, about_run, env_section, open_agent
from rl_training.export.verify import OBSERVATIONS, TOLERANCE, Verification, VerificationError, compare

DESCRIPTION_VERSION = 1


@dataclass(frozen=True, slots=True)
class Export:
    """What `export_policy` has written."""

    model_path: Path
    description_path: Path
    description: dict[str, Any]
    verification: Verification | None


def export_policy(
    agent: Agent,
    output: str | PathLike[str],
    *,
    format: FormatName = "onnx",  # noqa: A002 - the word the command line uses
    which: Which = "best",
    verify: bool = False,
    observations: int = OBSERVATIONS,
    tolerance: float = TOLERANCE,
    seed: int | None = None,
    env: Any = None,
) -> Export:
    """Write the policy of a run, checkpoint or agent into the directory `output`, to be used on its own.

    `verify` plays it beside the model that was written for so many `observations`, in the env of the run's
    configuration (or `env`), and raises a `VerificationError` where they differ; then nothing is kept.
    """
    kind = require_format(format)
    if observations < 1 or not tolerance >= 0:
        raise ConfigError("observations must be at least 1 and the tolerance at least 0")
    algorithm, session = open_agent(agent, env, which)
    deployed = DeployedPolicy(algorithm.policy, session.spec)
    written = kind.write(capture(deployed), deployed)
    verification = None
    if verify:
        with make_test_envs(session, observations, seed=seed) as envs:
            model = kind.open(written, deployed)
            verification = compare(deployed, model, envs, observations=observations, tolerance=tolerance)
        if not verification.passed:
            raise VerificationError(f"the {format} export does not do what the policy does: {verification}")
    description = _describe(format, kind.file_name, written, deployed, session, verification)
    folder = Path(output)
    paths = folder / kind.file_name, folder / f"{kind.file_name}.json"
    try:
        make_dirs(folder)
        for path, data in zip(paths, (written.data, _rendered(description)), strict=True):
            replace_atomically(path, data)
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written: {explained(error)}") from None
    return Export(*paths, description, verification)


def _describe(
    format_name: str,
    file_name: str,
    written: Written,
    deployed: DeployedPolicy,
    session: Session,
    verification: Verification | None,
) -> dict[str, Any]:
    spaces = spec_to_json(session.spec)
    about = dict(written.about)
    return {
        "description_version": DESCRIPTION_VERSION,
        "format": format_name,
        "file": file_name,
        "sha256": digest(written.data),
        "inputs": [_as_json(port) for port in deployed.inputs],
        "outputs": [_as_json(port) for port in deployed.outputs],
        "state": [_carried(port, deployed) for port in deployed.inputs if port.kind == "state"],
        "deterministic": True,
        "action_space": spaces["action"],
        "observation_space": spaces["observation"],
        "env": env_section(session.config),
        "run": about_run(session),
        "versions": {**versions(), **about.pop("versions", {})},
        **about,
        "verification": None if verification is None else verification.as_json(),
    }


def _as_json(port: Port) -> dict[str, Any]:
    shape = ["batch", *port.shape]
    return {"name": port.name, "kind": port.kind, "key": port.key, "shape": shape, "dtype": port.dtype}


def _carried(port: Port, deployed: DeployedPolicy) -> dict[str, Any]:
    """How a part of the state is carried: which output becomes which input, and how an episode begins."""
    first = deployed.initial[port.name]
    constant = first.size and (first == first.flat[0]).all()
    return {
        "input": port.name,
        "output": f"next_{port.name}",
        "shape": list(port.shape),
        "dtype": port.dtype,
        "initial": first.flat[0].item() if constant else first.tolist(),
    }


def _rendered(description: dict[str, Any]) -> bytes:
    return (to_json(description, indent=2) + "\n").encode()
