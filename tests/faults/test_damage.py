"""Random truncations and bit flips over all files of a run: a clear error, or the newest valid checkpoint.

Nothing is ever loaded that differs from what was saved.
"""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.continuation import open_continuation, plan
from rl_training.errors import AxiomError, CheckpointError
from rl_training.experiment.checkpoint import Checkpoint, read_checkpoint
from rl_training.experiment.layers import Layer

NOTHING = Layer("test", {})


@pytest.fixture
def run_dir(quick_dir: Path) -> Path:
    """A small run with three checkpoints, the first of them the best."""
    return rl_training.train(
        algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=96, output_dir=str(quick_dir),
        num_steps=16, num_minibatches=2, update_epochs=1, network={"hidden": [4]},
        env={"normalize_obs": True}, evaluation={"every_steps": 32, "episodes": 1},
        checkpoint={"every_steps": 32}, logging={"every_steps": 32, "tensorboard": False},
    ).run_dir  # fmt: skip


def damaged(good: bytes, rng: random.Random) -> bytes:
    """A truncation, or a few flipped bits."""
    if rng.random() < 0.3 or not good:
        return good[: rng.randrange(len(good))] if good else b"x"
    bad = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    return bytes(bad)


def same(first: Any, second: Any) -> bool:
    """Equal to the last bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and list(first) == list(second)
            and all(same(first[k], second[k]) for k in first)
        )
    if isinstance(first, list):
        return isinstance(second, list) and len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and bool(np.array_equal(first, second))
    return bool(first == second)


def same_checkpoint(first: Checkpoint, second: Checkpoint) -> bool:
    parts = [(c.step, c.config, c.spec, c.written_by, c.outcome) for c in (first, second)]
    return parts[0] == parts[1] and same(first.state, second.state)


def test_no_damage_is_ever_loaded(run_dir: Path, full: bool, report: Any) -> None:
    originals = {path.name: read_checkpoint(path) for path in (run_dir / "checkpoints").iterdir()}
    assert sorted(originals) == ["step_32", "step_64", "step_96"]
    files = sorted(p for p in run_dir.rglob("*") if p.is_file() and p.name not in (".lock",))
    rng = random.Random(0)
    trials = 10_000 if full else 400
    refused = fallbacks = untouched = unnamed = by_path = 0
    for _ in range(trials):
        file = rng.choice(files)
        good = file.read_bytes()
        bad = damaged(good, rng)
        if bad == good:
            untouched += 1
            continue
        file.write_bytes(bad)
        inside = file.parent.name if file.parent.name in originals else None
        if inside:
            by_path += 1
            with pytest.raises(AxiomError) as caught:
                read_checkpoint(file.parent)  # asked for by its own path: never anything else instead
            assert file.name in str(caught.value)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                checkpoint, layers = open_continuation(run_dir)
                plan(checkpoint, layers, NOTHING, allow_drift=False)
            except AxiomError as error:
                refused += 1
                unnamed += file.name not in str(error)
            else:
                assert same_checkpoint(checkpoint, originals[checkpoint.path.name]), file
                if checkpoint.path.name != "step_96":
                    fallbacks += 1
                    assert told, f"{file}: an older checkpoint was taken without a word"
        file.write_bytes(good)
    assert min(refused, fallbacks) > trials // 100
    assert unnamed == 0  # every error says which file it is about
    assert same_checkpoint(read_checkpoint(run_dir / "checkpoints" / "step_96"), originals["step_96"])
    found = {"checkpoints refused by path": by_path, "runs refused": refused, "fallbacks": fallbacks}
    report("truncations and bit flips", "PPO run", trials=trials - untouched, **found)


def test_a_run_without_metadata_goes_on_from_its_newest_valid_checkpoint(run_dir: Path) -> None:
    for torn in (None, b"", b'{"status": "runn'):
        again = Path(shutil.copytree(run_dir, run_dir.with_name(f"copy{torn!r}".replace("/", "_"))))
        (again / "metadata.json").unlink()
        if torn is not None:
            (again / "metadata.json").write_bytes(torn)
        (again / "checkpoints" / "step_96" / "state.json").write_bytes(b"{}")
        with pytest.warns(UserWarning, match=r"metadata\.json: .*; .*step_96.*damaged.*Using .*step_64"):
            result = rl_training.resume(again, total_timesteps=128, evaluation={"every_steps": 0})
        assert result.metrics["global_step"] == 128
        state = read_checkpoint(again / "checkpoints" / "step_64").state
        best = state["callbacks"]["EvaluationCallback"]["best_step"]
        assert result.best_checkpoint_path == again / "checkpoints" / f"step_{best}"
        assert result.best_checkpoint_path.is_dir()
        assert (again / "metadata.json.damaged").exists() == (torn is not None)


def test_overrides_that_do_not_go_with_a_config_are_not_its_fault(run_dir: Path) -> None:
    with pytest.raises(AxiomError, match=r"config\.yaml:\d+: hyperparams.num_minibatches: 2 .* = 15$"):
        rl_training.resume(run_dir, total_timesteps=128, num_envs=1, num_steps=15)


def test_a_damaged_config_is_never_guessed(run_dir: Path) -> None:
    text = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(text.replace("seed: 0", "seed: 2"))
    with pytest.raises(AxiomError, match=r"seed: 0 → 2 \(.*config\.yaml:\d+\)"):
        rl_training.resume(run_dir, total_timesteps=128)
    (run_dir / "config.yaml").write_text(text.replace("seed: 0", "sead: 0"))
    with pytest.raises(AxiomError, match=r"did you mean 'seed'.*\n.*remove it to go on"):
        rl_training.resume(run_dir, total_timesteps=128)
    (run_dir / "config.yaml").unlink()
    assert rl_training.resume(run_dir, total_timesteps=128).metrics["global_step"] == 128


def test_a_run_in_which_nothing_is_whole_says_what_is_wrong_with_each(run_dir: Path) -> None:
    for path in (run_dir / "checkpoints").iterdir():
        (path / "spec.json").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        rl_training.resume(run_dir, total_timesteps=128)
    assert all(f"step_{step}/spec.json: damaged" in str(caught.value) for step in (32, 64, 96))
