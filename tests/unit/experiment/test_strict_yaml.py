"""Strict YAML: plain data only, and hostile files end in a readable error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment import yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "s:2: a: written twice"),
        ("a: {b: 1, b: 2}\n", "s:1: a.b: written twice"),
        (BOMB, "refusing to expand"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: !!python/object/apply:os.system ['touch canary']\n", "s:1: .*os.system is not plain data"),
        ("a: !!python/name:os.system ''\n", "is not plain data"),
        ("a: !!python/tuple [1]\n", "is not plain data"),
        ("a: !!set {x, y}\n", "is not plain data"),
        ("a: !!bool maybe\n", "is not plain data"),
        ("a: !!int ''\n", "is not plain data"),
        ("a: !!timestamp soon\n", "is not plain data"),
        ("a: !own 3\n", "is not plain data"),
        ("? [1, 2]\n: 3\n", "keys must be plain words"),
        ("a: [1\n", "s:2: not valid YAML"),
        ("a: 1\n--- \nb: 2\n", "not valid YAML"),
        ("- 1\n", "expected a mapping of keys to values, got list"),
        ("a: \x07\n", "not valid YAML: special characters are not allowed"),
    ],
)
def test_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        yaml.load_text(text, "s")
    assert not (tmp_path / "canary").exists()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing, binary, large = (tmp_path / name for name in ("missing", "binary", "large"))
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_bytes(b"#" * 1_000_001)
    for path, reason in ((missing, "No such file"), (binary, "not UTF-8"), (large, "larger than")):
        with pytest.raises(ConfigError, match=reason) as caught:
            yaml.load_file(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="Is a directory"):
        yaml.load_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e6", 1e6),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("[64, 64]", [64, 64]),
        ("{a: 1}", {"a": 1}),
        ("'3e-4'", "3e-4"),
        ("cuda:0", "cuda:0"),
        ("2020-01-01", "2020-01-01"),
        ("", ""),
        ("[", "["),
    ],
)
def test_a_value_on_the_command_line_reads_as_in_a_file(text: str, value: Any) -> None:
    parsed = yaml.parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_lines_of_keys_are_remembered() -> None:
    document = yaml.load_text("a: 1\n\nb:\n  c: 2\n", "s")
    assert document.lines == {("a",): 1, ("b",): 3, ("b", "c"): 4}
    assert yaml.load_text("", "s").data == {}
