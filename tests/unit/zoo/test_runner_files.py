"""The runner and its files: whose score is whose, who made what, and places that cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_plans import Events, make_plan, run

from rl_training.errors import SaveError
from rl_training.experiment.lock import RunLock
from rl_training.zoo import jobs, origin
from rl_training.zoo.jobs import EVALUATION, Job
from rl_training.zoo.manifest import MANIFEST, Plan, write_manifest, write_results
from rl_training.zoo.runner import LOG

Calls = Callable[[], list[str]]


def run_of(job: Job) -> Path:
    found = job.run_dir()
    assert found is not None
    return found


def change_metadata(job: Job, **values: Any) -> None:
    path = run_of(job) / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_new_run_never_gets_the_score_of_one_that_was_removed(tmp_path: Path, calls: Calls) -> None:
    plan = make_plan(tmp_path / "a", (1,))
    job = plan.jobs[0]
    run(plan)
    score = job.folder / EVALUATION
    old = score.read_bytes()
    shutil.rmtree(run_of(job))
    job.prepare()
    assert not score.exists()
    score.write_bytes(old)
    run(plan)
    assert calls() == ["train 1", "eval 1", "train 1", "eval 1"]
    assert job.stage() == "done"
    score.write_bytes(old)  # as a killed runner could have left it: of another run, with the same step
    assert job.evaluation() is None
    assert job.stage() == "trained"


def test_runs_that_were_moved_keep_their_score(tmp_path: Path, calls: Calls) -> None:
    run(make_plan(tmp_path / "a", (1,)))
    shutil.move(tmp_path / "a", tmp_path / "b")
    _, manifest = run(make_plan(tmp_path / "b", (1,)))
    assert manifest["runs"][0]["status"] == "completed"
    assert calls() == ["train 1", "eval 1"]


def test_a_commit_that_is_told_replaces_none_that_is_known(tmp_path: Path, calls: Calls) -> None:
    plan = make_plan(tmp_path / "a", (1,))
    run(plan)
    told = Plan(plan.name, plan.folder, [], plan.jobs, plan.protocol, commit="told")
    change_metadata(plan.jobs[0], git={"commit": "known", "is_dirty": True})
    assert write_manifest(told)["git"] == {"commit": "known", "is_dirty": True}
    change_metadata(plan.jobs[0], git=None)
    assert write_manifest(told)["git"] == {"commit": "told", "is_dirty": False}


def test_it_says_how_many_runs_other_code_has_made(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, events = make_plan(tmp_path / "a"), Events()
    run(make_plan(tmp_path / "a", (1, 2)))
    monkeypatch.setattr(origin, "git_state", lambda: {"commit": "d", "is_dirty": False})
    run(plan, display=events)
    assert events.lines[:2] == [
        "2 of 3 runs are already there",
        "2 of the runs that are there were made at another commit or by other versions "
        "(ppo/x seed 1: commit c, now d)",
    ]


def test_code_differs_by_commit_and_versions_as_far_as_they_are_known(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path / "a", (1,))
    assert origin.made_otherwise(plan.jobs) == {}
    run(plan)
    job = plan.jobs[0]
    monkeypatch.setattr(origin, "git_state", lambda: None)
    monkeypatch.setattr(origin, "versions", lambda: {"axiomrl": "1", "torch": "2", "numpy": "3"})
    assert origin.made_otherwise(plan.jobs) == {}  # there is no repository
    assert origin.made_otherwise(plan.jobs, "d") == {job: "commit c, now d"}
    change_metadata(job, git=None, versions={"axiomrl": "1", "torch": "1.9", "numpy": "0"})
    assert origin.made_otherwise(plan.jobs, "d") == {job: "torch 1.9, now 2"}
    assert origin.made_from_changes(plan.jobs) == []
    change_metadata(job, git={"commit": "c", "is_dirty": True})
    assert origin.made_from_changes(plan.jobs) == [job]


def below_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "runs"


def with_a_directory_for_its_manifest(folder: Path) -> Path:
    (folder / "runs" / MANIFEST).mkdir(parents=True)
    return folder / "runs"


def a_link_to_itself(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (below_a_file, "Not a directory"),
        (with_a_directory_for_its_manifest, "Is a directory"),
        (a_link_to_itself, "File exists"),
        (lambda folder: folder / ("x" * 300), "File name too long"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, calls: Calls, make: Callable[[Path], Path], reason: str
) -> None:
    folder = make(tmp_path)
    with pytest.raises(SaveError) as caught:
        run(make_plan(folder, (1,)))
    assert str(caught.value).startswith(str(folder))
    assert f"cannot be written: {reason}" in str(caught.value)
    assert not (tmp_path / "calls").exists()


def test_results_that_cannot_be_written_name_the_file(tmp_path: Path, calls: Calls) -> None:
    _, manifest = run(make_plan(tmp_path / "a", (1,)))
    (tmp_path / "results" / "ppo-x.json").mkdir(parents=True)
    with pytest.raises(SaveError, match=r"ppo-x\.json: cannot be written: Is a directory"):
        write_results(manifest, tmp_path / "results")


@pytest.mark.parametrize("what", ["folder", "log"])
def test_a_bad_folder_of_one_job_does_not_stop_the_others(tmp_path: Path, calls: Calls, what: str) -> None:
    plan = make_plan(tmp_path / "a")
    bad = plan.jobs[1]
    if what == "folder":
        plan.folder.mkdir()
        bad.folder.touch()
    else:
        (bad.folder / LOG).mkdir(parents=True)
    made, manifest = run(plan)
    reason = "File exists" if what == "folder" else "Is a directory"
    assert list(made.errors) == [bad]
    assert made.errors[bad].startswith(f"{bad.folder}: cannot be written: {reason}")
    assert [entry["status"] for entry in manifest["runs"]] == ["completed", "failed", "completed"]


def test_a_run_whose_checkpoints_cannot_be_read_is_not_removed(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path / "a", (1,))
    run(plan)
    there = run_of(plan.jobs[0])

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:  # what a directory without rights looks like, to root as well
        patch.setattr(jobs, "checkpoint_steps", lambda _: [])
        patch.setattr(os, "listdir", refuse)
        made, _ = run(plan)
    assert "Permission denied" in made.errors[plan.jobs[0]]
    assert plan.jobs[0].run_dir() == there


def test_it_says_once_whom_it_waits_for(tmp_path: Path, calls: Calls) -> None:
    plan = make_plan(tmp_path / "a", (1,))
    run(plan)
    (plan.jobs[0].folder / EVALUATION).unlink()
    lock = RunLock(run_of(plan.jobs[0]))

    class Waits(Events):
        def event(self, text: str) -> None:
            super().event(text)
            if text.startswith("waiting"):
                threading.Timer(0.5, lock.release).start()  # it looks again a few times until then

    events = Waits()
    run(plan, display=events)
    assert [line for line in events.lines if line.startswith("waiting")] == [
        f"waiting for ppo/x seed 1, which another process is at work on (process {os.getpid()})"
    ]
    assert plan.jobs[0].stage() == "done"
