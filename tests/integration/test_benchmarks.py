"""The speed benchmarks: contenders take turns, and what is made of their figures. Speed itself is no test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import turns

    return turns


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


def test_the_suite_measures_what_the_page_shows(turns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import suite

    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate_performance as page

    assert list(suite.PARTS) == [part.name for part in page.PARTS if part.name != "gpu"]
    for aim in page.AIMS:
        assert aim.part in {"gpu", *suite.PARTS}
    assert turns.PIPELINED in suite.PARTS["ppo-envs"][0]


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
    results = quick(tmp_path, "off_policy.py", "threads")["results"]
    assert [result["job"]["algo"] for result in results] == ["dqn", "sac", "td3"]
    (result,) = quick(tmp_path, "replay.py")["results"]
    assert set(result["steps_per_second"]) == {"axiomrl", "axiomrl, prioritised"}
    assert result["bytes_per_transition"]["axiomrl"] == 16 + 8 + 4 + 3 + 4 + 4  # as it is stored
    runs = quick(tmp_path, "time_to_threshold.py")["runs"]["axiomrl"]
    assert [run["solved"] for run in runs] == [False]
    seconds = {row["what"]: row["seconds"]["axiomrl"] for row in quick(tmp_path, "startup.py")["results"]}
    assert seconds["first training step"] > seconds["import"] > seconds["python"]
