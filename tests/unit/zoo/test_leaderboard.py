"""Ranks, ties, normalisation and who is left out."""

from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from zoo_html import Element, parse
from zoo_runs import write_seeds

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.zoo.leaderboard import Board, leaderboard
from rl_training.zoo.leaderboard_page import leaderboard_page
from rl_training.zoo.references import known_points, points_for
from rl_training.zoo.scan import scan
from rl_training.zoo.statistics import estimate, probability_of_improvement

HIGH, CLOSE, LOW = [480.0, 490.0, 500.0, 495.0], [470.0, 485.0, 500.0, 490.0], [90.0, 100.0, 110.0, 120.0]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three algorithms on one env."""
    for algo, scores in (("ppo", HIGH), ("sac", CLOSE), ("dqn", LOW)):
        write_seeds(tmp_path / "runs" / algo, scores, algo=algo)
    return tmp_path / "runs"


def board_of(folder: Path, **options: Any) -> Board:
    return leaderboard(scan([folder]).runs, **options)


def slow_iqm(values: list[float]) -> float:
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def test_ranks_and_ties(runs: Path) -> None:
    board = board_of(runs)
    assert [(e.name, e.rank, e.tied) for e in board.entries] == [
        ("ppo", 1, True), ("sac", 1, True), ("dqn", 3, False),
    ]  # fmt: skip
    for entry, scores in zip(board.entries, (HIGH, CLOSE, LOW), strict=True):
        assert entry.score is not None
        assert entry.score == estimate([scores])
        assert entry.score.value == pytest.approx(slow_iqm(scores))


def test_a_tie_is_measured_against_the_first_of_a_rank(tmp_path: Path) -> None:
    """b overlaps a, and c overlaps b but not a: c is third, not part of a chain of ties."""
    for algo, middle in (("a", 20.0), ("b", 16.0), ("c", 12.0)):
        write_seeds(tmp_path / algo, [middle - 3, middle - 1, middle + 1, middle + 3], algo=algo)
    assert [(e.name, e.rank, e.tied) for e in board_of(tmp_path).entries] == [
        ("a", 1, True), ("b", 1, True), ("c", 3, False),
    ]  # fmt: skip


def test_several_envs_are_normalised_by_reference_points(tmp_path: Path) -> None:
    ppo = {"CartPole-v1": [400.0, 450.0, 500.0], "Pendulum-v1": [-200.0, -180.0, -160.0]}
    dqn = {"CartPole-v1": [100.0, 120.0, 140.0], "Pendulum-v1": [-900.0, -800.0, -700.0]}
    for algo, by_env in (("ppo", ppo), ("dqn", dqn)):
        for env, scores in by_env.items():
            write_seeds(tmp_path / algo / env, scores, algo=algo, env=env)
    board = board_of(tmp_path, statistic="mean")
    points = {env: known_points()[env] for env in ppo}
    for entry, by_env in zip(board.entries, (ppo, dqn), strict=True):
        expected = statistics.fmean(
            statistics.fmean(
                (x - points[env]["random"]) / (points[env]["reference"] - points[env]["random"])
                for x in scores
            )
            for env, scores in by_env.items()
        )
        assert entry.score is not None
        assert entry.score.value == pytest.approx(expected)
    gap = board_of(tmp_path, statistic="gap")
    assert [e.name for e in gap.entries] == ["ppo", "dqn"]
    assert gap.entries[0].score is not None
    assert gap.entries[1].score is not None
    assert gap.entries[0].score.value < gap.entries[1].score.value


def test_envs_without_points_use_the_range_of_the_board(tmp_path: Path) -> None:
    for algo, shift in (("ppo", 10.0), ("dqn", 0.0)):
        for env in ("Mine-v0", "Mine-v1"):
            write_seeds(tmp_path / algo / env, [shift, shift + 5, shift + 10], algo=algo, env=env)
    board = board_of(tmp_path, statistic="mean")
    assert board.points == {"Mine-v0": (0.0, 20.0), "Mine-v1": (0.0, 20.0)}
    assert [e.score.value for e in board.entries if e.score] == [0.75, 0.25]
    assert "no reference points for Mine-v0, Mine-v1" in board.notes[0]
    assert points_for({"x": [3.0, 3.0]}, "board") == {"x": (2.0, 3.0)}
    assert points_for({"ALE/Pong-v5": [0.0]}, "human") == {"ALE/Pong-v5": (-20.7, 14.6)}


def test_who_cannot_be_ranked_is_told_why(runs: Path, tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs" / "few", [1.0, 2.0], algo="a2c")
    write_seeds(tmp_path / "runs" / "elsewhere", [1.0, 2.0, 3.0], algo="ppo", env="Pendulum-v1")
    write_seeds(tmp_path / "runs" / "unfinished", [9.0] * 3, algo="new", status="running")
    board = board_of(runs)
    reasons = {e.name: e.reason for e in board.entries if e.rank is None}
    assert reasons == {
        "a2c": "not on Pendulum-v1; fewer than 3 seeds on CartPole-v1",
        "dqn": "not on Pendulum-v1",
        "sac": "not on Pendulum-v1",
    }
    assert [e.name for e in board.entries if e.rank] == ["ppo"]
    assert board.notes[0] == "3 unfinished or without a score, left out"
    assert [e.name for e in board_of(runs / "few", min_seeds=2).entries if e.rank == 1] == ["a2c"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """As in a suite: no two algorithms are on every env."""
    on = {"CartPole-v1": {"ppo": HIGH, "dqn": LOW}, "Pendulum-v1": {"sac": [-150.0] * 3, "ppo": [-180.0] * 3}}
    on["Acrobot-v1"] = {"dqn": [-80.0, -82.0, -81.0]}
    for env, by_algo in on.items():
        for algo, scores in by_algo.items():
            write_seeds(tmp_path / "suite" / env / algo, scores, algo=algo, env=env)
    return tmp_path / "suite"


def test_where_no_two_are_on_every_env_each_env_has_a_board(
    suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = board_of(suite)
    assert [entry.rank for entry in board.entries] == [None] * 3
    places = {part.envs[0]: [(e.name, e.rank) for e in part.entries] for part in board.parts}
    assert places == {
        "Acrobot-v1": [("dqn", 1)],
        "CartPole-v1": [("ppo", 1), ("dqn", 2)],
        "Pendulum-v1": [("sac", 1), ("ppo", 2)],
    }
    assert board.parts[1].entries[0].score == estimate([HIGH])  # returns as they are, not normalised

    assert main(["leaderboard", str(suite)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("-v1")] == list(places)
    assert lines[-1] == "no two are ranked on all of the 3 envs: one board an env"
    assert main(["leaderboard", str(suite), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [part["envs"] for part in data["by_env"]] == [[env] for env in places]
    assert main(["leaderboard", str(suite), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["board"], row["name"], row["rank"]) for row in rows] == [
        (env, name, str(rank)) for env, entries in places.items() for name, rank in entries
    ]
    assert main(["leaderboard", str(suite), "--format", "markdown"]) == 0
    assert "### CartPole-v1\n\n| rank | name |" in capsys.readouterr().out
    document = parse(leaderboard_page(board))
    titles = [document.by_id(f"ranking{number}").all("h2")[0].text for number in ("", "-1", "-2")]
    assert titles == [f"Ranking: {env}" for env in places]


def test_boards_of_single_envs_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for algo, shift in (("ppo", 10.0), ("dqn", 0.0)):
        for env in ("CartPole-v1", "Mine-v1"):
            write_seeds(tmp_path / algo / env, [shift, shift + 1, shift + 2], algo=algo, env=env)
    assert board_of(tmp_path).parts == []
    write_seeds(tmp_path / "one", [1.0, 2.0, 3.0], algo="sac", env="Mine-v1")
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert "--per-env also ranks those who are not on every env" in capsys.readouterr().out
    board = board_of(tmp_path, per_env=True)
    assert [part.envs for part in board.parts] == [["CartPole-v1"], ["Mine-v1"]]
    assert main(["leaderboard", str(tmp_path), "--per-env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in ("all 2 envs", "CartPole-v1", "Mine-v1")] == [
        "all 2 envs", "CartPole-v1", "Mine-v1",
    ]  # fmt: skip


def test_a_baseline_counts_where_it_has_a_rank(suite: Path) -> None:
    boards = {part.envs[0]: part for part in board_of(suite, baseline="dqn").parts}
    assert {env: board.baseline for env, board in boards.items()} == {
        "Acrobot-v1": "dqn", "CartPole-v1": "dqn", "Pendulum-v1": None,
    }  # fmt: skip
    ppo = boards["CartPole-v1"].entries[0]
    assert ppo.delta is not None
    assert ppo.delta.value == pytest.approx(slow_iqm(HIGH) - slow_iqm(LOW))
    with pytest.raises(ConfigError, match=r"--baseline ppo: it has no rank: .*fewer than 9 seeds"):
        board_of(suite, baseline="ppo", min_seeds=9)


def test_without_an_interval_nobody_is_ahead(tmp_path: Path) -> None:
    for algo, score in (("a", 200.2), ("b", 200.1), ("c", 1.0)):
        write_seeds(tmp_path / algo, [score], algo=algo)
    assert [(e.rank, e.tied) for e in board_of(tmp_path, min_seeds=1).entries] == [(1, True)] * 3


def test_failed_runs_count(tmp_path: Path) -> None:
    write_seeds(tmp_path, [1.0, 2.0, 3.0], status="failed")
    (entry,) = board_of(tmp_path).entries
    assert entry.score is not None
    assert entry.score.value == 2.0


def test_runs_that_ended_without_a_score_are_told_beside_the_rank(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_seeds(runs / "diverged", [float("nan")] * 2, algo="ppo")
    entries = {entry.name: entry for entry in board_of(runs).entries}
    assert {name: entry.unscored for name, entry in entries.items()} == {"ppo": 2, "sac": 0, "dqn": 0}
    assert main(["leaderboard", str(runs)]) == 0
    ppo = next(line for line in capsys.readouterr().out.splitlines() if " ppo " in line)
    assert ppo.split("  ")[-1].strip() == "2 more without a score"
    write_seeds(runs / "lost", [float("nan")] * 3, algo="trpo")
    lost = next(entry for entry in board_of(runs).entries if entry.name == "trpo")
    assert (lost.rank, lost.reason, lost.unscored) == (None, "no run with a score", 3)


def test_distance_from_a_baseline(runs: Path) -> None:
    entries = {e.name: e for e in board_of(runs, baseline="dqn").entries}
    assert entries["dqn"].delta is None
    delta, chance = entries["ppo"].delta, entries["ppo"].probability
    assert delta is not None
    assert delta.value == pytest.approx(slow_iqm(HIGH) - slow_iqm(LOW))
    assert delta.bounds[0] <= delta.value <= delta.bounds[1]
    assert chance == probability_of_improvement([LOW], [HIGH])
    assert chance is not None
    assert chance.value == 1.0
    with pytest.raises(ConfigError, match=r"--baseline dqm: not on the board; did you mean dqn\?"):
        board_of(runs, baseline="dqm")


def test_drift_is_flagged_and_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path, [1.0, 2.0, 3.0], preset="ppo/cartpole")  # 4,096 steps are not the preset's
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert "drift in 3 of 3" in capsys.readouterr().out
    board = board_of(tmp_path, without_drift=True)
    assert board.entries == []
    assert board.notes == ["3 with drift, left out"]


def test_the_command_in_every_notation(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def printed(*options: str) -> str:
        assert main(["leaderboard", str(runs), *options]) == 0
        return capsys.readouterr().out

    lines = printed("--baseline", "dqn").splitlines()
    assert lines[1].split()[:2] == ["1=", "ppo"]
    assert lines[3].split()[:2] == ["3", "dqn"]
    assert "= shares its rank" in lines[-1]
    data = json.loads(printed("--format", "json", "--by", "algo,env"))
    assert [e["name"] for e in data["entries"]] == [
        "ppo · CartPole-v1",
        "sac · CartPole-v1",
        "dqn · CartPole-v1",
    ]
    rows = list(csv.DictReader(io.StringIO(printed("--format", "csv"))))
    assert [(row["rank"], float(row["score"])) for row in rows] == [
        ("1", slow_iqm(HIGH)), ("1", slow_iqm(CLOSE)), ("3", slow_iqm(LOW)),
    ]  # fmt: skip
    assert printed("--format", "markdown").startswith(
        "| rank | name | IQM [95 %] | runs |  |\n| ---: | --- |"
    )
    assert printed("-o", str(tmp_path / "b.html")) == f"{tmp_path}/b.html\n"
    document = parse((tmp_path / "b.html").read_text())
    cells = [[c.text for c in row.all("td")] for row in document.by_id("ranking").all("tbody")[0].all("tr")]
    assert [row[:2] for row in cells] == [["1=", "ppo"], ["1=", "sac"], ["3", "dqn"]]
    assert len([p for p in document.by_id("profile").all("path") if "line" in p.classes]) == 3


def corners(document: Element, kind: str) -> list[tuple[float, float]]:
    """The points of a profile's line: percent from the left, share of runs."""
    (line,) = [p for p in document.by_id("profile").all("path") if p.classes == ["line", kind]]
    drawn = (tuple(map(float, pair.split())) for pair in (line.attributes["d"] or "")[1:].split("L"))
    return [(x / 10, 1 - y / 1000) for x, y in drawn]


