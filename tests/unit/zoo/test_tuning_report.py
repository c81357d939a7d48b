"""Reports of studies: their numbers against an independent computation, in every notation."""

from __future__ import annotations

import csv
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_studies import SOURCE, save
from zoo_html import Element, parse, value_of

from rl_training.cli import main
from rl_training.errors import AxiomError
from rl_training.zoo.tuning import drawings
from rl_training.zoo.tuning.importance import epsilon_squared, importances, number_bins, ranks_of
from rl_training.zoo.tuning.page import study_page
from rl_training.zoo.tuning.record import TrialRecord, read_record
from rl_training.zoo.tuning.report import as_json, best_so_far
from rl_training.zoo.tuning.summary import verdict_sentence

RATE, HIDDEN = "hyperparams.learning_rate", "network.hidden"
RATES = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
SCORES = [10.0, 40.0, 90.0, 200.0, 190.0, 80.0, 5.0, None]
STATES = ["completed"] * 6 + ["pruned", "failed"]
VALIDATION = {
    "trial": 3, "seeds": [7, 8, 9], "verdict": "better", "p_worse": 1.0, "p_better": 0.05, "mean_a": 100.0,
    "mean_b": 190.0, "difference": 90.0, "low": 60.0, "high": 120.0, "probability_of_improvement": 1.0,
    "probability_low": 0.9, "probability_high": 1.0,
    "base": {"scores": [90.0, 100.0, 110.0], "iqm": 100.0, "iqm_low": 90.0, "iqm_high": 110.0},
    "best": {"scores": [180.0, 190.0, 200.0], "iqm": 190.0, "iqm_low": 180.0, "iqm_high": 200.0},
}  # fmt: skip


def study(**more: Any) -> dict[str, Any]:
    """The record of eight trials."""
    trials = [
        {
            "number": number, "state": state, "value": score, "reported": [1.0, score or 0.0],
            "seconds": 60.0,
            "params": {RATE: rate, HIDDEN: [64, 64] if number % 2 else None},
            "scores": {"1": score} if state == "completed" else {},
            "error": "seed 1: <b>diverged</b>" if state == "failed" else None,
        }
        for number, (rate, score, state) in enumerate(zip(RATES, SCORES, STATES, strict=True))
    ]  # fmt: skip
    space = {
        RATE: {"kind": "float", "low": 1e-5, "high": 1e-1, "log": True, "step": None},
        HIDDEN: {"kind": "choice", "choices": [[64, 64], None]},
    }
    base = {"preset": "a2c/x", "algo": "a2c", "env_id": "X-v0", "values": {RATE: 7e-4, HIDDEN: None}}
    data = {"schema_version": 1, "name": "mine", "base": base, "space": space, "asked": 8}
    data |= {"steps": 5000, "seeds": [1]}
    return {**data, "trials": trials, "validation": None, **more}


def lefts_of(figure: Element) -> list[float]:
    """Where the dots of a chart stand, in percent of its width."""
    styles = [dot.attributes["style"] or "" for dot in figure.all("i", "dot")]
    return [float(style.split("left:")[1].split("%")[0]) for style in styles]


def test_the_share_of_a_parameter_is_that_of_the_ranks_between_its_bins() -> None:
    bins, ranks = np.array([0, 0, 1, 1, 2, 2]), np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    # by hand: means 0.5, 2.5, 4.5 around 2.5: 16 of 17.5 lie between, and chance takes 5/3 of the rest
    assert float(epsilon_squared(bins, ranks)) == pytest.approx(1 - (1 - 16 / 17.5) * 5 / 3)
    everywhere = [epsilon_squared(bins, np.array(order)) for order in itertools.permutations(ranks)]
    assert float(np.mean(everywhere)) == pytest.approx(0.0, abs=1e-9)  # chance alone gives nothing
    assert float(epsilon_squared(np.zeros(6, int), ranks)) == 0.0
    assert number_bins([5.0, 1.0, 2.0, 9.0, 7.0, 3.0, 8.0, 4.0]).tolist() == [2, 0, 0, 3, 2, 1, 3, 1]


