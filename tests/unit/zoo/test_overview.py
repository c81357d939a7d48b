"""Tables and pages over many runs: every number against a computation of the test's own."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from zoo_html import Element, parse
from zoo_runs import config, metadata, write_run, write_seeds

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.presets import load_preset
from rl_training.zoo.drift import drift_of
from rl_training.zoo.groups import config_differences, group_runs, sort_groups
from rl_training.zoo.overview import as_text, overview
from rl_training.zoo.overview_page import overview_page
from rl_training.zoo.scan import scan
from rl_training.zoo.statistics import estimate

PPO = [400.0, 450.0, 470.0, 490.0, 500.0]
DQN = [100.0, 300.0]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two algorithms on one env, one of them on another."""
    folder = tmp_path / "runs"
    write_seeds(folder / "one", PPO, seconds=10.0, spread=5.0)
    write_seeds(folder / "two", DQN, algo="dqn", seconds=20.0)
    write_seeds(folder / "three", [-200.0, -150.0, -160.0], env="Pendulum-v1")
    return folder


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", *map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def page_of(folder: Path, **options: Any) -> Element:
    found = scan([folder])
    return parse(overview_page(overview(found, found.runs, **options)))


def cells(section: Element) -> list[list[str]]:
    return [[cell.text for cell in row.all("td")] for row in section.all("tbody")[0].all("tr")]


# Numbers


def test_json_has_the_numbers_of_the_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(report(capsys, str(runs), "--format", "json", "--threshold", "225"))
    groups = {(g["algo"], g["env"]): g for g in data["groups"]}
    assert list(groups) == [("dqn", "CartPole-v1"), ("ppo", "CartPole-v1"), ("ppo", "Pendulum-v1")]
    ppo = groups["ppo", "CartPole-v1"]
    assert ppo["iqm"] == pytest.approx(statistics.fmean(sorted(PPO)[1:-1]))
    interval = estimate([PPO])
    assert (ppo["low"], ppo["high"]) == (interval.low, interval.high)
    assert (ppo["runs"], ppo["best"], ppo["status"]) == (5, 500.0, {"completed": 5})
    assert (ppo["min_steps"], ppo["max_steps"]) == (2000, 2000)
    assert (ppo["median_seconds"], ppo["median_steps_per_second"]) == (10.0, 200.0)
    assert (ppo["reached"], ppo["steps_to"], ppo["seconds_to"]) == (5, 1000, 5.0)  # 450 / 2 at step 1,000
    dqn = groups["dqn", "CartPole-v1"]
    assert dqn["iqm"] == 200.0
    assert (dqn["reached"], dqn["steps_to"]) == (1, None)  # half of the runs never get there
    assert len(data["runs"]) == 10
    assert sorted(r["score"] for r in data["runs"]) == sorted([*PPO, *DQN, -200.0, -150.0, -160.0])


def test_statistic_score_and_confidence_can_be_chosen(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--format", "json", "--statistic", "median", "--confidence", "0.5", "--filter", "algo=ppo"]
    (cartpole, pendulum) = json.loads(report(capsys, str(runs), *options))["groups"]
    assert (cartpole["median"], pendulum["median"]) == (470.0, -160.0)
    wide = estimate([PPO]).bounds
    assert wide[0] < cartpole["low"] <= cartpole["high"] < wide[1]
    best = json.loads(report(capsys, str(runs), "--format", "json", "--score", "best"))["groups"]
    assert best[-1]["iqm"] == pytest.approx(statistics.fmean([-100.0, -75.0, -80.0]))  # halfway it was better


def test_text_is_a_table_and_tells_what_is_wrong(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "junk").mkdir()
    write_run(runs / "torn", name="torn", metadata=None, config=config() | {"env_id": "Torn-v0"})
    text = report(capsys, str(runs), "--sort", "score")
    lines = text.splitlines()
    assert lines[0].split() == [
        "algo", "env", "preset", "runs", "steps", "IQM", "[95", "%]", "episodes", "best", "time", "steps/s",
        "status",
    ]  # fmt: skip
    shown = [line.split()[:2] for line in lines[1:5]]
    assert shown == [
        ["ppo", "CartPole-v1"],
        ["ppo", "Torn-v0"],
        ["dqn", "CartPole-v1"],
        ["ppo", "Pendulum-v1"],
    ]
    assert f"470.0 [{estimate([PPO]).low:.1f}, 490.0]" in lines[1] or "470.0 [" in lines[1]
    assert "1 damaged:" in text
    assert f"  {runs}/torn/torn: metadata.json: not there" in lines
    assert f"  {runs}/junk: no run in it" in lines


def test_csv_and_markdown(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(report(capsys, str(runs), "--format", "csv"))))
    assert [row["iqm"] for row in rows] == ["200.0", "470.0", "-170.0"]
    assert rows[0]["status"] == "completed 2"
    lines = report(capsys, str(runs), "--format", "markdown").splitlines()
    assert lines[1] == "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    assert lines[2].startswith("| dqn | CartPole-v1 | \u2013 | 2 | 2k | 200.0 [100.0, 300.0] | 2 |")
    target = tmp_path / "out" / "table.md"
    assert report(capsys, str(runs), "-o", str(target)) == f"{target}\n"
    assert target.read_text().splitlines() == lines