def test_the_profile_is_a_step_that_counts_runs_at_the_most_there_is(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [500.0, 500.0, 500.0, 400.0], algo="a")
    write_seeds(tmp_path / "b", [300.0, 400.0, 500.0, 300.0], algo="b")
    document = parse(leaderboard_page(board_of(tmp_path, confidence=0.9)))
    assert corners(document, "g0") == [(0, 1), (0, 1), (50, 1), (50, 0.75), (100, 0.75)]
    assert corners(document, "g1") == [(0, 1), (0, 0.5), (50, 0.5), (50, 0.25), (100, 0.25)]
    assert [label.text for label in document.by_id("profile").all("span", "y")][::5] == ["0.0", "1.0"]
    text = document.by_id("profile").text
    assert "share of runs at or above" in text
    assert "90 % bootstrap bands" in text


def test_a_page_of_many_contestants_says_whom_it_does_not_draw(tmp_path: Path) -> None:
    for index in range(1, 12):
        write_seeds(
            tmp_path / str(index), [index / 1e4 + seed / 1e5 for seed in range(3)], algo=f"algo{index}"
        )
    document = parse(leaderboard_page(board_of(tmp_path)))
    assert "3 more not drawn." in document.by_id("profile").text
    assert len([p for p in document.by_id("profile").all("path") if "line" in p.classes]) == 8
    figures = [figure.text for figure in document.by_id("intervals").all(cls="figure")]
    assert len(figures) == 11
    assert figures[0] == "0.00111 [0.00110, 0.00112]"
    names = document.by_id("ranking").all("span", "entry")
    assert [name.text for name in names] == [f"algo{index}" for index in range(11, 0, -1)]
    assert all(name.all("i", "swatch") for name in names)


