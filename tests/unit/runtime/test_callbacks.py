"""Callbacks one by one, on a trainer that only remembers what it is asked for."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.runtime.callbacks import (
    Cadence,
    CheckpointCallback,
    EarlyStopping,
    EvaluationCallback,
    StepBudget,
    TimeBudget,
)
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.progress import reader_may_leave
from rl_training.types import Evaluation


def evaluation(mean: float) -> Evaluation:
    return Evaluation(returns=(mean - 1, mean + 1), lengths=(1, 1))


def trainer(**more: Any) -> Any:
    fake = SimpleNamespace(
        global_step=0, previous_step=0, stop_reason=None, interrupted=None, finished=False, saved=[], told=[],
        to_come=[], **more,
    )  # fmt: skip

    def stop(reason: str) -> None:
        fake.stop_reason = fake.stop_reason or reason

    fake.stop = stop
    fake.save_checkpoint = lambda *, best=False: fake.saved.append((fake.global_step, best))
    fake.notify_evaluation = lambda e: fake.told.append((fake.global_step, e))
    fake.evaluate = lambda: evaluation(fake.to_come.pop(0))
    return fake


def advance(fake: Any, callback: Any, steps: int) -> None:
    fake.previous_step, fake.global_step = fake.global_step, fake.global_step + steps
    callback.on_update(fake)


def test_cadence_is_crossing_a_multiple() -> None:
    cadence = Cadence(100)
    assert [cadence.due(a, b) for a, b in ((0, 99), (99, 100), (100, 199), (199, 201), (0, 1000))] == [
        False, True, False, True, True,
    ]  # fmt: skip
    assert not Cadence(0).due(0, 10**9)


def test_checkpoints_come_once_a_crossing_however_large_the_iteration() -> None:
    fake, callback = trainer(), CheckpointCallback(100)
    for steps in (60, 60, 60, 250, 20):
        advance(fake, callback, steps)
    assert fake.saved == [(120, False), (430, False)]


def test_the_best_evaluation_is_saved_as_best() -> None:
    fake, callback = trainer(), EvaluationCallback(10)
    fake.to_come = [1.0, 3.0, 2.0, 3.0, float("nan"), 4.0]
    for _ in range(6):
        advance(fake, callback, 10)
    assert [step for step, _ in fake.told] == [10, 20, 30, 40, 50, 60]
    assert fake.saved == [(10, True), (20, True), (60, True)]
    assert (callback.best, callback.best_step) == (4.0, 60)
    again = EvaluationCallback(10)
    again.load_state_dict(callback.state_dict())
    fake.to_come = [3.5]
    advance(fake, again, 10)
    assert len(fake.saved) == 3


@pytest.mark.parametrize(
    ("every", "interrupted", "finished", "evaluates"),
    [
        (10, None, True, True),
        (10, "SIGINT", False, False),
        (10, "SIGINT", True, True),
        (0, None, True, False),
    ],
)
def test_the_final_policy_is_evaluated_once(
    every: int, interrupted: str | None, finished: bool, evaluates: bool
) -> None:
    fake, callback = trainer(), EvaluationCallback(every)
    fake.interrupted, fake.finished, fake.to_come = interrupted, finished, [1.0]
    advance(fake, callback, 5)
    callback.on_train_end(fake)
    callback.on_train_end(fake)
    assert len(fake.told) == evaluates


def test_stopping_at_a_target() -> None:
    fake, callback = trainer(), EarlyStopping(target_return=10.0)
    callback.on_evaluation(fake, evaluation(9.9))
    assert fake.stop_reason is None
    callback.on_evaluation(fake, evaluation(10.0))
    assert fake.stop_reason == "evaluation return 10 reached the target 10"


def test_stopping_without_improvement_counts_only_what_exceeds_min_delta() -> None:
    fake, callback = trainer(), EarlyStopping(patience=2, min_delta=0.5)
    for mean in (1.0, 1.5, 1.6, 2.1, 2.0):
        callback.on_evaluation(fake, evaluation(mean))  # 1.5 is not enough, 1.6 is, 2.1 is not
        assert fake.stop_reason is None or mean == 2.0
    assert fake.stop_reason == "no improvement in 2 evaluations (best 1.6)"


def test_patience_goes_on_after_a_resume() -> None:
    callback = EarlyStopping(patience=2)
    fake = trainer()
    for mean in (5.0, 4.0):
        callback.on_evaluation(fake, evaluation(mean))
    again = EarlyStopping(patience=2)
    again.load_state_dict(callback.state_dict())
    again.on_evaluation(fake, evaluation(4.5))
    assert fake.stop_reason == "no improvement in 2 evaluations (best 5)"


def test_evaluations_that_are_not_numbers_are_no_improvement() -> None:
    fake, callback = trainer(), EarlyStopping(patience=2)
    for _ in range(2):
        callback.on_evaluation(fake, evaluation(float("nan")))
    assert fake.stop_reason == "no improvement in 2 evaluations (best none)"


def test_a_time_budget_counts_over_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("rl_training.runtime.callbacks.monotonic", lambda: now[0])
    fake, first = trainer(), TimeBudget(10.0)
    first.on_train_start(fake)
    now[0] += 6
    first.on_update(fake)
    assert fake.stop_reason is None
    saved = first.state_dict()
    assert saved == {"used": 6.0}
    now[0] += 1000  # the machine was off
    again = TimeBudget(10.0)
    again.load_state_dict(saved)
    again.on_train_start(fake)
    now[0] += 3
    again.on_update(fake)
    assert fake.stop_reason is None
    now[0] += 1
    again.on_update(fake)
    assert fake.stop_reason == "time budget of 10 s used up"


def test_a_step_budget_counts_from_where_the_call_began() -> None:
    fake, callback = trainer(), StepBudget(100)
    fake.global_step = 1000
    callback.on_train_start(fake)
    advance(fake, callback, 99)
    assert fake.stop_reason is None
    advance(fake, callback, 1)
    assert fake.stop_reason == "step budget of 100 used up"


def test_the_profiler_shares_a_window_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rl_training.runtime.profiler.perf_counter", lambda: now[0])
    profiler = Profiler()
    profiler.start(100)
    profiler.add("env", 1.0)
    profiler.add("learn", 2.0)
    profiler.add("env", 1.0)
    now[0] = 10.0
    report = profiler.report(600)
    assert report["steps_per_second"] == 50.0
    assert (report["time/env"], report["time/learn"], report["time/other"]) == (0.2, 0.2, pytest.approx(0.6))
    now[0] = 11.0
    assert profiler.report(600) == {
        "steps_per_second": 0.0, "time/env": 0.0, "time/inference": 0.0, "time/learn": 0.0,
        "time/evaluate": 0.0, "time/save": 0.0, "time/other": 1.0,
    }  # fmt: skip


class _Stream(io.StringIO):
    """Refuses what it is told to refuse, and is a file of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("w")
        self.problems: list[int] = []

    def fileno(self) -> int:
        return self.file.fileno()

    def write(self, text: str) -> int:
        if self.problems:
            number = self.problems.pop(0)
            raise OSError(number, os.strerror(number))
        os.write(self.fileno(), text.encode())
        return len(text)


def test_only_a_reader_who_has_left_is_not_spoken_to_again(tmp_path: Path) -> None:
    stream = _Stream(tmp_path / "said")
    stream.problems = [errno.ENOSPC, errno.EAGAIN]
    for text in ("full", "busy", "heard"):
        with reader_may_leave(stream):
            stream.write(text)
    assert (tmp_path / "said").read_text() == "heard"
    stream.problems = [errno.EPIPE]
    for text in ("gone", "not heard"):
        with reader_may_leave(stream):
            stream.write(text)
    assert (tmp_path / "said").read_text() == "heard"
    stream.file.close()
