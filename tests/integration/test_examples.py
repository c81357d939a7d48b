"""The reference scripts run as a reader would run them, and stand on their own."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torch.nn.utils import parameters_to_vector

EXAMPLES = Path(__file__).parents[2] / "examples"
CARTPOLE, CONTINUOUS = EXAMPLES / "ppo_cartpole_reference.py", EXAMPLES / "ppo_continuous_reference.py"


def run(script: Path, *options: str) -> list[str]:
    command = [sys.executable, str(script), "--total-timesteps", "256", *options]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return finished.stdout.splitlines()


def load(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # where dataclasses look up the annotations of their fields
    spec.loader.exec_module(module)
    return module


def final(line: str) -> dict[str, str]:
    assert line.startswith("finished: ")
    return dict(re.findall(r"(\w+)=(\S+)", line))


def test_cartpole_reference() -> None:
    *reports, last = run(CARTPOLE, "--num-steps", "16")
    assert [re.match(r"step=(\d+) ", line)[1] for line in reports] == ["128", "256"]  # type: ignore[index]
    outcome = final(last)
    assert outcome["env"] == "CartPole-v1"
    # Episodes of a nearly random policy last about 20 steps, of 256 in all.
    assert 3 <= int(outcome["episodes"]) <= 30
    assert 8 <= float(outcome["mean_return"]) <= 32


def test_continuous_reference() -> None:
    *reports, last = run(CONTINUOUS, "--num-envs", "1", "--num-steps", "128", "--num-minibatches", "4")
    assert [re.match(r"step=(\d+) ", line)[1] for line in reports] == ["128", "256"]  # type: ignore[index]
    outcome = final(last)
    assert outcome["env"] == "Pendulum-v1"
    assert outcome["episodes"] == "1"  # the time limit of 200 steps is reached once
    assert -2000 < float(outcome["mean_return"]) < -100


@pytest.mark.parametrize("script", [CARTPOLE, CONTINUOUS], ids=lambda path: path.stem)
def test_same_seed_same_weights_and_no_rollout_longer_than_the_run(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = load(script)

    def weights(seed: int) -> Tensor:
        agent, _ = reference.train(reference.Config(total_timesteps=256, seed=seed))
        assert capsys.readouterr().out.startswith("step=256 ")
        return parameters_to_vector(agent.parameters()).detach()

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))


def test_an_env_of_ones_own_as_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load(EXAMPLES / "batched_env.py")
    options = {
        "--num-envs": "128",
        "--total-timesteps": "40960",
        "--device": "cpu",
        "--output-dir": str(tmp_path),
    }
    monkeypatch.setattr(sys, "argv", ["batched_env.py", *(x for pair in options.items() for x in pair)])
    example.main()
    line = capsys.readouterr().out.strip()
    found = re.fullmatch(r"mean return over 64 episodes: (\S+) before training, (\S+) after", line)
    assert found is not None
    before, after = map(float, found.groups())
    assert before < -10
    assert -5 < after < -0.5

    gusts = example.Gusts(torch.device("cpu"), wind=0.0)
    state = gusts.start(torch.tensor([3, 4]))
    assert (state["place"].abs() <= 2).all()
    after_one, rewards, terminated = gusts.step(state, torch.tensor([[1.0, 0.0], [9.0, -1.0]]))
    torch.testing.assert_close(after_one["speed"], torch.tensor([[0.1, 0.0], [0.1, -0.1]]))
    torch.testing.assert_close(after_one["place"], state["place"] + 0.1 * after_one["speed"])
    torch.testing.assert_close(rewards, -0.1 * after_one["place"].norm(dim=1))
    assert terminated.tolist() == [False, False]
    near = {**state, "place": torch.tensor([[0.1, 0.1], [0.2, 0.1]])}
    assert gusts.step(near, torch.zeros(2, 2))[2].tolist() == [True, False]


def test_a_time_limit_is_bootstrapped_from_the_final_observation() -> None:
    """MountainCar is cut off after 200 steps; a rollout of 205 goes on in the next episode."""
    reference = load(CARTPOLE)
    cfg = reference.Config(env_id="MountainCar-v0", gamma=0.9, gae_lambda=0.0)
    make = partial(gym.make, cfg.env_id)
    envs = SyncVectorEnv([make], autoreset_mode=AutoresetMode.DISABLED)
    torch.manual_seed(0)
    agent = reference.Agent(2, 3)
    batch = reference.Sampler(envs, seed=3).rollout(agent, 205, cfg)

    env = make()
    obs, _ = env.reset(seed=3)
    truncated = False
    for t in range(200):
        np.testing.assert_array_equal(batch["obs"][t].numpy(), obs)
        obs, _, _, truncated, _ = env.step(int(batch["actions"][t]))
    assert truncated
    final_value, value = agent.value(torch.as_tensor(obs)).item(), batch["values"][199].item()
    assert final_value != pytest.approx(batch["values"][200].item(), abs=1e-4)
    assert batch["advantages"][199].item() == pytest.approx(-1 + 0.9 * final_value - value, abs=1e-5)
    # The step before bootstraps from the next stored value, as any other.
    next_value, value = value, batch["values"][198].item()
    assert batch["advantages"][198].item() == pytest.approx(-1 + 0.9 * next_value - value, abs=1e-5)


def test_killing_a_study_says_what_it_needs() -> None:
    script = EXAMPLES / "studies" / "kill_twice.py"
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, f"usage: {script} STUDY.yaml OUTPUT_DIR\n")


@pytest.mark.parametrize("script", [CARTPOLE, CONTINUOUS], ids=lambda path: path.stem)
def test_references_import_nothing_but_their_tools(script: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}
