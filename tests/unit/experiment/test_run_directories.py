"""Run directories: one each, safely named, held by one process, with the checkpoints worth keeping."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import TrainConfig
from rl_training.errors import CheckpointError, ConfigError, SaveError
from rl_training.experiment import metadata
from rl_training.experiment.files import replace_atomically, to_json
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.layers import Layer, preset_layers, resolve_layers
from rl_training.experiment.lock import RunLock
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.run import Run
from rl_training.experiment.runs import checkpoint_steps, make_run_dir, run_of
from rl_training.types import Spec

SPEC = Spec(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))


def config(tmp_path: Path, **more: Any) -> TrainConfig:
    return TrainConfig(
        **{"algo": "ppo", "env_id": "CartPole-v1", "seed": 7, "output_dir": str(tmp_path), **more}
    )


def state(step: int) -> dict[str, Any]:
    return {"policy": {"w": torch.full((2,), float(step))}}


def _make_several(arguments: tuple[str, int]) -> list[str]:
    where, count = arguments
    return [str(make_run_dir(config(Path(where)))) for _ in range(count)]


def test_64_runs_that_start_together_get_64_directories(tmp_path: Path) -> None:
    with ThreadPoolExecutor(32) as pool:
        threads = list(pool.map(lambda _: make_run_dir(config(tmp_path)), range(48)))
    with multiprocessing.get_context("fork").Pool(4) as processes:
        others = processes.map(_make_several, [(str(tmp_path), 4)] * 4)
    made = {str(path) for path in threads} | {path for group in others for path in group}
    assert len(made) == 64 == len(list(tmp_path.iterdir()))
    assert all((Path(path) / "checkpoints").is_dir() for path in made)


@pytest.mark.parametrize(
    ("env_id", "safe"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("my.module:Env-v0", "my.module-Env-v0"),
        ("../../x", "x"),
        ("..", "unnamed"),
        ("a b;$(rm)\n", "a-b-rm"),
        ("é" * 300, "unnamed"),
        ("x" * 300, "x" * 80),
    ],
)
def test_names_are_safe(env_id: str, safe: str, tmp_path: Path) -> None:
    path = make_run_dir(config(tmp_path, env_id=env_id))
    assert path.parent == tmp_path
    assert path.name.startswith(f"ppo__{safe}__seed7__2")


def test_an_output_dir_that_cannot_be_written_is_a_readable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output_dir: .*file"):
        make_run_dir(config(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert make_run_dir(config(tmp_path, output_dir="~/runs")).parent == tmp_path / "home" / "runs"


def test_a_second_holder_gets_an_error_until_the_first_is_gone(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    run = Run.create(cfg, SPEC)
    checkpoint = run.save(state(8), 8, best=False)
    code = (
        "import sys, time; from pathlib import Path; from rl_training.experiment.lock import RunLock;"
        "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    with pytest.raises(CheckpointError, match="another process is training this run"):
        Run.reopen(run.dir, cfg, SPEC, checkpoint)
    run.close()
    holder = subprocess.Popen([sys.executable, "-c", code, str(run.dir)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            CheckpointError, match=rf"another process is .* this run \(process {holder.pid}\)"
        ):
            Run.reopen(run.dir, cfg, SPEC, checkpoint)
    finally:
        holder.kill()
        holder.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            Run.reopen(run.dir, cfg, SPEC, checkpoint).close()
            break
        except CheckpointError:
            time.sleep(0.05)
    else:
        pytest.fail("the lock outlived its holder")


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker that is replaced is forked while the lock is held, and may outlive its parent."""
    run = Run.create(config(tmp_path), SPEC)
    gate, opener = os.pipe()
    waiting, ready = os.pipe()
    worker = os.fork()
    if not worker:
        os.write(ready, b"x")
        os.read(gate, 1)
        os._exit(0)
    try:
        os.read(waiting, 1)  # what a fork does in the child is done
        with pytest.raises(CheckpointError, match="another process"):
            RunLock(run.dir)  # the fork has not freed it
        run.close()
        RunLock(run.dir).release()
    finally:
        os.write(opener, b"x")
        os.waitpid(worker, 0)
        for end in (gate, opener, waiting, ready):
            os.close(end)


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path, checkpoint={"keep_last": 2}), SPEC)
    for step in range(10, 60, 10):
        run.save(state(step), step, best=step == 20)
    assert sorted(checkpoint_steps(run.dir)) == [20, 40, 50]
    written = json.loads((run.dir / "metadata.json").read_text())
    assert written["best_checkpoint"] == "checkpoints/step_20"
    assert written["latest_checkpoint"] == "checkpoints/step_50"
    assert find_checkpoint(run.dir, "best").name == "step_20"
    assert find_checkpoint(run.dir, "latest").name == "step_50"
    run.save(state(60), 60, best=True)
    assert sorted(checkpoint_steps(run.dir)) == [50, 60]
    assert not list((run.dir / "checkpoints").glob(".*"))


