"""A crash after every single file-system operation: a reader finds the old checkpoint or the new one, whole.

Each scenario is played once to count its operations, then once for each of them in a forked process that ends
there. The states that a power failure may leave at the same points come from a model of the disk.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_fs import Operation, Shim, Tree, after_power_failure, materialise, replayed, snapshot
from gymnasium import spaces

from rl_training import TrainConfig
from rl_training.errors import CheckpointError, SaveError
from rl_training.experiment.checkpoint import write_checkpoint
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.layers import replace
from rl_training.experiment.run import Run
from rl_training.types import Segment, Spec

SPEC = Spec(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))
Fingerprint = dict[str, str] | None


def config(**checkpoint: Any) -> TrainConfig:
    return TrainConfig(algo="ppo", env_id="CartPole-v1", checkpoint=checkpoint)


def state(step: int) -> dict[str, Any]:
    return {
        "policy": {"w": torch.full((3, 2), float(step))},
        "optimizers": {"adam": {"0": {"exp_avg": torch.full((3, 2), step / 10)}}},
        "trainer": {"global_step": step},
        "buffer": {
            "0": Segment("full", lambda: {"obs": torch.arange(4.0)}),  # linked from checkpoint to checkpoint
            "1": Segment(f"after {step}", lambda: {"obs": torch.full((4,), float(step))}),
        },
        "callbacks": {"EvaluationCallback": {"best_step": None}},
    }


def new_run(root: Path, steps: tuple[int, ...], **checkpoint: Any) -> None:
    run = Run.create(replace(config(**checkpoint), output_dir=str(root)), SPEC)
    for step in steps:
        run.save(state(step), step, best=step == steps[0])
    run.close()
    run.dir.rename(root / "run")


def reopened(root: Path, step: int | None = None, **checkpoint: Any) -> Run:
    path = find_checkpoint(root / "run", "latest")
    path = path if step is None else path.with_name(f"step_{step}")
    return Run.reopen(root / "run", config(**checkpoint), SPEC, path)


@dataclass(frozen=True)
class Scenario:
    """Something that changes files: what is there before, the change, and what may be found after a crash."""

    name: str
    prepare: Callable[[Path], Any]
    act: Callable[[Path], Any]
    before: int | None
    """The step of the checkpoint that a reader gets at first; None: there is none yet."""
    after: int
    which: Any = "latest"
    target: str = "run"

    @property
    def allowed(self) -> set[int | None]:
        """What a reader may get after a crash."""
        return {self.before, self.after}


def save_into(root: Path, step: int, *, best: bool = False, **checkpoint: Any) -> None:
    run = reopened(root, **checkpoint)
    try:
        run.save(state(step), step, best=best)
    finally:
        run.close()


def overwrite(root: Path, step: int) -> None:
    write_checkpoint(root / "agent", state(step), config=config(), spec=SPEC, step=step)


def first_save(root: Path) -> None:
    run = Run(root / "run", config(), {"status": "running"}, SPEC)
    run.save(state(10), 10, best=True)
    run.close()


SCENARIOS = [
    Scenario("a second save", lambda r: new_run(r, (10,)), lambda r: save_into(r, 20), 10, 20),
    Scenario("a save with retention", lambda r: new_run(r, (10, 20), keep_last=1),
             lambda r: save_into(r, 30, keep_last=1), 20, 30),
    Scenario("a new best", lambda r: new_run(r, (10, 20)), lambda r: save_into(r, 30, best=True), 10, 30,
             "best"),
    Scenario("going back", lambda r: new_run(r, (10, 20, 30)), lambda r: reopened(r, 10).close(), 30, 10),
    Scenario("the first save", lambda r: new_run(r, ()), first_save, None, 10),
    Scenario("saving over an agent", lambda r: overwrite(r, 10), lambda r: overwrite(r, 20), 10, 20,
             target="agent"),
]  # fmt: skip


def fingerprint(step: int) -> dict[str, str]:
    """What a checkpoint of this step must hold, whoever wrote it."""
    if step not in _KNOWN:
        with tempfile.TemporaryDirectory() as folder:
            path = write_checkpoint(Path(folder) / "c", state(step), config=config(), spec=SPEC, step=step)
            _KNOWN[step] = read_contents(path).fingerprint()
    return _KNOWN[step]


_KNOWN: dict[int, dict[str, str]] = {}


def found(root: Path, scenario: Scenario) -> int | None:
    """The step of what the loader returns, having made sure that it is that step's state and no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            contents = read_contents(find_checkpoint(root / scenario.target, scenario.which))
        except CheckpointError:
            return None
    assert contents.fingerprint() == fingerprint(contents.step)
    return contents.step


