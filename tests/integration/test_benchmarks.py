"""The speed benchmarks: contenders take turns, and what is made of their figures. Speed itself is no test."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import turns

    return turns


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate_performance

    return generate_performance


def quick(tmp_path: Path, *words: str) -> dict[str, Any]:
    """What a benchmark writes when it is only to show that it works, with this package alone."""
    output = tmp_path / "result.json"
    script, *rest = words
    command = [sys.executable, ROOT / "benchmarks" / script, *rest, "--quick", "--peers", "-o", output]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert "git" in found  # empty where the sources lie outside a repository
    assert found["versions"]["torch"]
    return found


def test_figures_are_medians_and_ratios_are_taken_turn_by_turn(turns: Any) -> None:
    mine, theirs = (10.0, 40.0, 30.0), (10.0, 20.0, 5.0)
    rounds = [
        {"axiomrl": {"steps_per_second": a, "resident_bytes": 7.0}, "sbx": {"steps_per_second": b}}
        for a, b in zip(mine, theirs, strict=True)
    ]
    found = turns.summary(rounds)
    assert found["steps_per_second"] == {"axiomrl": 30.0, "sbx": 10.0}
    assert found["ratio_of_medians"] == {"sbx": 3.0}
    assert found["ratios"] == {"sbx": [1.0, 2.0, 6.0]}
    assert found["resident_bytes"] == {"axiomrl": 7.0}
    assert found["all"]["steps_per_second"]["sbx"] == list(theirs)


def test_a_variant_is_this_package_with_settings_by_section(turns: Any) -> None:
    found = turns.variant("fast:compile=on,env.backend=native,hyperparams.num_steps=64")
    assert (found.name, found.call) == ("axiomrl, fast", "ours:axiomrl")
    assert found.settings["env"] == {"backend": "native"}
    assert found.settings["hyperparams"] == {"num_steps": 64}
    laid = turns.merged({"env": {"backend": "sync", "frame_skip": 2}, "seed": 1}, found.settings)
    assert laid["env"] == {"backend": "native", "frame_skip": 2}
    assert laid["seed"] == 1
    with pytest.raises(SystemExit, match="give a name and settings"):
        turns.variant("fast")


def test_the_suite_measures_what_the_page_shows(turns: Any, page: Any) -> None:
    import suite

    assert list(suite.PARTS) == [part.name for part in page.PARTS if part.name != "gpu"]
    for aim in page.AIMS:
        assert aim.part in {"gpu", *suite.PARTS}
    assert turns.PIPELINED in suite.PARTS["ppo-envs"][0]


def test_between_turns_a_contender_stands_still_with_all_it_has_started(turns: Any, tmp_path: Path) -> None:
    """Else a sampler of its own would collect while others are measured, for nothing."""
    from pace import Job

    count = tmp_path / "count"
    (tmp_path / "busy.py").write_text(
        f"""
import subprocess, sys, time

def train(job, meter):
    child = "import sys\\nfor n in range(10**9): print(n, file=sys.stdout, flush=True)"
    with open({str(count)!r}, "w") as file:
        subprocess.Popen([sys.executable, "-c", child], stdout=file)
    steps = 0
    while True:
        steps += 1
        time.sleep(0.001)
        meter.boundary(steps)
