"""What `report`, `leaderboard` and `plot` accept, and what they say of the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from zoo_html import parse
from zoo_runs import config, metadata, write_run, write_seeds

from rl_training.cli import main
from rl_training.zoo.groups import config_differences, group_runs, sort_groups
from rl_training.zoo.overview import overview
from rl_training.zoo.overview_page import overview_page
from rl_training.zoo.scan import scan


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_seeds(tmp_path / "runs", [100.0, 200.0, 300.0])
    return tmp_path / "runs"


def failure(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command says that ends with an error of the user's."""
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "much"])
@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_threshold_is_a_number(
    runs: Path, capsys: pytest.CaptureFixture[str], command: str, value: str
) -> None:
    error = failure(capsys, command, runs, f"--threshold={value}")
    assert f"argument --threshold: expected a number, got {value!r}" in error


def test_a_gap_needs_a_scale(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = failure(capsys, "leaderboard", runs, "--statistic", "gap", "--normalize", "none")
    assert "--statistic gap --normalize none: the optimality gap is the distance to 1" in error
    assert "choose --normalize reference, human or board" in error
    data = json.loads(printed(capsys, "leaderboard", runs, "--statistic", "gap", "--format", "json"))
    assert data["normalize"] == "reference"
    assert 0 < data["entries"][0]["score"] < 1


def test_who_competes_must_be_known(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--by algoo: no run has it; did you mean algo?" in failure(
        capsys, "leaderboard", runs, "--by", "algoo"
    )


def test_an_ending_that_stands_for_no_format_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("report", "leaderboard"):
        error = failure(capsys, command, runs, "-o", tmp_path / "x.png")
        assert "x.png: the name must end in one of .txt, .json, .csv, .md, .html, .htm, or --format" in error
    one = next(runs.iterdir())
    assert "x.xyz: the name must end in" in failure(capsys, "report", one, "-o", tmp_path / "x.xyz")
    assert ".md, or --format" in failure(capsys, "compare", runs, runs, "-o", tmp_path / "x.html")
    assert not list(tmp_path.glob("x.*"))
    printed(capsys, "report", runs, "-o", tmp_path / "x.log", "--format", "csv")
    assert (tmp_path / "x.log").read_text().startswith("algo,env,preset,runs")
    printed(capsys, "report", runs, "-o", tmp_path / "plain")
    assert (tmp_path / "plain").read_text().startswith("algo ")


def test_options_that_a_single_page_has_no_use_for_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = next(runs.iterdir())
    for option, value in (("--statistic", "mean"), ("--score", "best"), ("--confidence", "0.9")):
        error = failure(capsys, "report", one, option, value)
        assert f"{option}: the page of a single run has no statistic over runs; leave it out" in error
        assert not (one / "report.html").exists()
        assert "CartPole-v1" in printed(capsys, "report", one, option, value, "--format", "text")
    assert printed(capsys, "report", one, "--no-index") == f"{one}/report.html\n"


def test_a_manifest_stands_for_its_runs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries: list[dict[str, object]] = [{"run_dir": f"runs/{path.name}"} for path in runs.iterdir()]
    entries += [
        {"seed": 9, "return_mean": 400.0, "algo": "ppo", "env_id": "CartPole-v1", "global_step": 2000}
    ]
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"runs": entries}))
    for paths in ([manifest], [runs, manifest], [manifest, runs]):  # each run once
        (group,) = json.loads(printed(capsys, "report", *paths, "--format", "json"))["groups"]
        assert (group["runs"], group["iqm"], group["best"]) == (4, 250.0, 400.0)
    entries[-1]["seed"] = 2  # the same run once as a directory, once as a result
    manifest.write_text(json.dumps({"runs": entries}))
    assert "ppo · CartPole-v1: 4 runs, 3 seeds" in printed(capsys, "report", manifest)
    board = json.loads(printed(capsys, "leaderboard", manifest, "--format", "json"))
    assert [(entry["name"], entry["runs"]) for entry in board["entries"]] == [("ppo", 4)]
    printed(capsys, "plot", manifest, "-o", tmp_path / "curves.svg")
    assert "ppo (4)" in (tmp_path / "curves.svg").read_text()
    assert printed(capsys, "report", manifest, "--format", "html") == f"{tmp_path}/report.html\n"
    other = next(runs.iterdir()) / "metadata.json"
    assert "a JSON object with a list `runs` is expected" in failure(capsys, "report", other)


def test_a_seed_that_was_run_again_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in "abcde":
        write_seeds(tmp_path / "ppo" / folder, [100.0])
    write_seeds(tmp_path / "dqn", [100.0, 200.0], algo="dqn")
    write_seeds(tmp_path / "dqn" / "again", [150.0], algo="dqn", logging={"every_steps": 5})
    write_seeds(tmp_path / "sac", [100.0], algo="sac", hyperparams={"tau": 1})
    write_seeds(tmp_path / "sac" / "other", [100.0], algo="sac", hyperparams={"tau": 2})
    lines = printed(capsys, "report", tmp_path).splitlines()
    at = lines.index("the same seed counted more than once, so that intervals are too narrow:")
    assert lines[at + 1 :] == ["  dqn · CartPole-v1: 3 runs, 2 seeds", "  ppo · CartPole-v1: 5 runs, 1 seed"]
    groups = json.loads(printed(capsys, "report", tmp_path, "--format", "json"))["groups"]
    assert [(group["algo"], group["seeds"]) for group in groups] == [("dqn", 2), ("ppo", 1), ("sac", 2)]
    found = scan([tmp_path])
    notices = [n.text for n in parse(overview_page(overview(found, found.runs))).all(cls="notice")]
    assert any("ppo · CartPole-v1: 5 runs, 1 seed" in notice for notice in notices)
    assert "counted more than once" not in printed(capsys, "report", tmp_path, "--group-by", "algo,seed")


def test_runs_that_do_not_say_their_seed_are_not_one(tmp_path: Path) -> None:
    own = config() | {"seed": "unknown"}
    for name in ("one", "two"):
        write_run(tmp_path, name=name, config=own, metadata=metadata() | {"preset": None})
    (group,) = group_runs(scan([tmp_path]).runs)
    assert group.seeds == len(group.scores) == 2


def test_groups_by_number_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    rates = [0.0001, 1e-05, 0.01, 0.001, None]
    for index, rate in enumerate(rates):
        write_seeds(tmp_path / str(index), [1.0], hyperparams={"learning_rate": rate})
    runs = scan([tmp_path]).runs
    groups = group_runs(runs, ["hyperparams.learning_rate"])
    ordered = ["1e-05", "0.0001", "0.001", "0.01", "\u2013"]
    assert [group.values[0] for group in groups] == ordered
    assert [group.values[0] for group in sort_groups(groups, "-name")] == ordered[::-1]
    (group,) = group_runs(runs)
    assert group.mixed["hyperparams.learning_rate"] == [*ordered[:-1], "null"]
    ((_, (cell,)),) = config_differences([group])
    assert cell == " | ".join([*ordered[:-1], "null"])
    write_seeds(tmp_path / "seeds", [float(seed) for seed in range(11)], algo="dqn")
    seeds = [group.values[0] for group in group_runs(scan([tmp_path / "seeds"]).runs, ["seed"])]
    assert seeds == [str(seed) for seed in range(11)]