def test_pruned_trials_rank_below_completed_ones_and_ties_share_their_rank() -> None:
    def trial(state: str, value: float, reported: int) -> TrialRecord:
        return TrialRecord(0, state, {}, value, [0.0] * reported)

    trials = [trial("completed", 5.0, 4), trial("pruned", 99.0, 2), trial("pruned", 1.0, 3)]
    trials += [trial("completed", 5.0, 4), trial("completed", 7.0, 4)]
    assert ranks_of(trials).tolist() == [2.5, 0.0, 1.0, 2.5, 4.0]


def test_importances_find_what_matters(tmp_path: Path) -> None:
    trials = []
    for number in range(40):
        rate, hidden = (number + 0.5) / 40, number % 2
        score = -((rate - 0.5) ** 2)  # neither rising nor falling: a correlation would see nothing
        params = {RATE: rate, HIDDEN: [None, [8]][hidden]}
        trials.append({"number": number, "state": "completed", "value": score, "params": params})
    found = {i.key: i for i in importances(read_record(save(tmp_path, study(trials=trials))))}
    assert found[RATE].share > 0.6
    assert found[RATE].p < 0.001
    assert found[HIDDEN].share < 0.1
    assert found[HIDDEN].p > 0.05
    assert importances(read_record(save(tmp_path, study(trials=trials[:5])))) == []


