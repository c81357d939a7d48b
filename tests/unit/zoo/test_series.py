"""What is drawn together: colours, who has a line, and what is said of those who have none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from zoo_html import Element, parse
from zoo_runs import write_seeds

from rl_training.cli import main
from rl_training.errors import AxiomError
from rl_training.zoo.figures import TONES, plot_groups
from rl_training.zoo.groups import group_runs
from rl_training.zoo.overview import overview
from rl_training.zoo.overview_page import overview_page
from rl_training.zoo.scan import scan
from rl_training.zoo.series import Panel, panels
from rl_training.zoo.sources import runs_of


def panels_of(folder: Path) -> dict[str, Panel]:
    return {panel.title: panel for panel in panels(group_runs(scan([folder]).runs))}


def page_of(folder: Path, confidence: float = 0.95) -> Element:
    found = scan([folder])
    return parse(overview_page(overview(found, found.runs, confidence=confidence)))


def colors(panel: Panel) -> dict[str, int | None]:
    return {series.label: series.color for series in panel.series}


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """Fifteen algorithms on one env, the last the best."""
    for index in range(15):
        write_seeds(tmp_path / "runs" / str(index), [100.0 + index, 110.0 + index], algo=f"algo{index:02}")
    return tmp_path / "runs"


def test_a_colour_is_kept_from_panel_to_panel_and_never_shared_within_one(tmp_path: Path) -> None:
    """Twelve names on three envs: eight colours must do, and every panel has at most eight names."""
    on = {"A-v0": range(5), "B-v0": range(4, 12), "C-v0": (9, 11, 5, 7, 3, 0)}
    for env, algos in on.items():
        for place, algo in enumerate(algos):
            write_seeds(tmp_path / env / str(algo), [float(place)], algo=f"algo{algo:02}", env=env)
    found = panels_of(tmp_path)
    for panel in found.values():
        used = list(colors(panel).values())
        assert None not in used
        assert len(set(used)) == len(used)
    first, second, third = (colors(found[env]) for env in on)
    assert second["algo04"] == first["algo04"]
    assert [third[name] for name in ("algo00", "algo03")] == [first[name] for name in ("algo00", "algo03")]
    assert len({*first.values(), *second.values()}) == 8  # no colour is used twice while one is unused


def test_beyond_eight_there_are_no_lines_but_nobody_is_lost(crowded: Path) -> None:
    (panel,) = panels_of(crowded).values()
    assert len(panel.series) == 15
    assert [series.label for series in panel.lines] == [f"algo{index:02}" for index in range(14, 6, -1)]
    assert panel.left_out == "7 more not drawn"
    page = page_of(crowded)
    assert "7 more not drawn." in page.by_id("curves").text
    strips = page.by_id("scores").all(cls="strip")
    assert [len(strip.all("i", "run")) for strip in strips] == [2] * 15
    kinds = [strip.classes[1:] for strip in strips]
    assert kinds[8:] == [[]] * 7  # grey
    assert len({tuple(kind) for kind in kinds[:8]}) == 8


def test_the_picture_says_what_is_not_in_it(crowded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = crowded / "curves.svg"
    assert main(["plot", str(crowded), "-o", str(target)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{target}\n"
    assert said.err == "CartPole-v1: 7 more not drawn; --filter chooses which are\n"
    picture = target.read_text()
    assert "<!-- 7 more not drawn -->" in picture  # matplotlib's comment beside the letters it draws
    lines = re.findall(r"stroke: (#\w{6}); stroke-width: 1.8", picture)
    assert {line: lines.count(line) for line in lines} == dict.fromkeys(TONES, 2)  # curve and legend
    few = [
        main(["plot", str(crowded), "-o", str(target), "--filter", "algo=algo0*", "--filter", "final<108"])
    ]
    assert few == [0]
    assert capsys.readouterr().err == ""
    assert "not drawn" not in target.read_text()


def test_only_what_has_a_curve_is_drawn(tmp_path: Path) -> None:
    """Runs that were judged in the end, and never while they were trained, have a score and no curve."""
    runs = [{"seed": seed, "return_mean": 5.0} for seed in (1, 2)]
    (tmp_path / "m.json").write_text(json.dumps({"algo": "a", "env_id": "E", "runs": runs}))
    judged = [
        replace(run, eval_steps=[], eval_means=[], eval_seconds=[]) for run in runs_of(tmp_path / "m.json")
    ]
    (panel,) = panels(group_runs(judged))
    assert [len(panel.series), len(panel.lines)] == [1, 0]
    with pytest.raises(AxiomError, match="nothing to draw"):
        plot_groups(group_runs(judged), tmp_path / "x.png")


def test_curves_have_the_confidence_asked_for(tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs", [100.0, 150.0, 220.0, 300.0, 410.0])
    (group,) = group_runs(scan([tmp_path / "runs"]).runs)
    wide, narrow = group.curve(0.95), group.curve(0.5)
    assert (wide.low < narrow.low).all()
    assert (narrow.high < wide.high).all()
    assert (wide.value == narrow.value).all()
    pictures = []
    for confidence in ("0.95", "0.5"):
        target = tmp_path / f"{confidence}.svg"
        assert main(["plot", str(tmp_path / "runs"), "-o", str(target), "--confidence", confidence]) == 0
        pictures.append(target.read_text())
    assert pictures[0] != pictures[1]
    pages = {confidence: page_of(tmp_path / "runs", confidence).by_id("curves") for confidence in (0.95, 0.5)}
    assert "50 % bootstrap interval" in pages[0.5].text
    bands = [path.attributes["d"] for page in pages.values() for path in page.all("path", "band")]
    assert len(bands) == len(set(bands)) == 2


def test_configs_of_all_groups_are_compared(tmp_path: Path) -> None:
    for index in range(12):
        own = {"gamma": 0.9 if index == 11 else 0.99}
        write_seeds(tmp_path / str(index), [1.0], algo=f"algo{index:02}", hyperparams=own)
    section = page_of(tmp_path).by_id("differences")
    assert [th.text for th in section.all("th")][1:] == [
        f"algo{index:02} · CartPole-v1" for index in range(12)
    ]
    (row,) = section.all("tbody")[0].all("tr")
    assert [cell.text for cell in row.all("td")] == ["hyperparams.gamma", *["0.99"] * 11, "0.9"]
    assert "1 key" in section.text
    for index in range(12, 62):
        write_seeds(tmp_path / str(index), [1.0], algo=f"algo{index:02}")
    assert "the first 60 of 62 groups" in page_of(tmp_path).by_id("differences").all("summary")[0].text
