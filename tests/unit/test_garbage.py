"""Importing torch without the garbage collector, which has to be as before when that is done."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rl_training.garbage import collector_off, importing_torch

COMMAND = """
import gc, sys
from rl_training.cli import main
code = main({arguments})
print(code, "torch" in sys.modules, gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr)
"""
LIBRARY = """
import gc, sys, weakref
class Mine: pass
mine = Mine()
mine.me, gone = mine, weakref.ref(mine)
import rl_training
rl_training.PPO
assert "torch" in sys.modules and gc.isenabled() and gc.get_freeze_count() == 0
del mine
gc.collect()
assert gone() is None
"""


def last_line(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""


@pytest.mark.parametrize("arguments", ["", "sys.argv[1:]"])
def test_only_in_a_command_of_its_own_all_that_torch_made_may_stay(arguments: str) -> None:
    said = last_line(COMMAND.format(arguments=arguments), "list", "algorithms")
    assert said == f"0 True True {not arguments}"


def test_in_somebody_elses_process_what_there_was_before_stays_collectable() -> None:
    assert last_line(LIBRARY) == ""


def test_an_import_that_fails_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def fails() -> None:
        with importing_torch():
            assert not gc.isenabled()
            raise ImportError

    with pytest.raises(ImportError):
        fails()
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collector_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
