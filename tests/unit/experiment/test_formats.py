"""Released checkpoint formats stay readable, and an old format is brought to the present one step by step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from rl_training.errors import CheckpointError
from rl_training.experiment import migrations
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.manifest import describe, read_manifest, rendered
from rl_training.experiment.migrations import Raw

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"


@pytest.mark.parametrize("version", range(1, migrations.FORMAT_VERSION + 1))
def test_every_released_format_can_be_used_for_ever(version: int, tmp_path: Path) -> None:
    folder = FIXTURES / f"format-{version}"
    expected = json.loads((folder / "expected.json").read_text())
    path = folder / "ppo-cartpole"
    assert read_manifest(path)["format_version"] == version
    assert read_contents(path).fingerprint() == expected["fingerprint"]
    agent = rl_training.load(path)
    actions, _ = agent.predict(np.array(expected["observations"], np.float32))
    assert actions.tolist() == expected["actions"]
    assert set(expected["actions"]) == {0, 1}
    assert agent.evaluate(num_episodes=5)["returns"] == expected["returns"]
    resumed = rl_training.resume(path, total_timesteps=1088, output_dir=str(tmp_path))
    assert resumed.metrics["global_step"] == 1088
    assert resumed.algorithm.policy.normalizer.count == 1088


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A checkpoint of a version that never was: its policy is called `weights`, its seed stands elsewhere."""
    path = Path(shutil.copytree(FIXTURES / "format-1" / "ppo-cartpole", tmp_path / "old"))
    state = json.loads((path / "state.json").read_bytes())
    state["weights"] = state.pop("policy")
    (path / "state.json").write_bytes(json.dumps(state).encode())
    (path / "policy.safetensors").rename(path / "weights.safetensors")
    text = (path / "config.yaml").read_text().replace("seed: 0\n", "random_seed: 0\n")
    (path / "config.yaml").write_text(text)
    manifest: dict[str, Any] = read_manifest(path)
    names = [name.replace("policy.", "weights.") for name in manifest["files"]]
    manifest["files"] = {name: describe((path / name).read_bytes()) for name in names}
    (path / "manifest.json").write_bytes(rendered({**manifest, "format_version": 0}))
    return path


def test_an_old_format_is_migrated(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="format version 0, this release reads 1"):
        read_checkpoint(old)

    def from_0_to_1(raw: Raw) -> Raw:
        raw.state["policy"] = raw.state.pop("weights")
        raw.tensors["policy"] = raw.tensors.pop("weights")
        raw.config["seed"] = raw.config.pop("random_seed")
        return raw

    monkeypatch.setitem(migrations.MIGRATIONS, 0, from_0_to_1)
    new = read_checkpoint(FIXTURES / "format-1" / "ppo-cartpole")
    read = read_checkpoint(old)
    assert read.config == new.config
    assert sorted(read.state) == sorted(new.state)
    assert all((read.state["policy"][name] == value).all() for name, value in new.state["policy"].items())
    returns = [rl_training.evaluate(p, num_episodes=3)["returns"] for p in (old, new.path)]
    assert returns[0] == returns[1]


def test_a_chain_of_migrations_runs_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "FORMAT_VERSION", 4)
    for version in (1, 2, 3):

        def step(raw: Raw, version: int = version) -> Raw:
            return Raw({**raw.state, str(version): len(raw.state)}, raw.tensors, raw.config, raw.spec)

        monkeypatch.setitem(migrations.MIGRATIONS, version, step)
    assert migrations.migrate(Raw({}, {}, {}, None), 2).state == {"2": 0, "3": 1}
    assert [migrations.can_migrate(v) for v in (-1, 0, 1, 3, 4, 5, "1", None)] == [
        False, False, True, True, True, False, False, False,
    ]  # fmt: skip