def play(scenario: Scenario, root: Path) -> tuple[Tree, list[Operation]]:
    """The scenario without a crash: what was there before, and its operations."""
    root.mkdir()
    scenario.prepare(root)
    before = snapshot(root)
    with Shim(root).active() as shim:
        scenario.act(root)
    assert found(root, scenario) == scenario.after
    assert replayed(before, shim.log) == snapshot(root)  # no operation has escaped the shim
    return before, shim.log


def sampled(operations: int, full: bool) -> list[int]:
    """All operations, or the last and one in four: a fork for each takes its time."""
    return sorted({*range(1, operations, 1 if full else 4), operations})


def die_after(operation: int, scenario: Scenario, root: Path) -> None:
    """Act in a forked process that ends after an operation, as if killed."""
    child = os.fork()
    if not child:
        try:
            with Shim(root, after=lambda k: os._exit(7) if k == operation else None).active():
                scenario.act(root)
        finally:
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_a_process_that_dies_after_any_operation(
    scenario: Scenario, quick_dir: Path, full: bool, report: Any
) -> None:
    before, log = play(scenario, quick_dir / "whole")
    seen = set()
    for number in sampled(len(log), full):
        root = materialise(before, quick_dir / "root")
        die_after(number, scenario, root)
        step = found(root, scenario)
        assert step in scenario.allowed, f"after operation {number} of {len(log)}: {log[number - 1]}"
        seen.add(step)
        if scenario.target == "run" and step is not None:
            _goes_on(root, step)
        shutil.rmtree(root)
    assert seen == scenario.allowed  # the crash points are on both sides of the change
    report("crash after every operation", scenario.name, trials=len(log))


def _goes_on(root: Path, step: int) -> None:
    """A run that died can be taken up, saved into again, and holds no leftovers then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = reopened(root)
        run.save(state(step + 5), step + 5, best=False)
        run.close()
        assert read_contents(find_checkpoint(root / "run", "latest")).fingerprint() == fingerprint(step + 5)
    assert not list((root / "run").glob(".*.tmp"))
    assert not list((root / "run" / "checkpoints").glob(".*"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_a_power_failure_after_any_operation(
    scenario: Scenario, quick_dir: Path, full: bool, report: Any
) -> None:
    before, log = play(scenario, quick_dir / "whole")
    rng = random.Random(scenario.name)
    states: set[tuple[Any, ...]] = set()
    for number in range(len(log) + 1):
        for tree in after_power_failure(before, log[:number], rng, draws=20 if full else 1):
            key = tuple(sorted(tree.items()))
            if key in states:
                continue
            states.add(key)
            root = materialise(tree, quick_dir / "disk")
            step = found(root, scenario)
            assert step in scenario.allowed, f"after operation {number} of {len(log)}: {log[:number][-1:]}"
            shutil.rmtree(root)
    report("power failure after every operation", scenario.name, trials=len(states), operations=len(log))


@pytest.mark.parametrize("scenario", SCENARIOS[:2], ids=lambda s: s.name)
def test_an_error_of_any_operation_is_a_save_error_and_the_old_checkpoint_stays(
    scenario: Scenario, quick_dir: Path, full: bool, report: Any
) -> None:
    """An operation that fails, rather than a process that dies: a full disk, an I/O error."""
    before, log = play(scenario, quick_dir / "whole")
    errors = []
    for number in sampled(len(log), full):
        root = materialise(before, quick_dir / "root")

        def fail(k: int, number: int = number) -> None:
            if k == number:
                raise OSError(5, "Input/output error")

        with Shim(root, before=fail).active(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                scenario.act(root)
            except SaveError as error:
                errors.append(str(error))
        assert found(root, scenario) in scenario.allowed, f"operation {number}: {log[number - 1]}"
        _goes_on(root, found(root, scenario) or 0)
        shutil.rmtree(root)
    assert errors
    assert all("cannot be" in error and "Input/output error" in error for error in errors)
    report("I/O error at every operation", scenario.name, trials=len(log))
