"""Which runs a comparison counts, what it says of the others, and when B has too little to be judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from zoo_runs import write_seeds

from rl_training.cli import main
from rl_training.zoo.compare import compare_returns
from rl_training.zoo.pairing import match
from rl_training.zoo.sources import runs_of

FIVE = [100.0, 101.0, 102.0, 103.0, 104.0]


def compared(tmp_path: Path, *options: str) -> int:
    return main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), *options])


def without_evaluation(paths: list[Path]) -> None:
    """As after a crash before the first one."""
    for path in paths:
        (path / "evaluations.jsonl").write_text("")


def test_runs_of_b_that_crashed_early_are_told_and_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_seeds(tmp_path / "a", FIVE)
    without_evaluation(write_seeds(tmp_path / "b", FIVE, status="failed")[:2])
    assert compared(tmp_path) == 0
    assert compared(tmp_path, "--fail-on-regression") == 1
    line = "return: B is incomplete: ppo · CartPole-v1: 2 of 5 runs of B have no evaluation\n"
    assert line in capsys.readouterr().out
    assert compared(tmp_path, "--format", "json", "--fail-on-regression") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["missing"] == {"return": ["ppo · CartPole-v1: 2 of 5 runs of B have no evaluation"]}
    assert data["regression"] is False
    assert compared(tmp_path, "--fail-on-regression", "--on", "speed") == 0  # speeds are all there
    assert "(ppo · CartPole-v1: 2 of 5 runs of B have no evaluation)" in capsys.readouterr().out


def test_runs_without_evaluation_on_both_sides_are_only_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_evaluation(write_seeds(tmp_path / "a", FIVE)[:1])
    without_evaluation(write_seeds(tmp_path / "b", FIVE)[:2])
    assert compared(tmp_path, "--fail-on-regression") == 0
    out = capsys.readouterr().out
    assert "(ppo · CartPole-v1: 1 of 5 runs of A has no evaluation)" in out
    assert "(ppo · CartPole-v1: 2 of 5 runs of B have no evaluation)" in out


def test_b_without_any_evaluation_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "a", FIVE)
    without_evaluation(write_seeds(tmp_path / "b", FIVE))
    assert compared(tmp_path, "--fail-on-regression") == 1
    out = capsys.readouterr().out
    assert "return: B is incomplete: ppo · CartPole-v1: 5 of 5 runs of B have no evaluation" in out
    assert compared(tmp_path, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["return"] is None


def test_a_task_that_b_does_not_have_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "a" / "1", FIVE)
    for index in range(5):
        write_seeds(tmp_path / "a" / f"other{index}", FIVE, env=f"Env{index}-v0")
    write_seeds(tmp_path / "b", FIVE)
    assert compared(tmp_path, "--fail-on-regression") == 1
    out = capsys.readouterr().out
    names = "ppo · Env0-v0, ppo · Env1-v0, ppo · Env2-v0 and 2 more"
    assert f"return: B is incomplete: 5 tasks of A not in it: {names}\n" in out
    assert "(only in A: ppo · Env4-v0)" in out
    assert compared(tmp_path) == 0
    # What only B has is no loss, nor is a task of A without a result.
    assert main(["compare", str(tmp_path / "b"), str(tmp_path / "a"), "--fail-on-regression"]) == 0
    for path in (tmp_path / "a").glob("other*/*"):
        (path / "evaluations.jsonl").write_text("")
    assert compared(tmp_path, "--fail-on-regression") == 0


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_runs_that_have_not_ended_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    write_seeds(tmp_path / "a", FIVE)
    write_seeds(tmp_path / "b" / "done", FIVE)
    write_seeds(tmp_path / "b" / "early", [1.0, 2.0, 3.0], status=status)
    assert compared(tmp_path, "--fail-on-regression") == 1
    out = capsys.readouterr().out
    assert "(3 runs of B not ended (running, interrupted), left out)" in out
    assert "return: B is incomplete: ppo · CartPole-v1: 3 of 8 runs of B not ended\n" in out
    assert "ppo · CartPole-v1  5  102.0  102.0  0.00 [" in out  # the five others
    sides = [str(tmp_path / "b"), str(tmp_path / "a")]
    assert main(["compare", *sides, "--fail-on-regression"]) == 0  # A may have less than B
    assert "(3 runs of A not ended" in capsys.readouterr().out
    early = str(tmp_path / "b" / "early")
    assert main(["compare", str(tmp_path / "a"), early]) == 2
    message = "error: nothing to compare: of 3 runs of B, all are running or interrupted\n"
    assert capsys.readouterr().err == message


def test_a_task_on_which_no_run_of_b_has_ended_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, status in (("a", "completed"), ("b", "running")):
        write_seeds(tmp_path / side / "1", FIVE)
        write_seeds(tmp_path / side / "2", FIVE, env="Pendulum-v1", status=status)
    assert compared(tmp_path, "--fail-on-regression") == 1
    out = capsys.readouterr().out
    assert "return: B is incomplete: ppo · Pendulum-v1: none of its runs has ended\n" in out


def test_another_algorithm_does_not_stand_in_for_runs_that_have_not_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_seeds(tmp_path / "a", FIVE)
    write_seeds(tmp_path / "b" / "1", FIVE, status="running")
    write_seeds(tmp_path / "b" / "2", [1.0] * 5, algo="dqn")
    assert compared(tmp_path) == 2
    message = "error: nothing to compare: on ppo · CartPole-v1, runs of A or of B have not ended\n"
    assert capsys.readouterr().err == message


def test_episodes_that_only_a_manifest_counts_are_told_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [{"seed": seed, "return_mean": score} for seed, score in enumerate(FIVE)]
    for name, episodes in (("a", 10), ("b", 100)):
        data = {"preset": "ppo/cartpole", "episodes": episodes, "runs": runs}
        (tmp_path / name).write_text(json.dumps(data))
    assert compared(tmp_path) == 0
    assert (
        "evaluation episodes a run: ppo · CartPole-v1 · ppo/cartpole (A 10, B 100)" in capsys.readouterr().out
    )


def test_episodes_of_a_run_without_a_score_do_not_count(tmp_path: Path) -> None:
    good = {"seed": 1, "return_mean": 5.0, "returns": [5.0, 5.0]}
    lost = {"seed": 2, "return_mean": None, "returns": [1.0, 3.0]}
    for name, runs in (("a", [good, lost]), ("b", [good])):
        (tmp_path / name).write_text(json.dumps({"preset": "ppo/cartpole", "runs": runs}))
    found = compare_returns(match(runs_of(tmp_path / "a"), runs_of(tmp_path / "b")))
    assert found is not None
    assert list(found.results[0].samples.a) == [5.0, 5.0]


def test_odd_entries_of_a_manifest(tmp_path: Path) -> None:
    curve = [{"global_step": step, "return_mean": float(step)} for step in (20, 10)]
    runs = [{"status": [], "return_mean": 1.0}, {"return_mean": 2.0, "global_step": 20, "curve": curve}]
    (tmp_path / "a").write_text(json.dumps({"preset": "ppo/cartpole", "runs": runs}))
    _, run = runs_of(tmp_path / "a")
    assert list(run.eval_steps) == [10, 20]  # by step, whatever their order


def test_unequal_steps_and_episodes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "a", FIVE)
    for path in write_seeds(tmp_path / "b", FIVE):
        rows = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
        rows[-1] |= {"global_step": 6000, "returns": rows[-1]["returns"] * 5}
        (path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compared(tmp_path) == 0
    out = capsys.readouterr().out
    assert "(unequal numbers of steps: ppo · CartPole-v1 (A 2k, B 6k))" in out
    assert "(unequal numbers of evaluation episodes a run: ppo · CartPole-v1 (A 2, B 10))" in out
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "unequal numbers" not in capsys.readouterr().out


def test_speeds_of_runs_that_were_never_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_evaluation(write_seeds(tmp_path / "a", FIVE, seconds=10.0))
    without_evaluation(write_seeds(tmp_path / "b", FIVE, seconds=20.0))
    assert compared(tmp_path, "--on", "speed", "--fail-on-regression") == 1
    assert "speed: B is worse than A beyond noise (p = 0.004)" in capsys.readouterr().out
    for on in ("return", "both"):
        assert compared(tmp_path, "--on", on) == 2
        err = capsys.readouterr().err
        assert "no evaluation has been recorded in A; --on speed compares speeds" in err


def test_runs_that_a_manifest_says_failed_are_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [{"seed": seed, "return_mean": score} for seed, score in enumerate(FIVE)]
    for name, last in (("a", whole[4]), ("b", {"seed": 4, "status": "failed", "error": "killed"}),
                       ("c", {"seed": 4, "status": "unfinished"})):  # fmt: skip
        data = {"preset": "ppo/cartpole", "runs": [*whole[:4], last]}
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    failed = runs_of(tmp_path / "b.json")[4]
    assert (failed.algo, failed.env_id, failed.status, failed.final) == ("ppo", "CartPole-v1", "failed", None)
    a, b, c = (str(tmp_path / f"{name}.json") for name in "abc")
    assert main(["compare", a, b, "--fail-on-regression"]) == 1
    assert "ppo/cartpole: 1 of 5 runs of B has no evaluation" in capsys.readouterr().out
    assert main(["compare", a, c, "--fail-on-regression"]) == 1
    assert "ppo/cartpole: 1 of 5 runs of B not ended" in capsys.readouterr().out


def test_a_file_that_is_no_manifest_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "a", FIVE)
    (tmp_path / "README.md").write_text("# Runs\n")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "README.md")]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/README.md: cannot be read at line 1: expected a run, a directory of runs, or a "
        "manifest (a JSON file with a list `runs`)\n"
    )


def test_what_n_counts_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "a", FIVE)
    write_seeds(tmp_path / "b", FIVE[:1], spread=1.0)
    assert compared(tmp_path) == 0
    assert "(n counts runs, or episodes where it says ep.; intervals" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "(n counts runs; intervals" in capsys.readouterr().out