def test_every_notation_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "study", study(validation=VALIDATION))
    record = read_record(folder)
    expected = [10.0, 40.0, 90.0, 200.0, 200.0, 200.0, 200.0, 200.0]
    assert best_so_far(record.trials) == expected
    assert main(["tune-report", str(folder), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["best_so_far"]) for row in rows] == expected
    assert [row["value"] for row in rows] == [*map(str, SCORES[:-1]), ""]
    assert [float(row[RATE]) for row in rows] == RATES
    assert [row[HIDDEN] for row in rows[:2]] == ["", "[64, 64]"]
    assert main(["tune-report", str(folder), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["best"] == {"trial": 3, "value": 200.0, "params": {RATE: 3e-4, HIDDEN: [64, 64]}}
    assert [point["best_so_far"] for point in data["history"]] == expected
    assert [(p["param"], p["value"]) for p in data["slices"][RATE]] == list(zip(RATES, SCORES, strict=True))[
        :7
    ]
    assert [i["key"] for i in data["importances"]] == [RATE, HIDDEN]
    assert main(["tune-report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "8 of 8 trials: 6 completed, 1 pruned, 1 failed" in text
    assert "best: trial 3, 200.0 (mean return of one seed after 5,000 steps)" in text
    assert "hyperparams.learning_rate    0.0003  0.0007  1e-05 to 0.1, log" in text
    assert "base               3  100.0" in text
    assert "failed: trial 7: seed 1: <b>diverged</b>" in text
    assert text.endswith(data["sentence"] + "\n")


def test_the_verdict_is_honest(tmp_path: Path) -> None:
    def sentence(**changes: Any) -> str:
        return verdict_sentence(read_record(save(tmp_path, study(validation={**VALIDATION, **changes}))))

    assert sentence() == (
        "On held-out seeds the best trial beats the base beyond noise (p = 0.050): +90.00 [+60.00, +120.0] "
        "in mean return; a run of it is better than one of the base with probability 100 % [90, 100]."
    )
    assert "no difference from the base beyond noise" in sentence(verdict="no difference")
    worse = sentence(verdict="worse", p_worse=0.01)
    assert "worse than the base beyond noise; keep the base (p = 0.010)" in worse
    assert "Too few held-out seeds" in sentence(verdict="cannot tell")
    nothing = study(trials=[])
    assert verdict_sentence(read_record(save(tmp_path, nothing))) == "No trial has been completed."
    assert "has not been compared" in verdict_sentence(read_record(save(tmp_path, study())))


def test_the_page_shows_the_numbers_of_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "study", study(validation=VALIDATION))
    assert main(["tune-report", str(folder), "--format", "html"]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    text = (folder / "report.html").read_text()
    page = parse(text)
    figures = {div.all("dt")[0].text: div.all("dd")[0].text for div in page.by_id("figures").all("div")}
    assert [value_of(figures[name]) for name in ("Best score", "Held-out, base", "Held-out, best")] == [
        200,
        100,
        190,
    ]
    assert figures["P(better)"] == "100 %"
    notes = {div.all("dt")[0].text: div.all("dd")[1].text for div in page.by_id("figures").all("div")}
    assert notes["Trials"] == "6 completed, 1 pruned, 1 failed; 8 min 00 s in all"
    assert "min" not in notes["P(better)"]
    ticks = [tick.text for tick in page.by_id("on-the-way").all("span", "x")]
    assert ticks == ["1", "2"]  # whole evaluations
    assert "A score is the mean return of one seed after 5,000 steps." in page.text
    assert [h2.text for h2 in page.all("h2") if "Command" in h2.text] == ["Commands"]
    dots = page.by_id("history").all("i", "dot")
    assert [("pruned" in dot.classes, "top" in dot.classes) for dot in dots] == [
        (state == "pruned", number == 3) for number, state in enumerate(STATES[:7])
    ]
    panels = page.by_id("slices").all("figure")
    assert len(panels) == 2
    log = [100 * (0.04 + (np.log10(rate) + 5) / 4) / 1.08 for rate in RATES[:7]]  # four decades and a margin
    assert lefts_of(panels[0]) == pytest.approx(log, abs=0.01)
    rows = [[cell.text for cell in row.all("td")] for row in page.by_id("trials").all("tbody")[0].all("tr")]
    assert [row[0] for row in rows] == [str(n) for n in range(8)]
    assert rows[3][1] == "completed best"
    assert "&lt;b&gt;diverged" in text
    assert "On held-out seeds the best trial beats the base" in page.text
    for unfinished in ([], study()["trials"][:1]):  # nothing yet, or hardly anything, is no reason to break
        save(folder, study(trials=unfinished))
        assert main(["tune-report", str(folder), "-o", str(tmp_path / "early.html")]) == 0
        assert "This study is not finished" in parse((tmp_path / "early.html").read_text()).text


@pytest.mark.parametrize(("low", "high"), [(0, 8), (-8, 0)])
@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_bound_of_zero_is_a_bound_like_any_other(tmp_path: Path, kind: str, low: int, high: int) -> None:
    space = {
        RATE: {"kind": kind, "low": low, "high": high, "log": False, "step": None},
        HIDDEN: {"kind": kind, "low": low, "high": high, "log": False, "step": None},
    }
    values = [low, 0, low + 2, high]
    trials = [
        {"number": n, "state": "completed", "value": n, "params": {RATE: value, HIDDEN: value}}
        for n, value in enumerate(values)
    ]
    record = read_record(save(tmp_path, study(space=space, trials=trials)))
    panel = parse(drawings.slice_of(record, RATE))
    wanted = [100 * (0.04 + (value - low) / 8) / 1.08 for value in values]  # eight units and a margin
    assert lefts_of(panel) == pytest.approx(wanted, abs=0.01)
    labels = [tick.text for tick in panel.all("span", "x")]
    assert (labels[0], labels[-1]) == (f"{low}", f"{high}")
    line = parse(drawings.parallel(record)).all("path", "line")[-1].attributes["d"] or ""  # of the last trial
    heights = [float(corner.split()[1]) for corner in line.removeprefix("M").split("L")]
    assert heights[:2] == pytest.approx([1000 * (1 - 1.04 / 1.08)] * 2, abs=0.1)
    assert [drawings.Axis(space[RATE]).words(end) for end in (0, 1)] == [f"{low}", f"{high}"]


def changed(path: str, value: Any = None) -> dict[str, Any]:
    """A record with something else at a dotted place (`/` stands between keys), or without it."""
    data: Any = json.loads(json.dumps(study(validation=VALIDATION)))
    *parts, last = path.split("/")
    at = data
    for part in parts:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return dict(data)


DAMAGED = {
    "schema_version 2 is newer than 1; use the axiomrl that wrote it": changed("schema_version", 2),
    "schema_version: missing": changed("schema_version"),
    "validation.p_worse: missing": changed("validation/p_worse"),
    f"space.{RATE}.low: missing": changed(f"space/{RATE}/low"),
    f"space.{RATE}.high: must be more than low": changed(f"space/{RATE}/high", 1e-5),
    f"space.{HIDDEN}.choices: empty": changed(f"space/{HIDDEN}/choices", []),
    "base: expected a valid dictionary\n": changed("base", [1]),
    f"space.{HIDDEN}: no `kind`": changed(f"space/{HIDDEN}/kind"),
    "seeds: expected a valid list": changed("seeds", 3),
    "validation.verdict: expected 'better', 'worse', 'no difference' or 'cannot tell'": changed(
        "validation/verdict", "hm"
    ),
    "validation.best.scores: empty": changed("validation/best/scores", []),
    f"trials.2.params.{RATE}: not a number": changed(f"trials/2/params/{RATE}", "x"),
    "trials.4.number: expected a valid integer": changed("trials/4/number", "x"),
    "trials.0.state: expected 'running'": changed("trials/0/state", "odd"),
    "trials: missing": changed("trials"),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_record_that_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    folder = save(tmp_path, DAMAGED[message])
    assert main(["tune-report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"error: {folder / 'study.json'}: not a study that this version can read: {message}" in error


def test_a_trial_without_its_parameters_is_left_out_where_they_are_needed(tmp_path: Path) -> None:
    bare = read_record(save(tmp_path / "bare", changed("trials/3/params", {})))
    without = study(validation=VALIDATION)
    del without["trials"][3]
    fewer = read_record(save(tmp_path / "fewer", without))
    assert importances(bare) == importances(fewer)
    assert len(parse(drawings.parallel(bare)).all("path", "line")) == 5
    assert bare.best is not None
    assert bare.best.number == 3
    assert main(["tune-report", str(tmp_path / "bare"), "-o", str(tmp_path / "page.html")]) == 0
    data = json.loads(as_json(bare))
    assert [point["trial"] for point in data["slices"][RATE]] == [0, 1, 2, 4, 5, 6]


def test_commands_can_be_typed_as_they_are_shown(tmp_path: Path) -> None:
    started = ["axiomrl", "tune", "--config", "s.yaml", "--import", "mine", "--output-dir", "my runs"]
    folder = save(tmp_path / "study", study(command=started, imports=["mine", "more"]))
    (folder / "best.yaml").write_text("")
    page = parse(study_page(read_record(folder), command="axiomrl tune-report study"))
    assert [box.text for box in page.by_id("commands").all("pre")] == [
        f"axiomrl train --config {folder / 'best.yaml'} --import mine --import more",
        "axiomrl tune --config s.yaml --import mine --output-dir 'my runs'",
        "axiomrl tune-report study",
    ]


def test_what_is_no_study_is_an_error_and_reports_need_neither_torch_nor_optuna(tmp_path: Path) -> None:
    for text in ("[1", "{}", '{"trials": 3}'):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(AxiomError, match=r"study\.json"):
            read_record(tmp_path)
    with pytest.raises(AxiomError, match="not a study"):
        read_record(tmp_path / "nowhere")
    folder = save(tmp_path / "study", study(validation=VALIDATION))
    code = (
        "import sys; from rl_training.cli import main; "
        f"assert not main(['tune-report', {str(folder)!r}]) and not main(['tune-report', {str(folder)!r}, "
        "'--format', 'html']); assert not {'torch', 'optuna'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": SOURCE}, capture_output=True)
