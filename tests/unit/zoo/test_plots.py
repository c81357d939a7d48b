"""Learning curves as picture files, and the numbers behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from zoo_runs import evaluations, metrics, write_run, write_seeds

from rl_training.cli import main
from rl_training.errors import AxiomError
from rl_training.zoo.plots import learning_curve, mean_curve, pooled_evaluations
from rl_training.zoo.records import read_run


def test_mean_curve_interpolates_over_the_common_stretch() -> None:
    first = [(0.0, 0.0), (10.0, 10.0), (20.0, 10.0)]
    second = [(5.0, 5.0), (15.0, 25.0)]
    assert mean_curve([first, second, []], num_points=3) == [(5.0, 5.0), (10.0, 12.5), (15.0, 17.5)]
    assert mean_curve([[(0.0, 1.0)], [(5.0, 1.0)]]) == []
    assert mean_curve([]) == []


def test_evaluations_of_several_runs_are_pooled_by_step(tmp_path: Path) -> None:
    short = write_run(tmp_path, name="short", evaluations=evaluations()[:1])
    runs = [read_run(write_run(tmp_path)), read_run(short)]
    assert pooled_evaluations(runs) == {
        1000: [100.0, 110.0, 120.0, 100.0, 110.0, 120.0],
        2000: [460.0, 480.0, 500.0],
        4000: [425.0, 480.0],
    }


def test_pictures_are_written_and_reproducible(tmp_path: Path) -> None:
    one, two = write_run(tmp_path), write_run(tmp_path, name="ppo__CartPole-v1__seed8__x")
    for ending, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        first = learning_curve([one, two], tmp_path / "out" / f"a{ending}")
        second = learning_curve([one, two], tmp_path / "out" / f"b{ending}")
        assert first.read_bytes().startswith(magic)
        assert first.read_bytes() == second.read_bytes()
        assert learning_curve(one, tmp_path / f"one{ending}").read_bytes() != first.read_bytes()


def test_what_cannot_be_drawn_is_explained(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with pytest.raises(AxiomError, match=r"must end in one of \.png, \.svg, \.pdf"):
        learning_curve(run, tmp_path / "curve.bmp")
    rows = [{k: v for k, v in row.items() if not k.startswith("rollout")} for row in metrics()]
    bare = write_run(tmp_path, name="bare", metrics=rows, evaluations=[])
    with pytest.raises(AxiomError, match="nothing to draw"):
        learning_curve(bare, tmp_path / "curve.png")
    with pytest.raises(AxiomError, match="nothing to draw"):
        learning_curve([], tmp_path / "curve.png")


def test_drawing_imports_no_torch_and_no_window_system(tmp_path: Path) -> None:
    code = (
        "import sys; from rl_training.zoo.plots import learning_curve; learning_curve(*sys.argv[1:]);"
        "print([m for m in ('torch', 'matplotlib.pyplot', 'tkinter') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(write_run(tmp_path)), str(tmp_path / "curve.png")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_command_draws_groups_with_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "runs" / "a", [100.0, 200.0, 300.0])
    write_seeds(tmp_path / "runs" / "b", [50.0, 60.0], algo="dqn")
    write_seeds(tmp_path / "runs" / "c", [-100.0], env="Pendulum-v1")
    target = tmp_path / "out" / "curves.svg"
    assert (
        main(["plot", str(tmp_path / "runs"), "-o", str(target), "--title", "Two", "--threshold", "90"]) == 0
    )
    assert capsys.readouterr().out == f"{target}\n"
    first = target.read_text()
    assert first.count('id="FillBetweenPolyCollection_') + first.count('id="PolyCollection_') == 2
    assert (
        main(["plot", str(tmp_path / "runs"), "-o", str(target), "--title", "Two", "--threshold", "90"]) == 0
    )
    assert target.read_text() == first
    assert main(["plot", str(tmp_path / "runs"), "-o", str(tmp_path / "curves.bmp")]) == 2
    write_seeds(tmp_path / "none", [])
    write_run(tmp_path / "none", evaluations=[])
    assert main(["plot", str(tmp_path / "none"), "-o", str(target)]) == 2
    assert "nothing to draw" in capsys.readouterr().err


def test_the_command_imports_no_torch(tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs", [100.0, 200.0])
    code = (
        "import sys; from rl_training.cli import main; main(['plot', *sys.argv[1:]]);"
        "print([m for m in ('torch', 'matplotlib.pyplot', 'tkinter', 'gymnasium') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "runs"), "-o", str(tmp_path / "curve.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