def test_nothing_from_the_files_becomes_markup(tmp_path: Path) -> None:
    hostile = '"><script>alert(1)</script>'
    write_seeds(tmp_path, [1.0, 2.0, 3.0], algo="x")
    for path in tmp_path.glob("*/config.yaml"):
        path.write_text(path.read_text().replace("algo: x", f"algo: '{hostile}'"))
    document = parse(leaderboard_page(board_of(tmp_path)))
    assert len(document.all("script")) == 1
    assert hostile in document.by_id("ranking").text


def test_zoo_is_an_alias(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    board = printed("leaderboard", str(runs), "--baseline", "dqn", "--format", "json")
    where = ["--baseline", "dqn", str(runs)]
    assert printed("zoo", "--format", "leaderboard", "--output-format", "json", *where) == board
    assert printed("zoo", str(runs), "--sort", "score") == printed("report", str(runs), "--sort", "score")
    assert main(["zoo", "--format", "leaderbord", str(runs)]) == 2
    assert main(["zoo", str(runs), "--sorting", "score"]) == 2
    assert "did you mean --sort?" in capsys.readouterr().err


def test_the_zoo_script_and_torch(runs: Path) -> None:
    code = (
        "import sys; from rl_training.cli import zoo_main; sys.argv[0] = 'axiomrl-zoo'; code = zoo_main();"
        "print(code, [m for m in ('torch', 'matplotlib', 'gymnasium') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, "--format", "leaderboard", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert "ppo" in done.stdout
