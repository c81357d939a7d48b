"""Fingerprints: equal for equal states, different for any other, and blind to the clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training
from rl_training import TrainConfig
from rl_training.cli import main
from rl_training.experiment.checkpoint import write_checkpoint
from rl_training.experiment.fingerprint import Contents, compare, read_contents
from rl_training.types import Spec

SPEC = Spec(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))
CONFIG = TrainConfig(algo="ppo", env_id="CartPole-v1")


def state() -> dict[str, Any]:
    return {
        "policy": {"w": torch.arange(6.0).reshape(2, 3), "normalizer.mean": torch.zeros(2)},
        "networks": {"target": {"w": torch.ones(2)}},
        "optimizers": {"adam": {"0": {"step": torch.tensor(3.0)}}},
        "generators": {"actions": torch.Generator().manual_seed(1).get_state()},
        "collector": {"rewards": {"moments": [0.0, 1.0]}, "statistics": {"count": 3}},
        "envs": {"seeds": np.arange(3), "digests": [1, 2]},
        "callbacks": {"TimeBudget": {"used": 1.5}, "Mine": {"best": None, "list": []}, "Silent": {}},
        "trainer": {"global_step": 8},
        "clock": {"elapsed_s": 3.25},
    }


def contents(path: Path, change: Any = lambda s: None, step: int = 8) -> Contents:
    changed = state()
    change(changed)
    return read_contents(write_checkpoint(path, changed, config=CONFIG, spec=SPEC, step=step))


def test_components_and_what_belongs_to_them(tmp_path: Path) -> None:
    read = contents(tmp_path / "a")
    assert list(read.fingerprint()) == [
        "weights", "normalizer", "optimizers", "generators", "collector", "envs", "callbacks", "trainer",
    ]  # fmt: skip
    assert set(read.components["normalizer"]) == {
        ("observations", "mean"), ("rewards", "moments", "0"), ("rewards", "moments", "1"),
    }  # fmt: skip
    assert set(read.components["weights"]) == {("policy", "w"), ("networks", "target", "w")}
    assert set(read.components["callbacks"]) == {("Mine", "best"), ("Mine", "list")}
    assert all(len(digest) == 64 for digest in read.fingerprint().values())


def test_the_hash_is_what_the_documentation_says(tmp_path: Path) -> None:
    import hashlib

    sha = hashlib.sha256()
    sha.update(b'[["networks","target","w"],"tensor","F32",[2],8]\n' + np.ones(2, "<f4").tobytes())
    sha.update(b'[["policy","w"],"tensor","F32",[2,3],24]\n' + np.arange(6, dtype="<f4").tobytes())
    assert contents(tmp_path / "a").fingerprint()["weights"] == sha.hexdigest()
    assert (
        contents(tmp_path / "b").fingerprint()["trainer"]
        == hashlib.sha256(b'[["global_step"],"value","",[],1]\n8').hexdigest()
    )


def put(component: str, *path: str, value: Any) -> Any:
    def change(tree: dict[str, Any]) -> None:
        node = tree[component]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "component"),
    [
        (put("policy", "w", value=torch.arange(6.0).reshape(3, 2)), "weights"),
        (put("policy", "w", value=torch.arange(6).reshape(2, 3)), "weights"),
        (
            put("policy", "w", value=torch.nextafter(torch.arange(6.0), torch.ones(1)).reshape(2, 3)),
            "weights",
        ),
        (put("policy", "v", value=torch.zeros(0)), "weights"),
        (put("networks", "target", "w", value=-torch.ones(2)), "weights"),
        (put("policy", "normalizer.mean", value=torch.tensor([0.0, -0.0])), "normalizer"),
        (put("collector", "rewards", "moments", value=[0.0, 1.0000000000000002]), "normalizer"),
        (put("optimizers", "adam", "0", "step", value=torch.tensor(4.0)), "optimizers"),
        (put("generators", "actions", value=torch.Generator().manual_seed(2).get_state()), "generators"),
        (put("envs", "seeds", value=torch.arange(3)), "envs"),
        (put("envs", "digests", value=[1, 3]), "envs"),
        (put("callbacks", "Mine", "best", value=0), "callbacks"),
        (put("callbacks", "Mine", "best", value=False), "callbacks"),
        (put("collector", "statistics", "count", value=3.0), "collector"),
        (put("trainer", "global_step", value=9), "trainer"),
    ],
)
def test_any_change_is_seen_where_it_is(change: Any, component: str, tmp_path: Path) -> None:
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b", change)
    changed = {k for k, v in first.fingerprint().items() if second.fingerprint()[k] != v}
    assert changed == {component}
    assert {d.component for d in compare(first, second)} == {component}


@pytest.mark.parametrize(
    "change",
    [
        put("clock", "elapsed_s", value=99.0),
        put("callbacks", "TimeBudget", "used", value=99.0),
        put("callbacks", "Progress", value={}),
        lambda tree: tree.update({key: tree.pop(key) for key in sorted(tree)}),
    ],
)
def test_clocks_order_and_callbacks_without_state_make_no_difference(change: Any, tmp_path: Path) -> None:
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b", change)
    assert first.fingerprint() == second.fingerprint()
    assert compare(first, second) == []


def test_differences_are_measured(tmp_path: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["policy"]["w"][1, 2] += 0.25
        tree["policy"]["half"] = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
        tree["envs"]["digests"] = [1, 7]
        tree["callbacks"]["Mine"]["best"] = "x"

    found = {
        (d.component, d.entry): (d.detail, d.largest)
        for d in compare(contents(tmp_path / "a"), contents(tmp_path / "b", change, step=9))
    }
    assert found == {
        ("step", ""): ("8 → 9", 1),
        ("weights", "policy/w"): ("F32[2,3], 1 of 6 numbers differ", 0.25),
        ("weights", "policy/half"): ("only in the second", None),
        ("envs", "digests/1"): ("2 → 7", 5.0),
        ("callbacks", "Mine/best"): ('null → "x"', None),
    }

    def halves(value: float) -> Any:
        return put("policy", "half", value=torch.tensor([1.0, value], dtype=torch.bfloat16))

    (only,) = compare(contents(tmp_path / "c", halves(2.0)), contents(tmp_path / "d", halves(2.5)))
    assert only.largest == 0.5


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b", put("trainer", "global_step", value=9))
    assert main(["inspect", str(a.path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["fingerprint"] == a.fingerprint()
    assert (printed["format_version"], printed["step"]) == (1, 8)
    assert printed["sizes"]["state.json"] == (a.path / "state.json").stat().st_size
    assert main(["inspect", str(a.path)]) == 0
    assert a.fingerprint()["weights"] in capsys.readouterr().out
    assert main(["inspect", str(a.path), str(a.path)]) == 0
    assert capsys.readouterr().out.startswith("equal: weights, normalizer, ")
    assert main(["inspect", str(a.path), str(b.path)]) == 1
    assert capsys.readouterr().out.startswith(
        "trainer: 1 differ\n  global_step  8 → 9  by at most 1\nequal: "
    )
    assert main(["inspect", str(a.path), str(b.path), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["equal"] is False
    assert [d["component"] for d in printed["differences"]] == ["trainer"]
    assert main(["inspect", str(tmp_path / "c")]) == 2


def test_a_run_means_its_latest_and_the_same_seed_the_same_fingerprint(tmp_path: Path) -> None:
    runs = [
        rl_training.train(
            algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=64,
            output_dir=str(tmp_path / str(i)), seed=3, evaluation={"every_steps": 0},
            num_steps=16, num_minibatches=2, network={"hidden": [8]}, stopping={"max_seconds": 1000 + i},
            checkpoint={"every_steps": 32}, logging={"tensorboard": False},
        ).run_dir
        for i in range(2)
    ]  # fmt: skip
    assert main(["inspect", *map(str, runs)]) == 0
    code = "import sys; from rl_training.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    source = str(Path(rl_training.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(runs[0]), str(runs[1] / "checkpoints" / "step_32")],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "step: 64 → 32"
    assert done.stdout.splitlines()[-1] == "1 False"
