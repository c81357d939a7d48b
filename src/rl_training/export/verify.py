"""Does an export do what the policy does? Both see the same observations, and each carries its own state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from rl_training.envs.vector import VectorEnv
from rl_training.errors import ExportError
from rl_training.export.deploy import ACTION, DeployedPolicy
from rl_training.export.formats import Model
from rl_training.runtime.evaluator import play
from rl_training.types import Array

OBSERVATIONS, TOLERANCE = 1_000, 1e-4
_CPU = torch.device("cpu")


class VerificationError(ExportError):
    """An export that does not do what the policy does."""


@dataclass(slots=True)
class Verification:
    """How far an export and its policy are apart, at most; relative where numbers are larger than 1."""

    tolerance: float
    observations: int = 0
    largest_difference: float = 0.0
    largest_in: str = ACTION
    """The output in which it was seen."""
    different_choices: int = 0
    """Observations for which another choice was made although there was no tie."""

    @property
    def passed(self) -> bool:
        """Whether that is near enough."""
        return self.largest_difference <= self.tolerance and not self.different_choices

    def as_json(self) -> dict[str, Any]:
        """What descriptions and `--json` say of it."""
        return {**asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        text = (
            f"{self.observations:,} observations, largest difference {self.largest_difference:.2g} "
            f"(in {self.largest_in}), tolerance {self.tolerance:g}"
        )
        return text + (f", {self.different_choices:,} other choices" if self.different_choices else "")

    def note(self, name: str, expected: Array, found: Array) -> None:
        """Look at an output of numbers."""
        if found.shape != expected.shape:
            raise VerificationError(f"{name}: has shape {found.shape}, should have {expected.shape}")
        apart = np.abs(found.astype(np.float64) - expected) / np.maximum(np.abs(expected), 1.0)
        largest = float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
        if largest > self.largest_difference:
            self.largest_difference, self.largest_in = largest, name


def compare(
    deployed: DeployedPolicy, model: Model, envs: VectorEnv, *, observations: int, tolerance: float
) -> Verification:
    """Play the policy in `envs` and compare each of its decisions with the model's."""
    verification = Verification(tolerance)
    expected_state, found_state = (_initial(deployed, envs.num_envs) for _ in range(2))
    with torch.inference_mode():
        for moment in play(deployed.policy, envs, device=_CPU, seed=envs.seed):
            given = deployed.arrays(moment.obs, expected_state)
            expected = _run(deployed, given)
            expected[ACTION] = moment.actions  # what the policy itself has done
            inputs = {**given, **found_state}
            found = model(inputs)
            rows = min(envs.num_envs, observations - verification.observations)
            _compare(verification, deployed, expected, found, slice(rows))
            if not verification.observations:  # batches of one are a case of their own
                alone = model({name: value[:1] for name, value in inputs.items()})
                _compare(verification, deployed, expected, alone, slice(1))
            verification.observations += rows
            if verification.observations >= observations:
                break
            expected_state = _next(deployed, expected, moment.result.ended)
            found_state = _next(deployed, found, moment.result.ended)
    return verification


def _run(deployed: DeployedPolicy, inputs: Mapping[str, Array]) -> dict[str, Array]:
    outputs = deployed(*(torch.from_numpy(inputs[port.name]) for port in deployed.inputs))
    return {port.name: value.numpy() for port, value in zip(deployed.outputs, outputs, strict=True)}


def _compare(
    verification: Verification,
    deployed: DeployedPolicy,
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    rows: slice,
) -> None:
    for port in deployed.outputs:
        one, two = expected[port.name][rows], found[port.name][rows]
        if port.kind != "action" or one.dtype.kind == "f":
            verification.note(port.name, one, two)
        elif (one != two).any():
            scores = next((expected[p.name][rows] for p in deployed.outputs if p.kind == "detail"), None)
            verification.different_choices += _not_tied(one, two, scores, verification.tolerance)


def _not_tied(one: Array, two: Array, scores: Array | None, tolerance: float) -> int:
    """Rows in which choices differ and the scores of the best ones are not as good as equal."""
    differ = (one != two).reshape(len(one), -1)
    if scores is None:
        return int(differ.any(1).sum())
    if scores.shape == one.shape:  # bits, whose scores say yes above 0
        tied = np.abs(scores).reshape(differ.shape) <= tolerance
    else:
        best = np.sort(scores, axis=-1)[..., -2:]
        tied = (best[..., -1] - best[..., 0] <= 2 * tolerance).reshape(differ.shape)
    return int((differ & ~tied).any(1).sum())


def _initial(deployed: DeployedPolicy, rows: int) -> dict[str, Array]:
    return {name: np.repeat(value[None], rows, 0) for name, value in deployed.initial.items()}


def _next(deployed: DeployedPolicy, outputs: Mapping[str, Array], ended: Array) -> dict[str, Array]:
    """The state for the next step: what came out, and the beginning where an episode has ended."""
    state = {name: outputs[f"next_{name}"].copy() for name in deployed.initial}
    for name, first in deployed.initial.items():
        state[name][ended] = first
    return state
