"""The runner: side by side, around failures, through signals and kills, with a stand-in for training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_plans import FAKE, make_plan, run, wait_for

from rl_training.errors import AxiomError
from rl_training.zoo.jobs import Job
from rl_training.zoo.manifest import MANIFEST, Plan, write_results
from rl_training.zoo.suites import Protocol

TIMES = ("seconds", "elapsed_s")


def without_times(manifest: Any) -> Any:
    if isinstance(manifest, dict):
        return {key: without_times(value) for key, value in manifest.items() if key not in TIMES}
    return [without_times(value) for value in manifest] if isinstance(manifest, list) else manifest


def test_every_seed_is_trained_and_evaluated_once(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    plan = make_plan(tmp_path / "a")
    made, manifest = run(plan)
    assert sorted(calls()) == ["eval 1", "eval 2", "eval 3", "train 1", "train 2", "train 3"]
    assert made.errors == {}
    assert manifest == json.loads((plan.folder / MANIFEST).read_text())
    assert manifest["summary"] == {
        "ppo/x": {
            "seeds": 3, "completed": 3, "mean": 20.5, "min": 10.5, "max": 30.5, "band": [20.0, 21.0],
            "verdict": "inside",
        }
    }  # fmt: skip
    first = manifest["runs"][0]
    assert (first["seed"], first["status"], first["returns"]) == (1, "completed", [10.0, 11.0])
    assert first["command"] == ["axiomrl", "train", "--seed", "1"]
    assert [point["global_step"] for point in first["curve"]] == [1, 2, 3, 4, 5]
    assert manifest["git"] == {"commit": "c"}
    assert run(make_plan(tmp_path / "a"))[1] == manifest  # there is nothing left to do
    assert len(calls()) == 6


def test_runs_side_by_side_have_one_thread_each(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    run(make_plan(tmp_path / "a"))
    lines = (tmp_path / "calls").read_text().splitlines()
    assert {line.split()[3] for line in lines} == {"1"}


def test_another_protocol_evaluates_again_and_trains_nothing(
    tmp_path: Path, calls: Callable[[], list[str]]
) -> None:
    run(make_plan(tmp_path / "a", (1,)))
    plan = make_plan(tmp_path / "a", (1,))
    facts = plan.jobs[0].facts
    job = Job("ppo/x", 1, (), plan.jobs[0].folder, 5, Protocol(episodes=3), facts)
    _, manifest = run(Plan("x", plan.folder, [], [job], job.protocol))
    assert manifest["runs"][0]["returns"] == [10.0, 11.0, 12.0]
    assert calls() == ["train 1", "eval 1", "eval 1"]


def test_a_failure_does_not_stop_the_others(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    plan = make_plan(tmp_path / "a", (1, 2, 3), "--fail-at=2")
    made, manifest = run(plan, width=1)
    assert [job.seed for job in made.errors] == [2]
    assert [entry["status"] for entry in manifest["runs"]] == ["completed", "failed", "completed"]
    assert manifest["runs"][1]["error"] == "train: exit code 2: error: made to fail"
    assert manifest["summary"]["ppo/x"]["verdict"] == "incomplete"
    assert write_results(manifest, tmp_path / "results") == []
    again, mended = run(make_plan(tmp_path / "a"))
    assert again.errors == {}
    assert [call for call in calls() if call.startswith("train")] == [
        "train 1",
        "train 2",
        "train 3",
        "train 2",
    ]
    assert mended["summary"]["ppo/x"]["verdict"] == "inside"


def test_result_files_have_the_form_of_the_benchmarks(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    _, manifest = run(make_plan(tmp_path / "a", (1, 2)))
    (path,) = write_results(manifest, tmp_path / "results", "control")
    assert path == tmp_path / "results" / "ppo-x-control.json"
    result = json.loads(path.read_text())
    assert list(result) == ["preset", "episodes", "versions", "hardware", "git", "summary", "runs"]
    assert result["summary"] == {"mean": 15.5, "min": 10.5, "max": 20.5}
    assert list(result["runs"][0]) == [
        "seed", "command", "global_step", "seconds", "return_mean", "return_std", "returns", "curve",
    ]  # fmt: skip


def test_a_run_that_died_before_it_saved_is_started_anew(
    tmp_path: Path, calls: Callable[[], list[str]]
) -> None:
    plan = make_plan(tmp_path / "a", (1,))
    dead = plan.jobs[0].folder / "dead"
    (dead / "checkpoints").mkdir(parents=True)
    (dead / "metadata.json").write_text('{"status": "running"}')
    assert plan.jobs[0].stage() == "new"
    run(plan)
    assert calls() == ["train 1", "eval 1"]
    assert not dead.exists()


def test_two_runners_do_not_share_a_folder(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    from rl_training.experiment.lock import RunLock

    plan = make_plan(tmp_path / "a", (1,))
    plan.folder.mkdir()
    lock = RunLock(plan.folder)
    with pytest.raises(AxiomError, match="another runner is at work here"):
        run(plan)
    lock.release()


RUNNER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from rl_training.zoo import runner
from fake_plans import make_plan, run, FAKE
runner.CHILD = [sys.executable, str(FAKE)]
made, _ = run(make_plan(Path(sys.argv[1])))
sys.exit(128 + made.stopped_by if made.stopped_by else 0)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_it_ends_as_if_it_had_not_been(
    tmp_path: Path, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    _, whole = run(make_plan(tmp_path / "whole"))
    (tmp_path / "calls").unlink()
    monkeypatch.setenv("FAKE_GATE", str(tmp_path))
    is_killed = number == signal.SIGKILL
    if not is_killed:
        (tmp_path / "save").touch()
    code = RUNNER.format(tests=str(FAKE.parent))
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cut")])
    wait_for(lambda: len(list((tmp_path / "cut").glob("*/*/checkpoints/step_2"))) == 2)
    begun = [int(line.split()[2]) for line in (tmp_path / "calls").read_text().splitlines()]
    assert len(begun) == 2
    process.send_signal(number)
    assert process.wait(120) == (-number if is_killed else 128 + number)
    plan = make_plan(tmp_path / "cut")
    if is_killed:  # its runs have noticed, and are saving
        wait_for(lambda: len(list(plan.folder.glob("*/*/asked-to-end"))) == 2)
        assert all(job.holder() for job in plan.jobs[:2])
        threading.Timer(1.0, (tmp_path / "save").touch).start()
    else:  # it has waited for them
        assert not any(map(is_alive, begun))
        states = [entry["status"] for entry in json.loads((plan.folder / MANIFEST).read_text())["runs"]]
        assert states == ["unfinished", "unfinished", "missing"]
    (tmp_path / "go").touch()
    _, manifest = run(plan)
    assert not any(map(is_alive, begun))
    assert without_times(manifest) == without_times(whole)
    assert sorted(calls()) == sorted(
        ["train 1", "train 2", "train 3", "resume 1", "resume 2", "eval 1", "eval 2", "eval 3"]
    )


def test_killed_together_with_its_runs_it_ends_as_if_it_had_not_been(
    tmp_path: Path, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the machine loses its power: nobody saves, and every run goes on from its last checkpoint."""
    _, whole = run(make_plan(tmp_path / "whole"))
    (tmp_path / "calls").unlink()
    monkeypatch.setenv("FAKE_GATE", str(tmp_path))
    code = RUNNER.format(tests=str(FAKE.parent))
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cut")])
    wait_for(lambda: len(list((tmp_path / "cut").glob("*/*/checkpoints/step_2"))) == 2)
    begun = [int(line.split()[2]) for line in (tmp_path / "calls").read_text().splitlines()]
    process.send_signal(signal.SIGSTOP)  # no process sees another one die first: a stopped one sees nothing
    wait_for(lambda: state_of(process.pid) == "T")
    for pid in (*begun, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait(120)
    wait_for(lambda: not any(map(is_alive, begun)))
    assert not list((tmp_path / "cut").glob("*/*/asked-to-end"))
    (tmp_path / "go").touch()
    _, manifest = run(make_plan(tmp_path / "cut"))
    assert without_times(manifest) == without_times(whole)
    assert sorted(calls()) == sorted(
        ["train 1", "train 2", "train 3", "resume 1", "resume 2", "eval 1", "eval 2", "eval 3"]
    )


def test_a_killed_run_is_told_and_goes_on_next_time(
    tmp_path: Path, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GATE", str(tmp_path))

    def kill_the_first() -> None:
        wait_for(lambda: len(list((tmp_path / "a").glob("*/*/checkpoints/step_2"))) == 2)
        (line,) = [x for x in (tmp_path / "calls").read_text().splitlines() if x.startswith("train 1 ")]
        os.kill(int(line.split()[2]), signal.SIGKILL)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    made, manifest = run(make_plan(tmp_path / "a", (1, 2)))
    killer.join()
    assert list(made.errors.values()) == ["train: killed by SIGKILL"]
    assert [entry["status"] for entry in manifest["runs"]] == ["failed", "completed"]
    again, mended = run(make_plan(tmp_path / "a", (1, 2)))
    assert again.errors == {}
    assert [entry["status"] for entry in mended["runs"]] == ["completed", "completed"]
    assert sorted(calls()) == ["eval 1", "eval 2", "resume 1", "train 1", "train 2"]


def state_of(pid: int) -> str | None:
    """One letter as in proc(5), None for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def is_alive(pid: int) -> bool:
    return state_of(pid) not in (None, "Z")


def test_results_of_a_preset_name_the_commits_of_its_own_runs(tmp_path: Path) -> None:
    commits = {"ppo/a": ["1", "1"], "ppo/b": ["2", "3"]}
    runs = [
        {"name": name, "preset": name, "status": "completed", "seed": seed, "git": {"commit": commit}}
        for name, made_by in commits.items()
        for seed, commit in enumerate(made_by)
    ]
    for made in runs[:2]:
        del made["git"]  # as in the manifest, whose own is that of its first run
    manifest = {
        "episodes": 1, "checkpoint": "latest", "git": {"commit": "1"}, "runs": runs,
        "summary": {name: {"mean": 0.0} for name in commits},
    }  # fmt: skip
    first, second = (json.loads(path.read_text()) for path in write_results(manifest, tmp_path))
    assert first["git"] == {"commit": "1"}
    assert [made.get("git") for made in first["runs"]] == [None, None]
    assert second["git"] == {"commit": "2"}
    assert [made.get("git") for made in second["runs"]] == [None, {"commit": "3"}]


def test_a_run_whose_evaluation_diverged_has_failed(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    made, manifest = run(make_plan(tmp_path / "a", (1, 2), "--diverge-at=2"))
    assert list(made.errors.values()) == [
        "its evaluation has no finite mean return, or is of another checkpoint"
    ]
    assert [entry["status"] for entry in manifest["runs"]] == ["completed", "failed"]
    assert manifest["summary"]["ppo/x"]["mean"] == 10.5
    assert manifest["summary"]["ppo/x"]["verdict"] == "incomplete"
    assert sorted(calls()) == ["eval 1", "eval 2", "train 1", "train 2"]
