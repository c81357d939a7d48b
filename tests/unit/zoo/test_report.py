"""The HTML report of one run: its numbers, its safety, and what it says about damaged runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zoo_html import Element, parse, value_of
from zoo_runs import ELAPSED, RETURNS, SHARES, STEPS, config, evaluations, metadata, metrics, write_run

from rl_training.cli import main
from rl_training.errors import AxiomError, CheckpointError
from rl_training.zoo.records import read_run
from rl_training.zoo.report import run_page, write_report


def page_of(path: Path) -> Element:
    return parse(run_page(read_run(path)))


def figures(document: Element) -> dict[str, tuple[str, str]]:
    cells = document.by_id("figures").all("div")
    return {c.all("dt")[0].text: (c.all(cls="value")[0].text, c.all(cls="note")[0].text) for c in cells}


def cells(section: Element) -> list[list[str]]:
    return [[cell.text for cell in row.all("td")] for row in section.all("tbody")[0].all("tr")]


def notices(document: Element) -> str:
    return " ".join(notice.text for notice in document.all(cls="notice"))


def percent(element: Element, side: str) -> float:
    found = re.search(rf"(?:^|;){side}:([\d.-]+)%", element.attributes["style"] or "")
    assert found is not None
    return float(found.group(1))


# Numbers


def test_key_figures_are_those_of_the_files(tmp_path: Path) -> None:
    shown = figures(page_of(write_run(tmp_path)))
    assert value_of(shown["Final evaluation"][0]) == 452.5
    assert shown["Final evaluation"][1] == "± 38.9, 2 episodes, step 4,000"
    assert value_of(shown["Best evaluation"][0]) == 480.0
    assert shown["Best evaluation"][1] == "± 16.3, 3 episodes, step 2,000"
    assert shown["Environment steps"] == ("4,000", "of 4,096")
    assert shown["Wall time"][0] == "9.2 s"  # the last evaluation ended after the last log line
    assert value_of(shown["Steps per second"][0]) == 4000 / 8.0
    assert shown["Resume grade"] == ("exact", "every env is where it was")


def test_the_first_of_equal_evaluations_is_the_best(tmp_path: Path) -> None:
    rows = evaluations()
    rows[2]["return_mean"] = 480.0
    assert figures(page_of(write_run(tmp_path, evaluations=rows)))["Best evaluation"][1].endswith(
        "step 2,000"
    )


def test_header_names_the_run(tmp_path: Path) -> None:
    header = page_of(write_run(tmp_path)).all("header")[0]
    assert header.all("h1")[0].text == "PPO on CartPole-v1"
    assert header.all(cls="badge")[0].text == "completed"
    assert "completed" in header.all(cls="badge")[0].classes
    facts = [item.text for item in header.all("li")]
    assert facts == ["seed 7", "preset ppo/cartpole", "started 2026-01-02 03:04:05 UTC", "tags first, second"]


def test_time_is_weighted_by_what_each_line_covers(tmp_path: Path) -> None:
    section = page_of(write_run(tmp_path)).by_id("time")
    covered = [ELAPSED[0], ELAPSED[1] - ELAPSED[0], ELAPSED[2] - ELAPSED[1]]
    shown = {item.all("dt")[0].text: item.all("dd")[0].text for item in section.all("dl")[0].all("div")}
    assert list(shown) == list(SHARES)
    for part, shares in SHARES.items():
        seconds = sum(share * weight for share, weight in zip(shares, covered, strict=True))
        expected = f"{100 * seconds / 8:.1f} %"
        assert shown[part].startswith(expected), part
    bar = {b.classes[0]: float((b.attributes["style"] or "").split(":")[1]) for b in section.all("i")}
    assert bar["part-learn"] == pytest.approx((0.3 * 1 + 0.7 * 3 + 0.25 * 4) / 8)
    assert sum(bar.values()) == pytest.approx(1.0, abs=1e-4)


def test_learning_curve_puts_points_where_the_numbers_are(tmp_path: Path) -> None:
    plot = page_of(write_run(tmp_path)).by_id("curve").all(cls="plot")[0]
    labels = {label.text: percent(label, "top") for label in plot.all("span", "y")}
    assert labels["0"] == 100.0
    top = max(value_of(text) for text in labels)
    assert top == 500.0
    line = next(path for path in plot.all("path") if "line" in path.classes).attributes["d"]
    drawn = [tuple(map(float, pair.split())) for pair in (line or "")[1:].split("L")]
    for (x, y), step, value in zip(drawn, STEPS, RETURNS, strict=True):
        assert x == pytest.approx(1000 * step / 4000, abs=0.1)
        assert y == pytest.approx(1000 * (1 - value / top), abs=0.1)
    dots = [(percent(dot, "left"), percent(dot, "top")) for dot in plot.all("i", "dot")]
    expected = [(100 * e["global_step"] / 4000, 100 * (1 - e["return_mean"] / top)) for e in evaluations()]
    for dot, point in zip(dots, expected, strict=True):
        assert dot == pytest.approx(point, abs=0.01)
    drawn_ranges = re.findall(
        r"M[\d.]+ ([\d.]+)V([\d.]+)", plot.all("path", "whisker")[0].attributes["d"] or ""
    )
    ranges = [(min(e["returns"]), max(e["returns"])) for e in evaluations()]
    for shown, (low, high) in zip(drawn_ranges, ranges, strict=True):
        assert [float(y) for y in shown] == pytest.approx([1000 * (1 - low / top), 1000 * (1 - high / top)])


def test_axis_is_labelled_in_environment_steps(tmp_path: Path) -> None:
    rows = [{**row, "global_step": row["global_step"] * 25} for row in metrics()]
    curve = page_of(write_run(tmp_path, metrics=rows, evaluations=[])).by_id("curve")
    assert curve.all(cls="x-label")[0].text == "environment steps"
    assert [label.text for label in curve.all("span", "x")] == ["0", "20k", "40k", "60k", "80k", "100k"]


def test_small_multiples_show_each_metric_and_its_last_value(tmp_path: Path) -> None:
    section = page_of(write_run(tmp_path)).by_id("training")
    shown = [(str(h.children[0]), h.all("span")[0].text) for h in section.all("h3")]
    assert len(section.all("figure")) == len(shown)
    assert shown == [
        ("Episode length", "252.8"), ("Policy loss", "\u22120.0369"), ("Approximate KL", "1.35e\u22126"),
        ("Steps per second", "3,000"),
    ]  # fmt: skip
    assert section.all("p", "below")[0].text == "Constant: ent coef 0.25."


def test_tables_list_evaluations_checkpoints_and_resumes(tmp_path: Path) -> None:
    document = page_of(write_run(tmp_path))
    rows = cells(document.by_id("evaluations"))
    assert [row[:5] for row in rows] == [
        ["1,000", "110.0 ± 8.2", "100.0", "120.0", "3"],
        ["2,000", "480.0 ± 16.3", "460.0", "500.0", "3"],
        ["4,000", "452.5 ± 38.9", "425.0", "480.0", "2"],
    ]
    assert cells(document.by_id("checkpoints")) == [
        ["2,000", "best", "480.0 ± 16.3", "2.0 KiB", "checkpoints/step_2000"],
        ["4,000", "latest", "452.5 ± 38.9", "512 B", "checkpoints/step_4000"],
    ]
    assert cells(document.by_id("resumes")) == [["2,000", "2026-01-02 03:04:09 UTC", "numeric", "torch"]]


def test_provenance_is_complete(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    document = page_of(path)
    pairs = {d.all("dt")[0].text: d.all("dd")[0].text for d in document.all("div") if len(d.all("dt")) == 1}
    expected = {
        "total_timesteps": "4096", "learning_rate": "0.00025", "target_kl": "null",
        "normalize_advantages": "true", "torch": "2.13.0+cpu", "python": "3.11.7",
        "processor": "A Processor, 2 cores", "memory": "8.0 GiB", "GPU": "none",
        "commit": "0123456789abcdef0123456789abcdef01234567", "changed files": "yes",
        "ended": "2026-01-02 03:04:15 UTC",
    }  # fmt: skip
    assert {key: pairs.get(key) for key in expected} == expected
    assert [pre.text for pre in document.by_id("commands").all("pre")] == [
        f"axiomrl train --config {path}/config.yaml",
        f"axiomrl eval --checkpoint {path} --num-episodes 20",
        "axiomrl train --preset ppo/cartpole --tags 'two words'",
    ]
    assert document.by_id("config").all("details")[0].attributes.get("open", "closed") == "closed"


# Safety

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def test_nothing_from_the_files_becomes_markup(tmp_path: Path) -> None:
    data = metadata() | {
        "status": HOSTILE, "preset": HOSTILE, "tags": [HOSTILE], "command": [HOSTILE], "stop_reason": HOSTILE,
        "created_at_utc": HOSTILE, "versions": {HOSTILE: HOSTILE}, "git": {"commit": HOSTILE},
        "hardware": {"cpu": HOSTILE, "gpus": [HOSTILE]}, "system": {"platform": HOSTILE},
        "best_checkpoint": HOSTILE, "resume_grade": {"grade": HOSTILE, "reason": HOSTILE},
        "resumes": [{"at_utc": HOSTILE, "step": 1, "grade": HOSTILE, "reason": HOSTILE}],
    }  # fmt: skip
    settings_ = config() | {"algo": HOSTILE, "env_id": HOSTILE, "seed": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}}
    rows = [row | {f"train/{HOSTILE}": i, f"time/{HOSTILE}": 0.5} for i, row in enumerate(metrics())]
    path = write_run(tmp_path, metadata=data, config=settings_, metrics=rows, name="<script>alert(3)<")
    (path / "traceback.txt").write_text(f"Traceback {HOSTILE}")
    document = page_of(path)
    scripts = document.all("script")
    assert len(scripts) == 1
    assert "alert" not in scripts[0].text
    assert document.all("img") == []
    assert not [name for element in document.all() for name in element.attributes if name.startswith("on")]
    assert document.all("h1")[0].text == f"{HOSTILE} on {HOSTILE}"
    assert HOSTILE in document.by_id("time").text
    assert HOSTILE in document.by_id("traceback").text
    assert document.all(cls="badge")[0].classes == ["badge"]


def test_page_loads_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    html = run_page(read_run(write_run(tmp_path)))
    assert not re.search(r"https?://|@import|url\(|\ssrc=|\shref=", html)
    policy = next(m.attributes["content"] or "" for m in parse(html).all("meta") if "content" in m.attributes)
    script = re.search(r"<script>(.*?)</script>", html, re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script.group(1).encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_report_command_imports_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    code = (
        "import sys; from rl_training.cli import main; code = main(['report', sys.argv[1]]);"
        "print(code, [m for m in ('torch', 'matplotlib', 'gymnasium') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(path / "report.html"), "0 []"]
    assert "PPO on CartPole-v1" in (path / "report.html").read_text()


# Damaged and unfinished runs


def test_a_healthy_run_has_no_notice(tmp_path: Path) -> None:
    assert notices(page_of(write_run(tmp_path))) == ""


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text(lines[0] + lines[1][:40] + "\n" + lines[2] + '{"global_step": 50')
    document = page_of(path)
    assert "metrics.jsonl: 2 damaged lines left out: line 2, 4" in notices(document)
    assert figures(document)["Environment steps"][0] == "4,000"
    assert len(document.by_id("curve").all("i", "hint")) == 2


def test_a_running_run_says_so_and_offers_to_resume(tmp_path: Path) -> None:
    path = write_run(tmp_path, metadata=metadata() | {"status": "running", "ended_at_utc": None})
    document = page_of(path)
    assert "not finished" in notices(document)
    assert "up to step 4,000" in notices(document)
    assert f"axiomrl resume --checkpoint {path}" in document.by_id("commands").text


@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_an_early_end_is_explained(tmp_path: Path, status: str) -> None:
    data = metadata() | {"status": status, "stop_reason": "evaluation return 480 reached the target 475"}
    shown = notices(page_of(write_run(tmp_path, metadata=data)))
    assert shown == "Stopped at step 4,000 of 4,096. evaluation return 480 reached the target 475"


def test_a_failed_run_shows_its_reason_and_traceback(tmp_path: Path) -> None:
    data = metadata() | {"status": "failed", "stop_reason": "NonFiniteError: NaN in loss"}
    path = write_run(tmp_path, metadata=data)
    (path / "traceback.txt").write_text("Traceback (most recent call last): boom")
    document = page_of(path)
    assert notices(document) == "This run failed. NonFiniteError: NaN in loss"
    assert "boom" in document.by_id("traceback").text


def test_a_run_without_evaluations(tmp_path: Path) -> None:
    document = page_of(write_run(tmp_path, evaluations=[]))
    assert figures(document)["Final evaluation"] == ("\u2013", "none recorded")
    assert "No evaluation has been recorded." in document.by_id("curve").text
    off = config() | {"evaluation": {"every_steps": 0}}
    document = page_of(write_run(tmp_path, evaluations=[], config=off, name="other"))
    assert "Evaluation is turned off in this run's config." in document.by_id("curve").text


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    data = metadata() | {"status": "running", "latest_checkpoint": None, "best_checkpoint": None}
    document = page_of(write_run(tmp_path, metrics=[], evaluations=[], metadata=data))
    assert figures(document)["Environment steps"][0] == "0"
    assert "No episode has been finished" in document.by_id("curve").text
    assert "No metrics have been logged." in document.by_id("training").text
    assert "No times have been logged." in document.by_id("time").text


@pytest.mark.parametrize(
    ("missing", "file"),
    [("metrics", "metrics.jsonl"), ("evaluations", "evaluations.jsonl"), ("config", "config.yaml"),
     ("metadata", "metadata.json")],
)  # fmt: skip
def test_a_missing_file_is_named(tmp_path: Path, missing: str, file: str) -> None:
    document = page_of(write_run(tmp_path, **{missing: None}))
    assert f"{file}: " in notices(document)
    assert document.all("h1")[0].text == "PPO on CartPole-v1"  # known from the directory's name as well


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x00\xff\xfe\x80", b"[" * 100_000, b"a: &x [*x]\n"])
@pytest.mark.parametrize("file", ["metadata.json", "config.yaml", "metrics.jsonl", "evaluations.jsonl"])
def test_rubbish_in_a_file_is_survived(tmp_path: Path, file: str, content: bytes) -> None:
    path = write_run(tmp_path)
    (path / file).write_bytes(content)
    document = page_of(path)
    if content:
        assert f"{file}" in notices(document)
    assert document.all("h1")[0].text == "PPO on CartPole-v1"


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    row = '{"global_step": 9000, "elapsed_s": NaN, "rollout/return_mean": Infinity, "time/env": "much"}\n'
    with open(path / "metrics.jsonl", "a") as file:
        file.write(row + '{"global_step": 9500, "rollout/return_mean": 1' + "0" * 400 + "}\n")
    with open(path / "evaluations.jsonl", "a") as file:
        file.write('{"global_step": 9000, "return_mean": null, "returns": [null]}\n')
    document = page_of(path)
    assert "evaluations.jsonl: 1 without a mean return, left out" in notices(document)
    assert len(document.by_id("curve").all("i", "hint")) == 3
    assert not re.search(r"\b(nan|inf|infinity)\b", document.all("main")[0].text, re.I)


def test_lost_and_incomplete_checkpoints_are_reported(tmp_path: Path) -> None:
    path = write_run(tmp_path, metadata=metadata() | {"best_checkpoint": "checkpoints/step_1000"})
    (path / "checkpoints" / "step_4000" / "manifest.json").unlink()
    document = page_of(path)
    assert "best checkpoint is checkpoints/step_1000, which is not there" in notices(document)
    assert cells(document.by_id("checkpoints"))[1][1] == "latest incomplete"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.fixed_dictionaries({}, optional=dict.fromkeys(metadata(), JSON)),
    row=st.fixed_dictionaries({}, optional=dict.fromkeys(metrics()[0], JSON)),
    step=st.integers(0, 10**9),
    mean=st.floats(),
    returns=JSON,
)
def test_any_json_gives_a_page(
    tmp_path_factory: pytest.TempPathFactory,
    data: dict[str, Any],
    row: dict[str, Any],
    step: int,
    mean: float,
    returns: Any,
) -> None:
    rows = [*metrics(), row, row | {"global_step": step}]
    evaluation = {"global_step": step, "return_mean": mean, "returns": returns}
    path = write_run(tmp_path_factory.mktemp("run"), metadata=data, metrics=rows, evaluations=[evaluation])
    assert page_of(path).all("h1")[0].text == "PPO on CartPole-v1"


# What is not a run, and where the page goes


def test_what_is_not_a_run_is_an_error(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    with pytest.raises(CheckpointError, match=r"no such run.*did you mean .*seed7__20260102T030405Z"):
        write_report(tmp_path / path.name.replace("seed7", "seed8"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metadata.json").write_text("{}")
    with pytest.raises(CheckpointError, match="neither a run directory"):
        write_report(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="neither a run directory"):
        write_report(path / "metrics.jsonl")
    with pytest.raises(CheckpointError, match="a checkpoint; name the run directory"):
        write_report(path / "checkpoints" / "step_2000")
    assert not list(tmp_path.rglob("*.html"))


def test_command_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path)
    target = tmp_path / "new" / "page.html"
    assert main(["report", str(path), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert parse(target.read_text()).all("title")[0].text == "PPO on CartPole-v1"
    assert not (path / "report.html").exists()
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "no such run" in capsys.readouterr().err


def test_only_a_file_is_ever_replaced(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    with pytest.raises(AxiomError, match="not a file"):
        write_report(path, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(AxiomError, match="cannot be written"):
        write_report(path, tmp_path / "file" / "report.html")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert write_report(path) == write_report(path) == path / "report.html"
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert after.keys() - before.keys() == {path / "report.html"}
    assert all(after[file] == content for file, content in before.items())


def test_report_of_a_real_run(tmp_path: Path) -> None:
    from rl_training import train

    result = train(
        algo="ppo", env_id="CartPole-v1", total_timesteps=512, num_envs=2, output_dir=str(tmp_path),
        hyperparams={"num_steps": 64}, evaluation={"every_steps": 256, "episodes": 2},
        logging={"every_steps": 128, "tensorboard": False},
    )  # fmt: skip
    document = page_of(Path(result.run_dir))
    rows = [
        json.loads(line) for line in (Path(result.run_dir) / "evaluations.jsonl").read_text().splitlines()
    ]
    assert notices(document) == ""
    assert figures(document)["Environment steps"] == ("512", "of 512")
    assert value_of(figures(document)["Final evaluation"][0]) == pytest.approx(
        rows[-1]["return_mean"], abs=0.05
    )
    assert [item.text for item in document.by_id("time").all("dt")] == list(SHARES)
    assert len(document.by_id("curve").all("i", "dot")) == len(rows) == 2
    assert len(document.by_id("training").all("figure")) >= 5
