"""Metrics on disk: strict JSON, whole lines, no gap and no duplicate after a resume."""

from __future__ import annotations

import csv
import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.loggers import RunLogger, cut_after, export_csv, read_rows, summarize
from rl_training.types import Evaluation

EVALUATION = Evaluation(returns=(1.0, 3.0), lengths=(10, 20), seeds=(4, 5))


def logger(path: Path, **more: Any) -> RunLogger:
    options = {"tensorboard": False, "wandb": False, "csv_export": False, "config": {}, **more}
    return RunLogger(path, **options)


def scalars(path: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_lines_are_strict_json_and_there_at_once(tmp_path: Path) -> None:
    log = logger(tmp_path)
    log.log({"global_step": 1, "train/loss": float("nan"), "train/ratio": float("-inf"), "x": 0.5})
    text = (tmp_path / "metrics.jsonl").read_text()  # not closed yet: a killed run loses nothing
    assert json.loads(text, parse_constant=pytest.fail) == {
        "global_step": 1, "train/loss": None, "train/ratio": None, "x": 0.5,
    }  # fmt: skip
    log.log_evaluation(1, 2.0, EVALUATION)
    row = json.loads((tmp_path / "evaluations.jsonl").read_text())
    assert row == {
        "global_step": 1, "elapsed_s": 2.0, "return_mean": 2.0, "return_std": 1.0, "length_mean": 15.0,
        "num_episodes": 2, "returns": [1.0, 3.0], "lengths": [10, 20], "seeds": [4, 5],
    }  # fmt: skip
    log.close()
    assert summarize(EVALUATION)["returns"] == [1.0, 3.0]


def test_success_is_reported_where_the_env_tells(tmp_path: Path) -> None:
    log = logger(tmp_path, tensorboard=True)
    log.log_evaluation(20, 2.0, Evaluation((1.0, 3.0), (10, 20), (4, 5), successes=(True, False)))
    log.close()
    row = json.loads((tmp_path / "evaluations.jsonl").read_text())
    assert (row["success_rate"], row["successes"]) == (0.5, [True, False])
    assert scalars(tmp_path, "evaluation/success_rate") == [(20, 0.5)]


def test_a_resume_cuts_what_came_after_and_the_torn_last_line(tmp_path: Path) -> None:
    log = logger(tmp_path)
    for step in (10, 20, 30):
        log.log({"global_step": step, "x": 0.1 * step})
        log.log_evaluation(step, 0.0, EVALUATION)
    log.close()
    whole = (tmp_path / "metrics.jsonl").read_text().splitlines()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"global_step": 15, "x"')  # torn by a crash
    again = logger(tmp_path, resume_step=20)
    again.log({"global_step": 30, "x": 3.0})
    again.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == [*whole[:2], '{"global_step": 30, "x": 3.0}']
    assert [row["global_step"] for row in read_rows(tmp_path / "evaluations.jsonl")] == [10, 20]


def test_reading_stops_at_damage_and_survives_garbage(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_bytes(b'{"global_step": 1}\n{"global_step": 2}\n\x00\xff\xfe{"glo')
    assert [row["global_step"] for row in read_rows(file)] == [1, 2]
    cut_after(file, 1)
    assert file.read_text() == '{"global_step": 1}\n'
    assert read_rows(tmp_path / "nothing") == []


def test_csv_has_a_column_a_metric(tmp_path: Path) -> None:
    log = logger(tmp_path, csv_export=True)
    log.log({"global_step": 1, "a": 2.0})
    log.log({"global_step": 2, "b": float("nan")})
    log.close()
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"global_step": "1", "a": "2.0", "b": ""}, {"global_step": "2", "a": "", "b": ""}]
    export_csv(tmp_path / "nothing.jsonl", tmp_path / "nothing.csv")
    assert (tmp_path / "nothing.csv").read_text().strip() == ""