def test_retention_can_keep_one_checkpoint_in_every_so_many_steps(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path, checkpoint={"keep_last": 1, "keep_every": 100}), SPEC)
    for step in range(40, 401, 40):
        run.save(state(step), step, best=step == 80)
    assert sorted(checkpoint_steps(run.dir)) == [80, 120, 200, 320, 400]
    run.finish("completed")
    cfg = config(tmp_path, checkpoint={"keep_last": 1, "keep_every": 0})
    Run.reopen(run.dir, cfg, SPEC, run.dir / "checkpoints" / "step_400").close()
    assert sorted(checkpoint_steps(run.dir)) == [80, 400]


def test_damaged_checkpoints_do_not_count_for_retention(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path, checkpoint={"keep_last": 2}), SPEC)
    for step in (10, 20, 30):
        run.save(state(step), step, best=False)
        if step > 10:
            (run.dir / "checkpoints" / f"step_{step}" / "state.json").write_bytes(b"")
    assert sorted(checkpoint_steps(run.dir)) == [10, 20, 30]  # 10 is the only one that looks whole
    run.save(state(40), 40, best=False)
    file = run.dir / "checkpoints" / "step_40" / "state.json"
    file.write_bytes(b"?" * file.stat().st_size)  # of the right size: only its hash tells
    run.config = config(tmp_path, checkpoint={"keep_last": 1})
    with pytest.warns(UserWarning, match="old checkpoints stay: .*step_40/state.json: damaged"):
        run.save(state(40), 40, best=False)  # nothing new to write
    assert sorted(checkpoint_steps(run.dir)) == [10, 20, 30, 40]


def test_what_was_reported_is_durable_before_the_checkpoint_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(config(tmp_path), SPEC)
    synced: list[str] = []
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        (run.dir / name).write_text("{}\n")
    run.save(state(8), 8, best=False)
    order = [synced.index(name) for name in ("metrics.jsonl", "evaluations.jsonl", "manifest.json")]
    assert order == sorted(order)


def test_a_save_that_fails_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(config(tmp_path, checkpoint={"keep_last": 1}), SPEC)
    run.save(state(10), 10, best=False)
    monkeypatch.setattr("rl_training.experiment.checkpoint.fsync_dir", _full_disk)
    with pytest.raises(SaveError, match=r"step_20: cannot be saved: full"):
        run.save(state(20), 20, best=True)
    assert checkpoint_steps(run.dir) == [10]
    assert find_checkpoint(run.dir).name == "step_10"


def _full_disk(_: Path) -> None:
    raise OSError(28, "full")


def test_going_back_drops_what_came_after_and_the_pointers_to_it(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    run = Run.create(cfg, SPEC)
    for step in (10, 20, 30):
        run.save(state(step), step, best=step == 30)
    (run.dir / "checkpoints" / ".step_40.123.tmp").mkdir()  # of a process killed in a save
    run.finish("interrupted", "signal")
    back = Run.reopen(run.dir, cfg, SPEC, run.dir / "checkpoints" / "step_20")
    assert sorted(p.name for p in (run.dir / "checkpoints").iterdir()) == ["step_10", "step_20"]
    assert back.metadata["best_checkpoint"] is None
    assert back.metadata["latest_checkpoint"] == "checkpoints/step_20"
    assert back.metadata["status"] == "running"
    assert back.metadata["stop_reason"] is None
    untouched = (run.dir / "checkpoints" / "step_20" / "manifest.json").stat().st_mtime_ns
    back.save(state(20), 20, best=False)  # stopped again before the first step: nothing to write
    assert (run.dir / "checkpoints" / "step_20" / "manifest.json").stat().st_mtime_ns == untouched


def test_a_damaged_latest_falls_back_to_the_newest_valid_one_with_a_warning(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path), SPEC)
    for step in (10, 20, 30):
        run.save(state(step), step, best=step == 30)
    damaged = run.dir / "checkpoints" / "step_30"
    (damaged / "policy.safetensors").write_bytes(b"")
    for which in ("latest", "best"):
        with pytest.warns(UserWarning, match=r"policy\.safetensors: damaged.*Using .*step_20 instead"):
            assert find_checkpoint(run.dir, which).name == "step_20"  # type: ignore[arg-type]
    for step in (10, 20):
        (run.dir / "checkpoints" / f"step_{step}" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step_30.*damaged"):
        find_checkpoint(run.dir)


def test_pointers_never_lead_outside_the_run(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path), SPEC)
    outside = Run.create(config(tmp_path), SPEC).save(state(10), 10, best=False)
    run.metadata["latest_checkpoint"] = f"../{outside.relative_to(tmp_path)}"
    metadata.write_metadata(run.dir, run.metadata)
    with pytest.raises(CheckpointError, match="outside the run"):
        find_checkpoint(run.dir, "latest")


