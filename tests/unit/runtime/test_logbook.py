"""What a run reports: lines of means, and what becomes of bad numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rl_training.errors import NonFiniteError
from rl_training.runtime.logbook import Logbook
from rl_training.types import Evaluation, UpdateResult


class Sink:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log(self, row: Mapping[str, float | int]) -> None:
        self.rows.append(dict(row))

    def log_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None: ...


def results(*losses: float) -> list[UpdateResult]:
    return [UpdateResult({"loss": torch.tensor(loss)}) for loss in losses]


def test_a_line_has_the_means_of_what_came_since_the_last() -> None:
    sink = Sink()
    book = Logbook(sink, every=10, on_nan="raise")
    assert [book.due(0, 9), book.due(9, 10), book.due(10, 25)] == [False, True, True]
    book.note(results(1.0, 2.0))
    other = Logbook(sink, every=10, on_nan="raise")
    other.load_state_dict(book.state_dict())  # what is pending goes with a checkpoint
    for one in (book, other):
        one.note(results(6.0))
        assert one.read(10) == {"train/loss": 3.0}
        assert one.read(10) == {}
    book.write({"global_step": 10, "train/loss": 3.0})
    assert (book.has_written(10), book.has_written(20)) == (True, False)
    assert sink.rows == [book.latest] == [{"global_step": 10, "train/loss": 3.0}]


def test_what_is_pending_is_restored_to_where_the_updates_report_from() -> None:
    book, other = (Logbook(Sink(), every=10, on_nan="raise", device=device) for device in ("cpu", "meta"))
    book.note(results(1.0))
    other.load_state_dict(book.state_dict())
    other.note([UpdateResult({"loss": torch.tensor(2.0, device="meta")})])
    column = other.columns()["loss"]
    assert (column.device.type, column.shape) == ("meta", (2,))


def test_bad_updates_stop_the_run_or_are_left_out() -> None:
    strict, lenient = (Logbook(Sink(), every=10, on_nan=what) for what in ("raise", "skip-update"))
    for book in (strict, lenient):
        book.note(results(1.0, float("nan"), 3.0))
    with pytest.raises(NonFiniteError, match="NaN or infinity in loss of an update at step 7"):
        strict.check(7)
    lenient.check(7)
    assert lenient.read(7) == {"train/loss": 2.0, "train/skipped_updates": 1.0}