def test_grouping_and_sorting(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scan([runs])
    assert [g.values for g in group_runs(found.runs, ["algo"])] == [("dqn",), ("ppo",)]
    by_rate = group_runs(found.runs, ["env", "hyperparams.learning_rate"])
    assert [g.values for g in by_rate] == [("CartPole-v1", "0.00025"), ("Pendulum-v1", "0.00025")]
    groups = group_runs(found.runs)
    order = {name: [g.values[:2] for g in sort_groups(groups, name)] for name in ("-time", "time", "runs")}
    assert order["time"][0] == ("dqn", "CartPole-v1")
    assert order["-time"][-1] == ("dqn", "CartPole-v1")
    assert [n[0] for n in order["runs"]] == ["ppo", "ppo", "dqn"]
    with pytest.raises(ConfigError, match=r"--group-by algos: no run has it; did you mean algo\?"):
        group_runs(found.runs, ["algos"])
    assert main(["report", str(runs), "--sort", "beauty"]) == 2
    assert "expected one of name, runs" in capsys.readouterr().err


def test_no_run_is_an_error(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/empty: no run in it, at any depth\n"
    assert main(["report", str(runs), "--filter", "algo=sac"]) == 2
    assert "none of the 10 runs meets algo=sac" in capsys.readouterr().err


def test_one_run_is_still_a_page_of_its_own(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = next((runs / "one").iterdir())
    assert report(capsys, str(one)) == f"{one}/report.html\n"
    assert report(capsys, str(one), "--format", "text").splitlines()[1].startswith("ppo   CartPole-v1")


def test_runs_without_evaluations_are_counted_but_not_scored(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [10.0, 20.0])
    write_run(
        tmp_path, name="new", evaluations=[], metadata=metadata() | {"preset": None, "status": "running"}
    )
    found = scan([tmp_path])
    (group,) = group_runs(found.runs)
    assert (len(group.runs), group.scores, group.statuses) == (
        3,
        [10.0, 20.0],
        {"completed": 2, "running": 1},
    )
    line = as_text(overview(found, found.runs)).splitlines()[1]
    assert "2 of 3" in line
    assert line.endswith("2 completed, 1 running")


# Drift


def test_drift_from_the_preset_is_flagged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {
        "total_timesteps": 100_000, "num_envs": 8, "evaluation": {"every_steps": 10_000, "episodes": 10},
        "hyperparams": {
            "num_steps": 32, "num_minibatches": 1, "update_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
            "learning_rate": 0.001, "learning_rate_schedule": "linear", "clip_coef": 0.2,
            "clip_coef_schedule": "linear", "ent_coef": 0.0, "clip_value_loss": False,
        },
    }  # fmt: skip
    write_seeds(tmp_path / "faithful", [1.0, 2.0], preset="ppo/cartpole", **own)
    other = own | {"hyperparams": own["hyperparams"] | {"gamma": 0.9}, "evaluation": {"episodes": 3}}  # type: ignore[operator]
    write_seeds(
        tmp_path / "other", [3.0], preset="ppo/cartpole", **other, device="cuda", logging={"every_steps": 5}
    )
    write_seeds(tmp_path / "unknown", [4.0], preset="my/own", **other)
    changes = {run.final: [(d.key, d.kind, str(d)) for d in drift_of(run)] for run in scan([tmp_path]).runs}
    assert changes[1.0] == changes[2.0] == changes[4.0] == []
    assert changes[3.0] == [
        ("evaluation.episodes", "protocol", "evaluation.episodes: 3 instead of 10"),
        ("hyperparams.gamma", "config", "hyperparams.gamma: 0.9 instead of 0.98"),
    ]
    text = report(capsys, str(tmp_path), "--filter", "preset=ppo/cartpole")
    assert "1 of 3: hyperparams.gamma, evaluation.episodes" in text  # what is trained before how it is judged
    drift = page_of(tmp_path).by_id("drift")
    assert [row[1:3] for row in cells(drift)] == [
        ["hyperparams.gamma: 0.9 instead of 0.98", "1 of 3"],
        ["evaluation.episodes: 3 instead of 10", "1 of 3"],
    ]


def test_a_group_of_different_settings_is_told_and_how_to_part_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_seeds(tmp_path / "a", [1.0, 2.0], hyperparams={"gamma": 0.9})
    write_seeds(tmp_path / "b", [3.0, 4.0], hyperparams={"gamma": 0.99}, logging={"every_steps": 5})
    write_seeds(tmp_path / "c", [5.0], env="Other-v0", hyperparams={"gamma": 0.5})
    lines = report(capsys, str(tmp_path)).splitlines()
    apart = "--group-by algo,env,preset,hyperparams.gamma keeps them apart"
    assert lines[-2:] == [
        "  ppo · CartPole-v1: hyperparams.gamma 0.9, 0.99",
        f"  {apart}",
    ]
    groups = json.loads(report(capsys, str(tmp_path), "--format", "json"))["groups"]
    assert [group["mixed"] for group in groups] == [{"hyperparams.gamma": ["0.9", "0.99"]}, {}]
    (warning,) = [n.text for n in page_of(tmp_path).all("div") if "notice" in n.classes]
    assert "Groups hold runs of different settings." in warning
    assert apart in warning
    for keys in ("algo,env,preset,hyperparams.gamma", "algo"):  # kept apart, or put together on purpose
        assert "keeps them apart" not in report(capsys, str(tmp_path), "--group-by", keys)


def test_hyperparameters_set_beyond_the_preset_are_flagged(tmp_path: Path) -> None:
    words = ["axiomrl", "train", "--hyperparams.vf_coef=0.7", "--hyperparams.gamma", "0.98", "--seed", "3"]
    own = config() | {"total_timesteps": 100_000, "num_envs": 8, "evaluation": {}}
    own["hyperparams"] = {**load_preset("ppo/cartpole").data["hyperparams"], "vf_coef": 0.7}
    write_run(tmp_path, config=own, metadata=metadata() | {"command": words, "resumes": []})
    (run,) = scan([tmp_path]).runs
    assert [str(d) for d in drift_of(run)] == ["hyperparams.vf_coef: 0.7 instead of the default"]


def test_drift_that_a_resume_let_in_is_flagged(tmp_path: Path) -> None:
    change = {"key": "hyperparams.gamma", "old": 0.99, "new": 0.9, "origin": "command line"}
    resumed = {"at_utc": "", "step": 1000, "grade": "drift", "drift": [change], "changed": []}
    write_run(tmp_path, metadata=metadata() | {"preset": None, "resumes": [resumed]})
    (run,) = scan([tmp_path]).runs
    assert [str(d) for d in drift_of(run)] == ["hyperparams.gamma was changed in the middle of the run"]


# The page


def test_the_page_shows_the_same_numbers(runs: Path) -> None:
    document = page_of(runs)
    rows = cells(document.by_id("results"))
    assert [row[:2] for row in rows] == [
        ["dqn", "CartPole-v1"],
        ["ppo", "CartPole-v1"],
        ["ppo", "Pendulum-v1"],
    ]
    assert rows[0][5] == "200.0 [100.0, 300.0]"
    assert len(document.by_id("curves").all("figure")) == 2
    assert [h.text for h in document.by_id("curves").all("h3")] == ["CartPole-v1", "Pendulum-v1"]
    strips = document.by_id("scores").all(cls="strip")
    assert [len(strip.all("i", "run")) for strip in strips] == [5, 2, 3]
    assert len(document.by_id("runs").all("tbody")[0].all("tr")) == 10
    assert document.all("h1")[0].text == "10 runs"


def test_curves_are_drawn_where_the_numbers_are(tmp_path: Path) -> None:
    write_seeds(tmp_path, [100.0, 200.0, 300.0, 400.0])
    plot = page_of(tmp_path).by_id("curves").all(cls="plot")[0]
    top = max(float(label.text) for label in plot.all("span", "y"))
    line = next(path for path in plot.all("path") if "line" in path.classes).attributes["d"] or ""
    drawn = [tuple(map(float, pair.split())) for pair in line[1:].split("L")]
    low = min(float(label.text) for label in plot.all("span", "y"))
    expected = [
        (1000 * step / 2000, 1000 * (top - y) / (top - low)) for step, y in ((1000, 125.0), (2000, 250.0))
    ]
    for point, wanted in zip(drawn, expected, strict=True):
        assert point == pytest.approx(wanted, abs=0.1)
    band = next(path for path in plot.all("path") if "band" in path.classes).attributes["d"] or ""
    corners = [tuple(map(float, pair.split())) for pair in band[1:-1].split("L")]
    heights = [top - y * (top - low) / 1000 for _, y in corners]
    assert len(corners) == 4
    assert heights[1] > 250.0 > heights[2]
    assert heights[2] >= 100.0
    assert heights[1] <= 400.0


def test_the_score_plot_is_to_scale(tmp_path: Path) -> None:
    write_seeds(tmp_path, [0.0, 50.0, 100.0])
    section = page_of(tmp_path).by_id("scores")

    def left(element: Element) -> float:
        return float((element.attributes["style"] or "").split(":")[1].split("%")[0])

    ticks = {label.text: left(label) for label in section.all(cls="axis")[0].all("span")}
    assert [left(dot) for dot in section.all("i", "run")] == [
        ticks["0"],
        (ticks["0"] + ticks["100"]) / 2,
        ticks["100"],
    ]
    assert left(section.all("i", "middle")[0]) == pytest.approx((ticks["0"] + ticks["100"]) / 2)


def test_differences_between_configs_are_listed(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [1.0, 2.0], hyperparams={"tau": 0.5, "gamma": 0.99})
    write_seeds(tmp_path / "b", [3.0], env="Pendulum-v1", hyperparams={"gamma": 0.9})
    write_seeds(tmp_path / "c", [4.0], env="Pendulum-v1", hyperparams={"gamma": 0.8})
    groups = group_runs(scan([tmp_path]).runs, ["env"])
    assert config_differences(groups, ignore=("env_id",)) == [
        ("hyperparams.gamma", ["0.99", "0.8 | 0.9"]), ("hyperparams.tau", ["0.5", "\u2013"]),
    ]  # fmt: skip
    rows = cells(page_of(tmp_path).by_id("differences"))
    assert [row[0] for row in rows] == ["hyperparams.gamma", "hyperparams.tau"]


def test_videos_are_in_the_page_and_nothing_else_is_loaded(tmp_path: Path) -> None:
    (one, two) = write_seeds(tmp_path, [1.0, 2.0])
    (one / "videos").mkdir()
    (one / "videos" / "episode.mp4").write_bytes(b"not really a film")
    with open(two / "long.webm", "wb") as file:
        file.truncate(9 << 20)
    found = scan([tmp_path])
    html = overview_page(overview(found, found.runs))
    document = parse(html)
    (video,) = document.by_id("videos").all("video")
    assert (video.attributes["src"] or "").startswith("data:video/mp4;base64,bm90IHJlYWxseSBhIGZpbG0=")
    assert "long.webm (9.0 MiB, too large" in document.by_id("videos").text
    assert "media-src data:" in html
    assert "http://" not in html
    assert "https://" not in html


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def test_nothing_from_the_files_becomes_markup(tmp_path: Path) -> None:
    own = config() | {"algo": HOSTILE, "env_id": HOSTILE, "seed": HOSTILE, "x": {HOSTILE: HOSTILE}}
    data = metadata() | {"status": HOSTILE, "preset": HOSTILE, "created_at_utc": HOSTILE}
    write_run(tmp_path, config=own, metadata=data, name="<script>alert(3)<")
    write_run(tmp_path, name="other")
    (tmp_path / "<img src=x>").mkdir()
    document = page_of(tmp_path)
    assert len(document.all("script")) == 1
    assert document.all("img") == []
    assert HOSTILE in document.by_id("results").text
    assert not [name for element in document.all() for name in element.attributes if name.startswith("on")]


def test_html_goes_into_the_directory_unless_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, str(runs), "--format", "html") == f"{runs}/report.html\n"
    assert parse((runs / "report.html").read_text()).all("title")[0].text == "10 runs"


def test_many_groups_on_one_env_leave_a_readable_chart(tmp_path: Path) -> None:
    for index in range(11):
        write_seeds(tmp_path / str(index), [float(index)], algo=f"algo{index}")
    curves = page_of(tmp_path).by_id("curves")
    lines = [path for path in curves.all("path") if "line" in path.classes]
    assert len(lines) == 8
    assert len({tuple(line.classes) for line in lines}) == 8
    assert "3 more not drawn." in curves.text


def test_reports_import_no_torch_and_no_gymnasium(runs: Path) -> None:
    write_seeds(runs / "preset", [1.0, 2.0], preset="ppo/cartpole")  # drift is judged as well
    code = (
        "import sys; from rl_training.cli import main; code = main(['report', *sys.argv[1:]]);"
        "print(code, [m for m in ('torch', 'matplotlib', 'gymnasium') if m in sys.modules])"
    )
    for options in (["--format", "json"], ["--format", "html", "-o", str(runs / "x.html")]):
        command = [sys.executable, "-c", code, str(runs), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "0 []"


def test_infinite_numbers_do_not_reach_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path, [math.inf, 5.0])
    text = report(capsys, str(tmp_path), "--format", "json")
    assert "Infinity" not in text
    assert json.loads(text)["groups"][0]["iqm"] == 5.0
