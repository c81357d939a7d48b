"""What ships: a wheel with everything the package needs, and layers that are really enforced."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rl_training.experiment.presets import preset_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release would be."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("axiomrl-*.whl")
    return path


def test_the_wheel_holds_the_presets_the_report_assets_and_the_typed_marker(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "rl_training/py.typed" in names
    assert {f"rl_training/zoo/presets/{name}.yaml" for name in preset_names()} <= names
    assert {"rl_training/zoo/assets/report.css", "rl_training/zoo/assets/report.js"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]


def test_the_command_line_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rl_training.cli", "config", "--preset", "ppo/cartpole"]
    environment = {"PYTHONPATH": str(wheel), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "env_id: CartPole-v1" in result.stdout


def test_the_layers_contract_breaks_when_an_algorithm_imports_the_runtime(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "rl_training", tmp_path / "rl_training")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def lint() -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
        environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )

    assert lint().returncode == 0
    module = tmp_path / "rl_training" / "algorithms" / "ppo.py"
    module.write_text(module.read_text() + "\nfrom rl_training.runtime import trainer as trainer\n")
    broken = lint()
    assert broken.returncode == 1
    assert "rl_training.algorithms is not allowed to import rl_training.runtime" in broken.stdout