"""
    )
    busy = turns.Contender("busy", "busy:train", environ={"PYTHONPATH": str(tmp_path)})
    with turns.processes([busy], Job("ppo", "CartPole-v1")) as (process,):
        while not count.stat().st_size:
            process.turn(0.05)
        sizes = []
        for _ in range(3):
            time.sleep(0.1)
            sizes.append(count.stat().st_size)
        assert process.turn(0.1)["steps_per_second"] > 0
        assert count.stat().st_size > sizes[-1]
    assert sizes[0] > 0
    assert len(set(sizes)) == 1


def test_an_older_checkout_is_one(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "replay.py"
    (tmp_path / "unknown" / "src" / "rl_training").mkdir(parents=True)
    for folder, words in (("nothing", "there is no src/rl_training"), ("unknown", "git does not know")):
        command = [sys.executable, script, "--quick", "--before", tmp_path / folder]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def point(**rates: float) -> dict[str, Any]:
    return {"job": {}, "steps_per_second": {name.replace("_", ", "): value for name, value in rates.items()}}


def test_no_slower_than_before_is_said_only_where_all_points_were_measured(page: Any) -> None:
    aim = page.no_slower("speed", "ppo-envs", page.gains)
    points = [point(axiomrl=3.0, axiomrl_before=2.0), point(axiomrl=2.4, axiomrl_before=2.0)]
    assert aim.measure({"results": points}) == pytest.approx(1.2)
    assert aim.measure({"results": [*points, point(axiomrl=3.0)]}) is None
    assert aim.measure({"results": []}) is None
    add, draw = (
        {"axiomrl": a, "axiomrl, before": 2.0, "axiomrl, prioritised": b, "axiomrl, prioritised, before": 4.0}
        for a, b in ((2.0, 5.0), (3.0, 3.0))
    )
    found = {"collection_steps_per_second": add, "update_steps_per_second": draw}
    assert page.replay_gains({"results": [found]}) == [1.0, 1.25, 1.5, 0.75]
    del add["axiomrl, prioritised, before"]
    assert page.replay_gains({"results": [found]}) == [1.0, None, 1.5, 0.75]
    rows = [{"what": "python", "seconds": {"axiomrl": 1.0}}]
    rows += [{"what": "import", "seconds": {"axiomrl": 2.0, "axiomrl, before": 3.0}}]
    assert page.startup_gains({"results": rows}) == [1.5]


def test_ahead_of_every_library_is_ahead_of_the_fastest_in_every_case(page: Any) -> None:
    aim = next(aim for aim in page.AIMS if aim.part == "libraries")
    first = {**point(axiomrl=6.0, axiomrl_before=9.0, sbx=2.0, torchrl=4.0)}
    first["steps_per_second"]["envs alone"] = 100.0
    second = point(axiomrl=3.0, tianshou=4.0)
    assert aim.measure({"results": [first]}) == pytest.approx(1.5)
    assert aim.measure({"results": [first, second]}) == pytest.approx(0.75)
    assert aim.measure({"results": []}) is None


def test_every_library_has_a_function_that_measures_it(turns: Any, page: Any) -> None:
    import libraries

    for call in {**turns.PEERS, **turns.MORE_PEERS}.values():
        module, _, function = call.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert set(turns.MORE_PEERS) >= libraries.OFF_POLICY_ONLY
    assert {job.algo for job in libraries.JOBS.values()} == {"ppo", "dqn", "sac", "td3"}


def test_aims_of_one_gpu_are_not_reached_on_another(page: Any) -> None:
    aim = next(aim for aim in page.AIMS if aim.what.startswith("H200: SAC"))
    found = {"results": [{"case": "sac", "steps_per_second": 2000.0}]}
    assert aim.measure({**found, "hardware": {"gpus": ["NVIDIA H200"]}}) == 2000.0
    assert aim.measure({**found, "hardware": {"gpus": ["NVIDIA T4"]}}) is None


def test_pages_are_made_of_whatever_was_measured(page: Any) -> None:
    whole = {part.name: part.result for part in page.PARTS}
    assert "not measured" in page.generated({**whole, "startup": None})
    alone = {"job": {"num_envs": 8}, "steps_per_second": {"axiomrl": 61_492.3}}
    lines = page.summary({"ppo-envs": {"results": [alone]}}).splitlines()
    assert lines[2] == "| PPO, 8 envs, steps a second | 61,492 |  |  |"
    assert all(line.endswith("|  |  |  |") for line in lines[3:])


def test_the_interval_of_a_ratio_holds_it(page: Any) -> None:
    ours = [{"seconds": 2.0 + seed / 10} for seed in range(20)]
    runs = {"axiomrl": ours, "sbx": [{"seconds": 3 * run["seconds"]} for run in ours]}
    assert page.interval(runs, "sbx") == "3.00 to 3.00"  # seed by seed it is always the same
    runs["sbx"] = runs["sbx"][::-1]
    low, high = map(float, page.interval(runs, "sbx").split(" to "))
    assert 2.0 < low < 3.0 < high < 4.0


def test_options_that_a_part_does_not_know_are_refused_before_anything_is_measured(turns: Any) -> None:
    import suite

    for words in (["--variant=fast:compile=on"], ["--seconds", "2"]):
        command = [sys.executable, suite.__file__, "ppo-envs", "startup", "--quick", "--", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"{words[0].partition('=')[0]} is nothing for startup" in done.stderr
        assert "==" not in done.stdout


def test_the_page_knows_the_peer_that_evaluates_as_we_do(turns: Any, page: Any) -> None:
    import time_to_threshold

    assert f"{time_to_threshold.SB3}, {time_to_threshold.SIDE_BY_SIDE} at evaluations" == page.ALIKE
    assert any(aim.what.startswith("time to 475") and "4 envs" in aim.what for aim in page.AIMS)


def test_a_contender_that_fails_is_named_and_says_why(turns: Any) -> None:
    from pace import Job

    broken = turns.Contender("broken", "no_such_module:train")
    with pytest.raises(SystemExit, match=r"broken failed:[\s\S]*no_such_module"):
        turns.compare(Job("ppo", "CartPole-v1"), [broken], 0.1, 1)


def test_ppo_and_its_ceilings_take_turns(tmp_path: Path) -> None:
    (result,) = quick(tmp_path, "ppo_cartpole.py", "envs")["results"]
    assert result["job"]["num_envs"] == 8
    rates = result["steps_per_second"]
    assert set(rates) == {"axiomrl", "axiomrl, two learners", "envs alone", "Gymnasium's vector alone"}
    parts = [result[f"{part}_steps_per_second"]["axiomrl"] for part in ("collection", "update")]
    assert sum(1 / part for part in parts) == pytest.approx(1 / rates["axiomrl"], rel=1e-6)
    assert result["resident_bytes"]["axiomrl"] > 10**7


@pytest.mark.full
def test_the_other_experiments_work(tmp_path: Path) -> None:
    (result,) = quick(tmp_path, "libraries.py")["results"]
    assert set(result["steps_per_second"]) == {"axiomrl", "envs alone"}
    results = quick(tmp_path, "off_policy.py", "threads")["results"]
    assert [result["job"]["algo"] for result in results] == ["dqn", "sac", "td3"]
    (result,) = quick(tmp_path, "replay.py")["results"]
    assert set(result["steps_per_second"]) == {"axiomrl", "axiomrl, prioritised"}
    assert result["bytes_per_transition"]["axiomrl"] == 16 + 8 + 4 + 3 + 4 + 4  # as it is stored
    runs = quick(tmp_path, "time_to_threshold.py")["runs"]["axiomrl"]
    assert [run["solved"] for run in runs] == [False]
    seconds = {row["what"]: row["seconds"]["axiomrl"] for row in quick(tmp_path, "startup.py")["results"]}
    assert seconds["first training step"] > seconds["import"] > seconds["python"]
