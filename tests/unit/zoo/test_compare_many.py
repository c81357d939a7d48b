"""Comparisons over many tasks: one collapse is found, chance is not, and what is said fits the numbers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from zoo_runs import write_seeds

from rl_training.cli import main
from rl_training.zoo import compare, significance
from rl_training.zoo.compare import Comparison, Samples, judge
from rl_training.zoo.compare_text import comparison_table, remarks, sentence
from rl_training.zoo.statistics import Estimate

TASKS = 39


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts alone: no intervals, and fewer divisions for the test over all tasks."""
    monkeypatch.setattr(compare, "difference", lambda *_, **__: Estimate(0.0))
    monkeypatch.setattr(compare, "probability_of_improvement", lambda *_, **__: Estimate(0.5))
    monkeypatch.setattr(significance, "SAMPLES", 400)


def scores(rng: np.random.Generator, task: int, seeds: int = 5) -> np.ndarray:
    """Tasks as a zoo has them: noisy, capped near the top, one seed in four astray, or constant."""
    noise = rng.standard_normal(seeds)
    match task % 4:
        case 0:
            return 100.0 + 5.0 * noise
        case 1:
            return np.minimum(500.0, 495.0 + 20.0 * noise)
        case 2:
            return np.where(rng.random(seeds) < 0.25, -200.0, -110.0) + noise
        case _:
            return np.full(seeds, 500.0)


def suite(rng: np.random.Generator, tasks: int = TASKS, seeds: int = 5) -> list[Samples]:
    """The same presets twice, with other seeds."""
    return [Samples(f"t{i}", scores(rng, i, seeds), scores(rng, i, seeds), "runs") for i in range(tasks)]


def replaced(samples: list[Samples], index: int, b: list[float]) -> list[Samples]:
    """The suite with other results of B on one task."""
    old = samples[index]
    return [*samples[:index], Samples(old.task, old.a, b, "runs"), *samples[index + 1 :]]


@pytest.mark.usefixtures("quick")
def test_false_alarms_over_many_tasks_are_rare() -> None:
    """300 suites of 39 presets that did not change: neither worse nor better is said too often."""
    rng = np.random.default_rng(11)
    verdicts = [judge("return", suite(rng)).verdict for _ in range(300)]
    assert verdicts.count("worse") / 300 <= 0.08
    assert verdicts.count("better") / 300 <= 0.08
    assert "cannot tell" not in verdicts


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("tasks", [2, 7, TASKS])
def test_one_collapse_among_many_tasks_is_found(tasks: int) -> None:
    """In every one of 20 suites, and hardly any other task with it."""
    rng, others = np.random.default_rng(12), 0
    for _ in range(20):
        found = judge("return", replaced(suite(rng, tasks), 0, list(rng.normal(10.0, 1.0, 5))))
        assert found.verdict == "worse"
        assert "t0" in [result.samples.task for result in found.on("worse")]
        others += len(found.on("worse")) - 1
    assert others <= 2


@pytest.mark.usefixtures("quick")
def test_small_drops_everywhere_are_found_together_and_shown_as_such() -> None:
    """Each drop is half the spread of seeds: on no task alone could five seeds show it."""
    rng = np.random.default_rng(13)
    samples = [Samples(f"t{i}", rng.normal(100, 5, 5), rng.normal(97.5, 5, 5), "runs") for i in range(TASKS)]
    found = judge("return", samples)
    assert (found.verdict, found.on("worse")) == ("worse", [])
    assert found.together is not None
    assert found.together.worse < 0.01
    assert "over all 39 tasks together (p " in sentence(found)
    assert "though on none alone" in sentence(found)
    within = judge("return", samples, tolerance=0.2)
    assert within.verdict == "no difference"
    assert "differences up to 20 % of A do not count" in sentence(within)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_what_no_data_could_show_is_never_no_difference(seeds: int) -> None:
    """Three runs a side give at best p = 0.05, and two tests share that level."""
    samples = [
        Samples(f"t{i}", [100.0 + i + s for s in range(seeds)], [50.0] * seeds, "runs") for i in range(2)
    ]
    found = judge("return", [samples[0], Samples("t1", samples[1].a, samples[1].a, "runs")])
    assert [result.verdict for result in found.results] == ["cannot tell"] * 2
    assert all(result.p.lower > 0.05 for result in found.results)
    assert found.verdict == "cannot tell"
    assert any("it takes four on each side" in note for note in remarks([found]))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("tasks", [7, 100])
def test_more_tasks_take_no_task_the_power_to_show_anything(tasks: int) -> None:
    """Five runs a side can be told apart on any of a hundred tasks, so `no difference` means something."""
    samples = suite(np.random.default_rng(14), tasks)
    for index in (0, tasks - 1):
        found = judge("return", replaced(samples, index, [-4000.0, -4001.0, -4002.0, -4003.0, -4004.0]))
        (worse,) = found.on("worse")
        assert worse.samples.task == f"t{index}"


def test_few_runs_on_one_task_do_not_blind_the_others() -> None:
    """A collapse of three runs could be chance (1 of 20); it must not hide that of five."""
    samples = [
        Samples("few", [500.0] * 3, [0.0] * 3, "runs"),
        Samples("many", [500.0, 499.0, 498.0, 500.0, 500.0], [50.0, 60.0, 40.0, 55.0, 45.0], "runs"),
    ]
    found = judge("return", samples)
    assert {r.samples.task: r.verdict for r in found.results} == {"many": "worse", "few": "cannot tell"}


