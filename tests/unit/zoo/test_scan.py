"""Finding runs, whatever lies around them, and an index that is never believed when it should not be."""

from __future__ import annotations

import gc
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo_runs import NAME, config, evaluations, metrics, write_run, write_seeds

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import yaml
from rl_training.zoo import evaluations as evaluating
from rl_training.zoo import scan as scanning
from rl_training.zoo.configs import ConfigReader, flat, value_at
from rl_training.zoo.filters import parse_conditions, select
from rl_training.zoo.records import read_run
from rl_training.zoo.scan import Index, scan


def names(found: scanning.Scan) -> list[str]:
    return [run.name for run in found.runs]


# What is found


def test_a_summary_says_what_the_whole_record_says(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    record, (run,) = read_run(path), scan([tmp_path]).runs
    assert (run.algo, run.env_id, run.seed, run.status) == ("ppo", "CartPole-v1", "7", "completed")
    assert run.steps == record.steps == 4000
    assert run.wall_seconds == record.wall_seconds == 9.25
    assert run.steps_per_second == record.steps_per_second == 500.0
    assert list(run.eval_means) == [e.mean for e in record.evaluations]
    assert list(run.eval_steps) == [e.step for e in record.evaluations]
    assert list(run.eval_seconds) == [1.5, 5.0, 9.25]
    assert (run.final, run.best) == (452.5, 480.0)
    assert run.returns == [425.0, 480.0]
    assert run.preset == "ppo/cartpole"
    assert list(run.problems) == []
    assert run.config == {k: v for k, v in config().items() if k not in ("seed", "tags")}


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    deep = write_run(tmp_path / "a" / "b" / "c", name="deep")
    write_run(tmp_path, name="top")
    write_run(deep / "more", name="inside")
    found = scan([tmp_path, tmp_path / "a", deep])
    assert sorted(names(found)) == ["deep", "inside", "top"]
    assert found.foreign == []
    os.symlink(deep, tmp_path / "link")
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    assert sorted(names(scan([tmp_path]))) == ["deep", "inside", "top"]


def test_what_is_no_run_is_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "notes" / "drafts").mkdir(parents=True)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "metadata.json").write_text("{}")
    (tmp_path / ".git" / "x").mkdir(parents=True)
    found = scan([tmp_path])
    assert len(found.runs) == 1
    assert found.foreign == [
        (str(tmp_path / "half"), "has metadata.json but nothing else of a run"),
        (str(tmp_path / "notes"), "no run in it"),
    ]
    with pytest.raises(CheckpointError, match=r"no such run or checkpoint; did you mean .*good"):
        scan([tmp_path / "goood"])


def test_a_directory_that_cannot_be_read_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "locked").mkdir()
    listing = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = scan([tmp_path])
    assert len(found.runs) == 1
    assert found.foreign == [(str(tmp_path / "locked"), "cannot be read: Permission denied")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x00\xff\xfe\x80", b"[" * 100_000, b"a: &x [*x]\n"])
@pytest.mark.parametrize("file", ["metadata.json", "config.yaml", "metrics.jsonl", "evaluations.jsonl"])
def test_rubbish_in_a_file_is_told_and_survived(tmp_path: Path, file: str, content: bytes) -> None:
    (write_run(tmp_path) / file).write_bytes(content)
    (run,) = scan([tmp_path]).runs
    assert (run.algo, run.env_id, run.seed) == ("ppo", "CartPole-v1", "7")  # the name knows it too
    if content:
        assert file in " ".join(run.problems)


def test_missing_and_torn_files_are_told(tmp_path: Path) -> None:
    path = write_run(tmp_path, evaluations=None)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"global_step": 99')
    (run,) = scan([tmp_path]).runs
    assert list(run.problems) == ["evaluations.jsonl: not there", "metrics.jsonl: damaged at its end"]
    assert (run.steps, run.final, run.training_return) == (4000, None, 251.75)
    off = write_run(tmp_path / "off", evaluations=None, config=config() | {"evaluation": {"every_steps": 0}})
    assert [list(r.problems) for r in scan([off]).runs] == [[]]


def test_only_the_end_of_long_metrics_is_read(tmp_path: Path) -> None:
    rows = [{**metrics()[0], "global_step": step, "elapsed_s": step / 100} for step in range(1, 2000)]
    write_run(tmp_path, metrics=rows, evaluations=[])
    (run,) = scan([tmp_path]).runs
    assert (run.steps, run.wall_seconds, run.steps_per_second) == (1999, 19.99, pytest.approx(100.0))


FLAWS = [
    b"", b"\n", b"{", b'{"global_step": 5000', b'"x": 3}', b"[1, 2]", b"7", b"null", b'{"global_step": -1}',
    b'{"global_step": 5000, "return_mean": null}', b'{"global_step": 5000, "return_mean": 3}',
    b'{"global_step": 5000.0, "return_mean": 3.5, "returns": [3.0, 4.0]}',
    b'{"global_step": 500, "return_mean": 3.5, "returns": [3.0, 4.0]}',
    b'{"global_step": 5000, "return_mean": 1e200, "returns": [3.0]}',
    b'{"global_step": 5000, "return_mean": 3.5, "returns": "[1, 2]", "elapsed_s": "[3]"}',
    b'{"global_step": 6000, "return_mean": 3.5, "num_episodes": 20}',
    b'{"global_step": 1, "num_episodes": "x"}',
    b'{"global_step": 5000, "return_mean": true, "returns": [[1.0], 2.0]}', b"\xff\xfe", b'{"a": [1, 2,',
]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(FLAWS)), max_size=3))
def test_evaluations_read_at_once_are_those_read_line_by_line(flaws: list[tuple[int, bytes]]) -> None:
    """Whatever lies between, after or inside of sound rows."""
    import tempfile

    lines = [json.dumps(row).encode() for row in evaluations()]
    for place, line in flaws:
        lines.insert(place, line)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "evaluations.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        answers = []
        for reader in (evaluating._read_sound, lambda _: None):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(evaluating, "_read_sound", reader)
                problems: list[str] = []
                found = evaluating.read_trained(folder, frozenset(["evaluations.jsonl"]), {}, problems)
                answers.append((found, problems))
    assert answers[0] == answers[1]


