"""Many processes at once: every start gets a directory of its own, every run has one holder."""

from __future__ import annotations

import json
import os
import select
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from rl_training import TrainConfig
from rl_training.errors import CheckpointError
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.run import Run
from rl_training.types import Spec

SPEC = Spec(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))


def config(folder: Path) -> TrainConfig:
    return TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(folder), checkpoint={"keep_last": 1})


def state(number: int) -> dict[str, Any]:
    return {"policy": {"w": torch.full((2,), float(number))}, "trainer": {"global_step": number}}


def together(count: int, work: Any) -> list[int]:
    """Exit codes of processes that begin `work(number)` at the same moment."""
    gate, opener = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            try:
                os.close(opener)
                os.read(gate, 1)  # returns when the parent closes the other end
                code = work(number)
            except BaseException as error:
                print(f"{number}: {error!r}", file=sys.stderr)
                code = 99
            os._exit(code)
        children.append(child)
    os.close(gate)
    os.close(opener)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_64_runs_that_start_together(tmp_path: Path, report: Any) -> None:
    def work(number: int) -> int:
        run = Run.create(config(tmp_path), SPEC)
        run.save(state(number), 8, best=False)
        run.finish("completed", f"number {number}")
        return 0

    assert together(64, work) == [0] * 64
    runs = list(tmp_path.iterdir())
    assert len(runs) == 64
    owners = set()
    for run_dir in runs:
        metadata = json.loads((run_dir / "metadata.json").read_text())
        number = int(metadata["stop_reason"].split()[1])
        assert (
            json.loads((find_checkpoint(run_dir) / "state.json").read_bytes())["trainer"]["global_step"]
            == number
        )
        owners.add(number)
    assert owners == set(range(64))
    report("concurrent starts", "64 processes", trials=64)


def test_only_one_of_many_gets_a_run(tmp_path: Path, report: Any) -> None:
    run = Run.create(config(tmp_path), SPEC)
    checkpoint = run.save(state(8), 8, best=False)
    assert checkpoint is not None
    run.close()
    tried, tell = os.pipe()

    def work(number: int) -> int:
        try:
            Run.reopen(run.dir, config(tmp_path), SPEC, checkpoint)
        except CheckpointError as error:
            os.write(tell, b"x")
            return 1 if "another process is training this run" in str(error) else 2
        for _ in range(15):  # keep it until all others have tried; should two get it, both end at once
            if not select.select([tried], [], [], 300)[0]:
                return 3
            os.read(tried, 1)
        return 0

    codes = together(16, work)
    os.close(tried)
    os.close(tell)
    assert sorted(codes) == [0] + [1] * 15
    report("concurrent resumes of one run", "16 processes", trials=16)


def test_a_reader_never_meets_half_a_checkpoint(quick_dir: Path, full: bool, report: Any) -> None:
    """Checkpoints are published and dropped as fast as possible while others read the latest one."""
    run = Run.create(config(quick_dir), SPEC)
    run.save(state(1), 1, best=False)
    rounds = 300 if full else 40

    def work(number: int) -> int:
        if number == 0:
            for step in range(2, rounds):
                run.save(state(step), step, best=False)
            return 0
        last = 0
        while last < rounds - 1:
            try:
                step = _read(run.dir)
            except CheckpointError:
                continue  # dropped between finding and reading: a typed error, and the next one is there
            if step < last:
                return 2
            last = step
        return 0

    assert together(3, work) == [0, 0, 0]
    report("reads during saves", "2 readers, 1 writer", trials=rounds)


def _read(run_dir: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contents = read_contents(find_checkpoint(run_dir, "latest"))
    entry = contents.components["weights"][("policy", "w")]
    assert entry.data == torch.full((2,), float(contents.step)).numpy().tobytes()
    return contents.step