def test_tasks_that_never_vary_are_no_difference() -> None:
    samples = [Samples(f"t{i}", [500.0] * 5, [500.0] * 5, "runs") for i in range(3)]
    found = judge("return", samples)
    assert [(r.p.worse, r.p.better, r.verdict) for r in found.results] == [(1.0, 1.0, "no difference")] * 3
    assert found.verdict == "no difference"
    fallen = judge("return", replaced(samples, 1, [490.0] * 5))
    assert [(r.samples.task, r.verdict) for r in fallen.results] == [
        ("t1", "worse"), ("t0", "no difference"), ("t2", "no difference"),
    ]  # fmt: skip


# What is said


def mixed() -> Comparison:
    """One task worse, one better, two as they were."""
    a = [100.0, 101.0, 102.0, 103.0, 104.0]
    same = [100.5, 101.5, 102.5, 102.0, 103.5]
    return judge("return", [
        Samples("a-same", a, same, "runs"), Samples("b-better", a, [x + 60 for x in a], "runs"),
        Samples("c-same", a, a, "runs"), Samples("d-worse", a, [x - 60 for x in a], "runs"),
    ])  # fmt: skip


def test_worse_comes_first_then_better_then_by_p() -> None:
    found = mixed()
    assert [r.samples.task for r in found.results] == ["d-worse", "b-better", "a-same", "c-same"]
    assert [r.verdict for r in found.results] == ["worse", "better", "no difference", "no difference"]
    assert [row[0] for row in comparison_table(found).shown] == [r.samples.task for r in found.results]


def test_the_sentence_names_what_decided() -> None:
    """Runs divided otherwise could have put d as far ahead as b is, so two tasks count for b: 2 · 2 / 252."""
    assert sentence(mixed()) == (
        "return: B is worse than A beyond noise on 1 of 4 tasks: d-worse (p = 0.008); "
        "better on b-better (p = 0.016)"
    )
    assert [row[-2:] for row in comparison_table(mixed()).shown][:2] == [
        ["0.008", "worse"],
        ["0.016", "better"],
    ]


@pytest.mark.usefixtures("quick")
def test_p_and_verdict_never_contradict_each_other() -> None:
    """Whatever is shown: at most 0.05 is beyond noise, and nothing else is."""
    rng = np.random.default_rng(15)
    for trial in range(60):
        samples = suite(rng, 1 + trial % 8, 3 + trial % 3)
        samples = replaced(samples, 0, list(np.asarray(samples[0].b) - rng.choice([0.0, 10.0, 20.0, 80.0])))
        found = judge("return", samples)
        for result in found.results:
            assert (result.p.lower <= 0.05) == (result.verdict in ("worse", "better"))
        assert (found.p.worse <= 0.05) == (found.verdict == "worse")


def test_a_difference_within_the_tolerance_says_so() -> None:
    found = judge("return", [Samples("t", [500.0] * 5, [490.0] * 5, "runs")], tolerance=0.05)
    assert sentence(found) == "return: no difference beyond noise and above 5 % of A (p = 0.004)"
    assert comparison_table(found).shown[0][-2:] == ["0.004", "no difference above 5 %"]


def test_nothing_is_shown_as_minus_zero() -> None:
    a = [100.0, 200.0, 300.0, 400.0]
    found = judge("return", [Samples("t", a, [x - 0.001 for x in a], "runs")])
    (row,) = comparison_table(found).shown
    assert row[4].startswith("0.0 [")
    assert row[5] == "0.0 %"


def test_one_run_on_a_side_has_no_interval() -> None:
    found = judge("return", [Samples("t", [1.0, 2.0, 3.0, 4.0, 5.0], [7.0], "runs")])
    (row,) = comparison_table(found).shown
    assert row[1:6] == ["5, 1", "3.00", "7.00", "+4.00", "+133.3 %"]


# The command


def write_suite(folder: Path, tasks: int, fallen: int | None = None) -> Path:
    """Five seeds on each of several envs; B may have lost one."""
    for task in range(tasks):
        top = 10.0 if task == fallen else 500.0
        write_seeds(folder / str(task), [top - seed for seed in range(5)], env=f"Env{task:02d}-v0")
    return folder


def test_the_command_fails_for_one_collapse_among_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [str(write_suite(tmp_path / "a", 12)), str(write_suite(tmp_path / "b", 12, fallen=7))]
    assert main(["compare", *sides, "--fail-on-regression"]) == 1
    out = capsys.readouterr().out
    assert "return: B is worse than A beyond noise on 1 of 12 tasks: ppo · Env07-v0 (p = 0.008)\n" in out
    assert out.splitlines()[4].startswith("ppo · Env07-v0")
    assert main(["compare", sides[0], sides[0], "--fail-on-regression"]) == 0
    assert (
        "return: no difference beyond noise on any of 12 tasks (lowest p = 1.000" in capsys.readouterr().out
    )
    assert main(["compare", *sides, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["return"]["tasks"][0]["p_worse"] == data["return"]["p_worse"] == pytest.approx(2 / 252)
    assert data["return"]["together"]["p_worse"] > 0.05


def test_csv_has_return_and_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [str(write_suite(tmp_path / "a", 2)), str(write_suite(tmp_path / "b", 2))]
    assert main(["compare", *sides, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["measure"], row["task"]) for row in rows] == [
        ("return", "ppo · Env00-v0"), ("return", "ppo · Env01-v0"),
        ("speed", "ppo · Env00-v0"), ("speed", "ppo · Env01-v0"),
    ]  # fmt: skip
    assert [float(row["mean_a"]) for row in rows] == [498.0, 498.0, 200.0, 200.0]