def test_sound_evaluations_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path)
    monkeypatch.setattr(evaluating, "read_rows", lambda *_: pytest.fail("read line by line"))
    (run,) = scan([tmp_path]).runs
    assert (run.eval_means, run.returns) == ([110.0, 480.0, 452.5], [425.0, 480.0])
    (path / "evaluations.jsonl").write_text(json.dumps(evaluations()[0]))  # one row, without a line break
    (run,) = scan([tmp_path]).runs
    assert (run.eval_means, run.eval_seconds, run.returns) == ([110.0], [1.5], [100.0, 110.0, 120.0])


def test_the_garbage_collector_is_off_only_while_runs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    states = []
    monkeypatch.setattr(scanning, "summarize", lambda *_: states.append(gc.isenabled()))
    scan([tmp_path])
    assert (states, gc.isenabled()) == ([False], True)
    with pytest.raises(CheckpointError):
        scan([tmp_path / "nowhere"])
    assert gc.isenabled()


# Configs


def test_seeds_share_one_config(tmp_path: Path) -> None:
    write_seeds(tmp_path, [1.0, 2.0, 3.0])
    first, *others = scan([tmp_path]).runs
    assert all(run.config is first.config for run in others)
    assert value_at(first.config, "hyperparams.learning_rate") == 0.00025
    assert value_at(first.config, "hyperparams.nothing") is None
    assert dict(flat(first.config))["evaluation.episodes"] == 3


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["algo", "seed", "tags", "env", "output_dir", "x"]), PLAIN))
def test_sections_read_one_by_one_are_what_the_whole_file_is(data: dict[str, object]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(yaml.dump(data))
        file.flush()
        shared, own = ConfigReader().read(file.name)
        assert {**shared, **own} == yaml.load_file(file.name).data


# The index


@pytest.fixture
def indexing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index even a few runs, however new."""
    monkeypatch.setattr(scanning, "WORTH_INDEXING", 1)
    monkeypatch.setattr(scanning, "SETTLED_NS", 0)


@pytest.mark.usefixtures("indexing")
def test_the_second_scan_reads_the_index_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_seeds(tmp_path, [1.0, 2.0, 3.0], tags=["one"])
    first = scan([tmp_path])
    assert first.indexed == 0
    monkeypatch.setattr(scanning, "summarize", lambda *_: pytest.fail("a run was read again"))
    second = scan([tmp_path])
    assert second.indexed == 3
    assert second.runs == first.runs
    assert second.runs[0].config is second.runs[2].config
    assert not [file for file in tmp_path.rglob("*") if "index" in file.name]  # nothing among the runs


@pytest.mark.usefixtures("indexing")
@pytest.mark.parametrize("file", ["config.yaml", "metadata.json", "metrics.jsonl", "evaluations.jsonl"])
def test_a_changed_file_is_read_again(tmp_path: Path, file: str) -> None:
    one, two = write_seeds(tmp_path, [1.0, 2.0])
    scan([tmp_path])
    text = (one / file).read_text()
    (one / file).write_text(
        text.replace("1.0", "5.0").replace("completed", "crippled!").replace("2000", "3000")
    )
    status = (one / file).stat()
    os.utime(one / file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    again = scan([tmp_path])
    assert again.indexed == 1
    assert again.runs == scan([tmp_path], use_index=False).runs
    shutil.rmtree(two)
    assert names(scan([tmp_path])) == [one.name]


@pytest.mark.usefixtures("indexing")
@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff", b'{"format": 1, "version": "0", "root": ""}']
)
def test_a_damaged_index_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    write_seeds(tmp_path, [1.0, 2.0])
    expected = scan([tmp_path]).runs
    Index(str(tmp_path)).path.write_bytes(content)
    again = scan([tmp_path])
    assert (again.indexed, again.runs) == (0, expected)
    assert scan([tmp_path]).indexed == 2


@pytest.mark.usefixtures("indexing")
def test_entries_that_make_no_sense_are_read_again(tmp_path: Path) -> None:
    write_seeds(tmp_path, [1.0, 2.0, 3.0])
    expected = scan([tmp_path]).runs
    path = Index(str(tmp_path)).path
    data = json.loads(path.read_text())
    first, second, third = data["runs"]
    data["runs"][first][1] = 99
    data["runs"][second][2] = []
    data["runs"][third] = None
    path.write_text(json.dumps(data))
    again = scan([tmp_path])
    assert (again.indexed, again.runs) == (0, expected)


@pytest.mark.usefixtures("indexing")
def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_seeds(tmp_path / "runs", [1.0, 2.0])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [len(scan([tmp_path / "runs"]).runs) for _ in range(2)] == [2, 2]


@pytest.mark.usefixtures("indexing")
def test_many_scans_at_once_leave_a_whole_index(tmp_path: Path) -> None:
    write_seeds(tmp_path, [float(i) for i in range(20)])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: scan([tmp_path]).runs, range(16)))
    assert all(runs == found[0] for runs in found)
    assert len(Index.load(str(tmp_path)).entries) == 20


def test_a_run_still_being_written_is_not_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "WORTH_INDEXING", 1)
    old, new = write_seeds(tmp_path, [1.0, 2.0])
    for file in old.iterdir():
        os.utime(file, (1e9, 1e9))
    scan([tmp_path])
    assert scan([tmp_path]).indexed == 1
    assert scan([tmp_path], use_index=False).indexed == 0
    assert new.exists()


def test_few_runs_leave_no_index(tmp_path: Path, cache: Path) -> None:
    write_run(tmp_path, name=NAME)
    scan([tmp_path])
    assert list(cache.rglob("*")) == []


# Filters


def test_filters(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [1.0, 2.0], hyperparams={"gamma": 0.99})
    write_seeds(
        tmp_path / "b", [3.0], env="Pendulum-v1", status="failed", hyperparams={"gamma": 0.9, "tau": 3}
    )
    runs = scan([tmp_path]).runs

    def finals(*conditions: str) -> list[float | None]:
        return [run.final for run in select(runs, parse_conditions(conditions))]

    assert finals() == [1.0, 2.0, 3.0]
    assert finals("env=CartPole*") == [1.0, 2.0]
    assert finals("env!=CartPole*") == [3.0]
    assert finals("status=failed") == [3.0]
    assert finals("hyperparams.gamma>=0.99") == [1.0, 2.0]
    assert finals("hyperparams.gamma = 0.9") == [3.0]
    assert finals("seed=1", "final>1") == [2.0]
    assert finals("tags=second") == [1.0, 2.0, 3.0]
    assert finals("hyperparams.tau<5") == [3.0]  # what a run does not have meets no comparison
    assert finals("hyperparams.tau!=5") == [1.0, 2.0, 3.0]
    for wrong in ("env", "steps>many", "=3", "steps>nan"):
        with pytest.raises(ConfigError, match="--filter"):
            parse_conditions([wrong])


def test_seeds_are_compared_as_numbers(tmp_path: Path) -> None:
    write_seeds(tmp_path, [float(seed) for seed in range(12)])
    runs = scan([tmp_path]).runs

    def seeds(*conditions: str) -> list[int]:
        return sorted(int(run.seed) for run in select(runs, parse_conditions(conditions)))

    assert seeds("seed>=2") == list(range(2, 12))
    assert seeds("seed<3") == [0, 1, 2]
    assert seeds("seed=1") == [1]
    assert seeds("seed=1*") == [1, 10, 11]
    assert seeds("env>=2") == []


def test_a_condition_on_a_key_that_no_run_has_is_a_mistake(tmp_path: Path) -> None:
    write_seeds(tmp_path, [1.0, 2.0], hyperparams={"gamma": 0.99, "target_kl": None})
    runs = scan([tmp_path]).runs
    for text, advice in (
        ("hyperparam.gamma=0.99", r"hyperparam\.gamma: no run has it; did you mean hyperparams\.gamma\?"),
        ("gamma>=0.9", r"gamma: no run has it; did you mean hyperparams\.gamma\?"),
        ("qqq=1", "qqq: no run has it; expected algo, env, .*, speed or a key of the config"),
    ):
        with pytest.raises(ConfigError, match=f"--filter {advice}"):
            select(runs, parse_conditions([text]))
    assert len(select(runs, parse_conditions(["hyperparams.target_kl=null"]))) == 2
    assert select(runs, parse_conditions(["created=1999*", "preset=none", "path=/"])) == []