def test_tensorboard_can_be_read_back_and_a_resume_purges_what_is_repeated(tmp_path: Path) -> None:
    log = logger(tmp_path, tensorboard=True)
    for step in (10, 20, 30):
        log.log({"global_step": step, "train/loss": 0.5 * step})
    log.log_evaluation(20, 0.0, EVALUATION)
    log.close()
    assert scalars(tmp_path, "train/loss") == [(10, 5.0), (20, 10.0), (30, 15.0)]
    assert scalars(tmp_path, "evaluation/return_mean") == [(20, 2.0)]
    again = logger(tmp_path, tensorboard=True, resume_step=20)
    again.log({"global_step": 30, "train/loss": 1.0})
    again.close()
    assert scalars(tmp_path, "train/loss") == [(10, 5.0), (20, 10.0), (30, 1.0)]


def test_tensorboard_keeps_every_row_of_a_process_that_is_killed(tmp_path: Path) -> None:
    log = logger(tmp_path, tensorboard=True)
    log.log({"global_step": 10, "train/loss": 5.0})
    log.log_evaluation(10, 0.0, EVALUATION)
    assert scalars(tmp_path, "train/loss") == [(10, 5.0)]  # before anyone has closed it
    assert scalars(tmp_path, "evaluation/return_mean") == [(10, 2.0)]
    log.close()


def test_wandb_is_an_extra_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"axiomrl\[wandb\]"):
        logger(tmp_path, wandb=True)


def wandb_records(path: Path) -> Iterator[Any]:
    """What Weights & Biases would send, from the file it keeps: blocks of messages in one or more parts."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, message = path.read_bytes(), 7, b""
    while len(data) - at >= 7:
        if (left := 32768 - at % 32768) < 7:  # the rest of a block is too short for a header
            at += left
            continue
        _, size, part = struct.unpack("<IHB", data[at : at + 7])
        if len(data) - at < 7 + size:
            return  # it is being written
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if part in (1, 4):  # whole, or the last part
            yield Record.FromString(message)
            message = b""


def wandb_rows(run_dir: Path, count: int) -> list[dict[str, Any]]:
    """So many rows, which another process writes, not always before `finish` returns."""
    deadline = time.monotonic() + 60.0
    while len(rows := _wandb_rows(run_dir)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return rows


def _wandb_rows(run_dir: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        for record in wandb_records(path):
            if record.HasField("history"):
                row = {"".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                rows.append({key: json.loads(row[key]) for key in row if not key.startswith("_")})
    return rows


def test_wandb_has_every_row_also_those_that_a_resume_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = logger(tmp_path, wandb=True, config={"algo": "ppo", "hyperparams": {"gamma": 0.9}})
    log.log({"global_step": 10, "train/loss": 5.0, "list": [1, 2]})
    log.log_evaluation(10, 0.0, EVALUATION)
    log.log({"global_step": 30, "train/loss": 15.0})
    log.close()
    evaluated = {"evaluation/return_mean": 2.0, "evaluation/length_mean": 15.0}
    rows = [{"global_step": 10, "train/loss": 5.0}, {"global_step": 10, **evaluated}]
    assert wandb_rows(tmp_path, 3) == [*rows, {"global_step": 30, "train/loss": 15.0}]
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = list(wandb_records(file))
    (run,) = [record.run for record in records if record.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.run_id, config["algo"], config["hyperparams"]) == (tmp_path.name, "ppo", {"gamma": 0.9})
    axes = {r.metric.glob_name: r.metric.step_metric for r in records if r.HasField("metric")}
    assert axes["*"] == "global_step"

    again = logger(tmp_path, wandb=True, resume_step=10)
    again.log({"global_step": 20, "train/loss": 10.0})  # before the last step that is known there
    again.close()
    assert {"global_step": 20, "train/loss": 10.0} in wandb_rows(tmp_path, 4)


def test_wandb_that_cannot_start_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra `wandb`")

    def refuse(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r"^logging\.wandb: No API key configured; WANDB_MODE=offline"):
        logger(tmp_path, wandb=True)