def test_paths_that_are_neither_run_nor_checkpoint_are_explained(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path), SPEC)
    with pytest.raises(CheckpointError, match="has not saved a checkpoint yet"):
        find_checkpoint(run.dir)
    with pytest.raises(CheckpointError, match="neither a run directory"):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=f"did you mean .*{run.dir.name}"):
        find_checkpoint(run.dir.with_name(run.dir.name[:-1] + "x"))
    (run.dir / "metadata.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"metadata\.json: cannot be read"):
        find_checkpoint(run.dir)
    assert run_of(run.dir / "checkpoints" / "step_1") == run.dir
    assert run_of(tmp_path / "step_1") is None


def test_a_checkpoint_is_the_best_or_the_latest_and_no_other(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="which: expected 'best' or 'latest', got 'bestt'"):
            find_checkpoint(path, "bestt")  # type: ignore[arg-type]


def test_a_failed_run_says_so_even_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(config(tmp_path), SPEC)
    run.fail(ValueError("what went wrong"))
    written = json.loads((run.dir / "metadata.json").read_text())
    assert (written["status"], written["stop_reason"]) == ("failed", "ValueError: what went wrong")
    assert "ValueError: what went wrong" in (run.dir / "traceback.txt").read_text()
    other = Run.create(config(tmp_path), SPEC)
    monkeypatch.setattr("rl_training.experiment.files.fsync_dir", _full_disk)
    other.fail(ValueError("first"))  # must not hide the error by raising another
    RunLock(other.dir).release()  # and the lock is free


def test_metadata_says_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(config(tmp_path, tags=("x",)), SPEC, preset="ppo/cartpole")
    written = json.loads((run.dir / "metadata.json").read_text())
    assert written["schema_version"] == 1
    assert written["status"] == "running"
    assert written["command"] == sys.argv
    assert (written["preset"], written["tags"]) == ("ppo/cartpole", ["x"])
    assert written["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert written["hardware"]["cores"] > 0
    here = metadata.surroundings()
    run.record_resume(("exact", "every env is where it was"), 5, here)
    assert run.metadata["resumes"][-1]["grade"] == "exact"
    elsewhere = {**here, "versions": {**here["versions"], "torch": "1.0"}}
    run.record_resume(("exact", "every env is where it was"), 5, elsewhere)
    assert run.metadata["resumes"][-1]["grade"] == "numeric"
    assert "torch 1.0 →" in run.metadata["resumes"][-1]["reason"]


def test_git_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert metadata.git_state() is None
    monkeypatch.setenv("PATH", "")
    assert metadata.git_state() is None


def test_json_is_strict_and_knows_numpys_numbers() -> None:
    row = {
        "a": float("nan"),
        "b": [np.float32("inf"), np.float32(0.5)],
        "c": np.int64(3),
        "d": True,
        "e": None,
    }
    assert to_json(row) == '{"a": null, "b": [null, 0.5], "c": 3, "d": true, "e": null}'


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    replace_atomically(file, b"old")
    monkeypatch.setattr("os.replace", _no_replace)
    with pytest.raises(OSError, match="full"):
        replace_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def _no_replace(*_: Any) -> None:
    raise OSError(28, "full")


def test_a_run_notes_where_it_leaves_its_preset(tmp_path: Path) -> None:
    layers = [
        *preset_layers("ppo/cartpole"),
        Layer("test", {"env_kwargs": {"g": 9.8}, "output_dir": str(tmp_path)}),
    ]
    run = Run.create(resolve_layers(layers).config, SPEC, preset="ppo/cartpole")
    written = [
        {"key": "output_dir", "preset": "runs", "run": str(tmp_path)}, {"key": "env_kwargs.g", "run": 9.8},
    ]  # fmt: skip
    assert read_metadata(run.dir)["preset_differences"] == written
    path = run.save(state(10), 10, best=False)
    assert path is not None
    run.close()
    changed = resolve_layers([*layers, Layer("test", {"total_timesteps": 7})]).config
    again = Run.reopen(run.dir, changed, SPEC, path)
    again.record_resume(("exact", ""), 10, {})
    again.close()
    longer = {"key": "total_timesteps", "preset": 100_000, "run": 7}
    assert sorted(read_metadata(run.dir)["preset_differences"], key=str) == sorted(
        [longer, *written], key=str
    )


@pytest.mark.parametrize("preset", [None, "of/another-version"])
def test_without_a_preset_that_is_known_nothing_is_noted(tmp_path: Path, preset: str | None) -> None:
    run = Run.create(config(tmp_path), SPEC, preset=preset)
    run.close()
    assert read_metadata(run.dir)["preset_differences"] is None
