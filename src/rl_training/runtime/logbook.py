"""What a run reports of itself: metrics wait, unread, until a line is due, and bad numbers are found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.errors import NonFiniteError
from rl_training.runtime.callbacks import Cadence
from rl_training.types import Evaluation, UpdateResult


class MetricSink(Protocol):
    """Where metrics go. The experiment layer implements it."""

    def log(self, row: Mapping[str, float | int]) -> None: ...
    def log_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None: ...


class Logbook:
    """Takes what updates and evaluations gave, and writes a line every so many steps.

    What updates report stays on the device until then. Whoever reads the numbers earlier, to act on them or
    to save a checkpoint, calls `check` first.
    """

    def __init__(
        self, sink: MetricSink, *, every: int, on_nan: str, device: torch.device | str = "cpu"
    ) -> None:
        self.sink, self.on_nan, self.device = sink, on_nan, device
        self.latest: dict[str, float] = {}
        """The newest value of everything that was written."""
        self.skipped = 0
        """Updates that met NaN or infinity."""
        self._cadence, self._written_step = Cadence(every), -1
        self._pending: list[UpdateResult] = []
        self._unchecked: list[UpdateResult] = []

    def note(self, results: Sequence[UpdateResult]) -> None:
        """Keep metrics, unread, until the next line; `check` refuses or drops bad ones."""
        self._pending.extend(results)
        self._unchecked.extend(results)

    def due(self, before: int, now: int) -> bool:
        """Is a line to be written after the steps from `before` to `now`?"""
        return self._cadence.due(before, now)

    def has_written(self, step: int) -> bool:
        """Whether the last line was of this step."""
        return self._written_step == step

    def read(self, step: int) -> dict[str, float]:
        """The means of what was noted since the last line, read from the device once."""
        self.check(step)
        train = {f"train/{name}": float(values.mean()) for name, values in self.columns().items()}
        self._pending.clear()
        if self.on_nan != "raise":
            train["train/skipped_updates"] = float(self.skipped)
        return train

    def write(self, row: Mapping[str, float]) -> None:
        """Write a line: what was read, and what others have to say."""
        self._written_step = int(row["global_step"])
        self.latest.update(row)
        self.sink.log(row)

    def write_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """Write what an evaluation gave."""
        self.latest["evaluation/return_mean"] = float(np.mean(evaluation.returns))
        if evaluation.successes:
            self.latest["evaluation/success_rate"] = float(np.mean(evaluation.successes))
        self.sink.log_evaluation(step, elapsed_s, evaluation)

    def check(self, step: int) -> None:
        """Stop, or count, when an update met NaN or infinity. The weights were not touched by it."""
        results, self._unchecked = self._unchecked, []
        labels = [(result, name) for result in results for name in result.metrics]
        if not labels:
            return
        finite = torch.stack([result.metrics[name] for result, name in labels]).isfinite()
        if bool(finite.all()):
            return
        bad = [label for label, good in zip(labels, finite.tolist(), strict=True) if not good]
        where = ", ".join(dict.fromkeys(name for _, name in bad))
        message = f"NaN or infinity in {where} of an update at step {step}"
        if self.on_nan == "raise":
            raise NonFiniteError(
                f"{message}. The last good checkpoint is untouched. Lower the learning rate or look for "
                "bad observations; `--on-nan skip-update` skips such updates instead."
            )
        dropped = {id(result) for result, _ in bad}
        self.skipped += len(dropped)
        self._pending = [result for result in self._pending if id(result) not in dropped]

    def columns(self) -> dict[str, Tensor]:
        """Metrics noted since the last line, one tensor a name, in the order they came."""
        columns: dict[str, list[Tensor]] = {}
        for result in self._pending:
            for name, value in result.metrics.items():
                columns.setdefault(name, []).append(value.reshape(-1))
        return {name: torch.cat(values) for name, values in columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """What the next line will be made of, and the step of the last."""
        return {
            "skipped_updates": self.skipped,
            "pending": self.columns(),
            "written_step": self._written_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.skipped, self._written_step = state["skipped_updates"], state.get("written_step", -1)
        pending = {name: values.to(self.device) for name, values in state["pending"].items()}
        self._pending = [UpdateResult(pending)] if pending else []


def require_finite_weights(algorithm: Algorithm, step: int) -> None:
    """Refuse to publish a poisoned checkpoint beside good ones."""
    for network, module in {"policy": algorithm.policy, **algorithm.networks}.items():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NonFiniteError(f"NaN or infinity in {name} of the {network} at step {step}")
