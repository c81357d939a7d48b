"""What stands for a run: the evaluation it was judged by, its newest one in training, or nothing."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from zoo_html import parse
from zoo_runs import evaluations, metadata, write_run, write_seeds

from rl_training.cli import main
from rl_training.zoo import scan as scanning
from rl_training.zoo.groups import group_runs
from rl_training.zoo.records import read_run
from rl_training.zoo.scan import scan
from rl_training.zoo.sources import runs_of
from rl_training.zoo.summaries import RunSummary


def judge(run: Path, returns: list[float], step: int = 4000, **more: Any) -> Path:
    """Write what `zoo run` leaves beside a run."""
    data = {
        "return_mean": sum(returns) / len(returns), "return_std": 1.0, "num_episodes": len(returns),
        "returns": returns, "checkpoint": f"elsewhere/{run.name}/checkpoints/step_{step}", "which": "latest",
    }  # fmt: skip
    path = run.parent / "evaluation.json"
    path.write_text(json.dumps(data | more))
    return path


def only(folder: Path) -> RunSummary:
    (run,) = scan([folder]).runs
    return run


def test_the_evaluation_of_the_latest_checkpoint_is_the_final_score(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert (only(run).final, only(run).episodes(), only(run).returns) == (452.5, 2, [425.0, 480.0])
    judge(run, [300.0, 302.0, 304.0, 306.0])
    for path in (run, tmp_path):
        found = only(path)
        assert (found.final, found.episodes(), found.returns) == (303.0, 4, [300.0, 302.0, 304.0, 306.0])
        assert (found.best, found.episodes("best")) == (480.0, None)  # of another checkpoint
        assert list(found.eval_means) == [110.0, 480.0, 452.5]  # curves stay what they were
        assert found.score("final") == found.value("final") == 303.0
    shown = read_run(run)
    assert shown.final_evaluation is not None
    assert (shown.final_evaluation.mean, shown.final_evaluation.step) == (303.0, 4000)
    assert shown.best_evaluation is not None
    assert shown.best_evaluation.mean == 480.0


def test_the_evaluation_of_the_best_checkpoint_is_the_best_score(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    judge(run, [470.0, 472.0], step=2000, which="best")
    found = only(run)
    assert (found.score("best"), found.episodes("best")) == (471.0, 2)
    assert (found.score("final"), found.returns) == (452.5, [425.0, 480.0])
    same = write_run(tmp_path / "same", metadata=metadata() | {"best_checkpoint": "checkpoints/step_4000"})
    judge(same, [7.0, 9.0])
    assert (only(same).final, only(same).best) == (8.0, 8.0)


@pytest.mark.parametrize(
    "more",
    [
        {"checkpoint": "elsewhere/another-run/checkpoints/step_4000"},
        {"checkpoint": "runs/step_4000"},
        {"checkpoint": None},
        {"step": 3000},  # a checkpoint that is neither the latest nor the best
    ],
)
def test_an_evaluation_of_something_else_does_not_count(tmp_path: Path, more: dict[str, Any]) -> None:
    run = write_run(tmp_path)
    judge(run, [1.0, 2.0], **more)
    assert (only(run).final, only(run).best, list(only(run).problems)) == (452.5, 480.0, [])


def test_a_run_that_was_trained_on_has_outgrown_its_evaluation(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    judge(run, [1.0, 2.0])
    later = {**evaluations()[2], "global_step": 5000, "return_mean": 460.0}
    with open(run / "evaluations.jsonl", "a") as file:
        file.write(json.dumps(later) + "\n")
    assert (
        only(run).final == 460.0
    )  # the metadata still point to step 4,000, as no checkpoint was saved since


@pytest.mark.parametrize("content", ["{", "[1]", "", "\x00"])
def test_rubbish_beside_a_run_is_survived(tmp_path: Path, content: str) -> None:
    run = write_run(tmp_path)
    (tmp_path / "evaluation.json").write_text(content)
    assert only(run).final == 452.5
    told = ["evaluation.json beside it: cannot be read"] if content != "[1]" else []
    assert list(only(run).problems) == told


def test_a_run_reached_by_a_link_is_judged_where_it_lies(tmp_path: Path) -> None:
    run = write_run(tmp_path / "seed1")
    judge(run, [1.0, 2.0])
    (tmp_path / "links").mkdir()
    os.symlink(run, tmp_path / "links" / "mine")
    assert only(tmp_path / "links").final == 1.5


# The index


@pytest.mark.parametrize("action", ["changed", "new", "deleted"])
def test_the_index_notices_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(scanning, "WORTH_INDEXING", 1)
    monkeypatch.setattr(scanning, "SETTLED_NS", 0)
    run = write_run(tmp_path / "seed1")
    write_run(tmp_path / "seed2")
    path = judge(run, [1.0, 2.0])
    if action == "new":
        path.unlink()
    scan([tmp_path])
    assert scan([tmp_path]).indexed == 2
    if action == "deleted":
        path.unlink()
    else:
        judge(run, [3.0, 4.0])
        os.utime(path, ns=(1, 10**18))
    again = scan([tmp_path])
    assert again.indexed == 1
    assert again.runs[0].final == {"changed": 3.5, "new": 3.5, "deleted": 452.5}[action]
    assert scan([tmp_path]).indexed == 2


def test_a_second_look_asks_for_each_file_around_the_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_seeds(tmp_path, [1.0, 2.0, 3.0])
    asked: list[str] = []
    real = os.stat

    def counting(path: Any, *args: Any, **options: Any) -> os.stat_result:
        asked.append(os.path.basename(path))
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", counting)
        scanning.find_runs(str(tmp_path))
    assert sorted(name for name in asked if name.endswith(".json")) == ["evaluation.json", "manifest.json"]


# Reports


def suite(folder: Path) -> Path:
    """Three seeds as `zoo run` leaves them: judged by four episodes, which say otherwise than training."""
    runs = []
    for seed, path in enumerate(write_seeds(folder / "aside", [10.0, 20.0, 30.0])):
        own = folder / "ppo-x" / f"seed{seed}"
        own.mkdir(parents=True)
        run = path.rename(own / path.name)
        data = json.loads((run / "metadata.json").read_text())
        data |= {"latest_checkpoint": "checkpoints/step_2000", "best_checkpoint": "checkpoints/step_2000"}
        (run / "metadata.json").write_text(json.dumps(data))
        returns = [100.0 + seed] * 4
        judge(run, returns, step=2000)
        curve = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
        runs.append(
            {"algo": "ppo", "env_id": "CartPole-v1", "seed": seed, "status": "completed", "global_step": 2000,
             "seconds": 10.0, "return_mean": 100.0 + seed, "returns": returns, "curve": curve}
        )  # fmt: skip
    (folder / "aside").rmdir()
    manifest = {"episodes": 4, "checkpoint": "latest", "runs": runs}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("which", ["final", "best"])
def test_a_suite_does_not_differ_from_itself(tmp_path: Path, which: str) -> None:
    folder = suite(tmp_path)
    listed, found = runs_of(folder / "manifest.json"), runs_of(folder)
    assert [run.score(which) for run in listed] == [run.score(which) for run in found] == [100, 101, 102]
    assert [run.episodes(which) for run in listed] == [run.episodes(which) for run in found] == [4, 4, 4]
    assert [run.returns for run in listed] == [run.returns for run in found]
    assert [list(run.eval_means) for run in listed] == [list(run.eval_means) for run in found]


def test_a_suite_judged_by_its_best_checkpoints_does_not_differ_from_itself(tmp_path: Path) -> None:
    folder = tmp_path / "seed7"
    run = write_run(folder)
    judge(run, [470.0, 472.0], step=2000, which="best")
    entry = {"algo": "ppo", "env_id": "CartPole-v1", "global_step": 4000, "return_mean": 471.0,
             "returns": [470.0, 472.0], "curve": evaluations()}  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps({"checkpoint": "best", "episodes": 2, "runs": [entry]}))
    (listed,), (found,) = runs_of(tmp_path / "m.json"), runs_of(folder)
    assert (listed.best, listed.final) == (found.best, found.final) == (471.0, 452.5)
    assert listed.episodes("best") == found.episodes("best") == 2


def test_reports_say_how_many_episodes_are_behind_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = suite(tmp_path / "suite")
    (folder / "ppo-x" / "seed0" / "evaluation.json").unlink()  # two episodes in training

    def report(*options: str) -> str:
        assert main(["report", str(folder), *options]) == 0
        return capsys.readouterr().out

    heads, cells = (line.split() for line in report().splitlines()[:2])
    assert "episodes" in heads
    assert "2\u20134" in cells
    data = json.loads(report("--format", "json"))
    assert (data["groups"][0]["min_episodes"], data["groups"][0]["max_episodes"]) == (2, 4)
    assert [run["episodes"] for run in data["runs"]] == [2, 4, 4]
    assert data["groups"][0]["iqm"] == pytest.approx((10.0 + 101.0 + 102.0) / 3)
    (row,) = csv.DictReader(io.StringIO(report("--format", "csv")))
    assert (row["min_episodes"], row["max_episodes"]) == ("2", "4")
    target = tmp_path / "page.html"
    report("-o", str(target))
    page = parse(target.read_text())
    rows = [[c.text for c in row.all("td")] for row in page.by_id("runs").all("tbody")[0].all("tr")]
    assert [row[5:7] for row in rows] == [["10.00", "2"], ["101.0", "4"], ["102.0", "4"]]
    assert "2\u20134" in page.by_id("results").text


# Runs that diverged


@pytest.mark.parametrize("mean", [None, math.nan, math.inf, 1e200])
def test_a_run_that_diverged_has_no_final_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mean: float | None
) -> None:
    last = {"global_step": 3000, "elapsed_s": 12.0, "return_mean": mean, "returns": [None, 1.0]}
    good, bad = write_seeds(tmp_path, [50.0, 100.0])
    with open(bad / "evaluations.jsonl", "a") as file:
        file.write(json.dumps(last) + "\n")
    found = {run.path: run for run in scan([tmp_path]).runs}[str(bad)]
    assert (found.final, found.episodes(), list(found.returns), found.steps) == (None, None, [], 3000)
    assert found.best == 100.0  # its best checkpoint is as good as it was
    assert list(found.problems) == [
        "evaluations.jsonl: 1 without a mean return, left out; the newest is one of them, so there is no "
        "final score"
    ]
    (group,) = group_runs(scan([tmp_path]).runs)
    assert group.scores == [50.0]
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "1 of 2" in text.splitlines()[1]
    assert "so there is no final score" in text
    assert read_run(bad).final_evaluation is None
    assert read_run(good).final_evaluation is not None


def test_an_earlier_flaw_or_a_torn_line_does_not_cost_the_score(tmp_path: Path) -> None:
    rows = [{"global_step": 500, "return_mean": None}, *evaluations()]
    run = write_run(tmp_path, evaluations=rows)
    with open(run / "evaluations.jsonl", "a") as file:
        file.write('{"global_step": 5000, "return_me')
    assert only(run).final == 452.5
    assert len(only(run).problems) == 2


def test_a_run_judged_without_a_finite_mean_has_no_final_score(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    judge(run, [1.0, 2.0], return_mean=None)
    assert only(run).final is None
    assert list(only(run).problems) == ["evaluation.json beside it: no mean return that is a finite number"]
    manifest = {"runs": [{"return_mean": None, "returns": [1.0, None]}, {"returns": [1.0, None]}]}
    (tmp_path / "m.json").write_text(json.dumps(manifest))
    assert [run.final for run in runs_of(tmp_path / "m.json")] == [None, None]
