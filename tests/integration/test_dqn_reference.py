"""`examples/dqn_reference.py` runs on its own, and computes what the package computes."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from rl_training.algorithms.base import Context
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.policies.config import NetworkConfig
from rl_training.types import Spec, TransitionBatch

SCRIPT = Path(__file__).parents[2] / "examples" / "dqn_reference.py"
NAMES = {"0": "core.layers.0", "2": "core.layers.1", "4": "head.actions"}  # reference -> package


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def batches(count: int, size: int = 32) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)

    def one() -> dict[str, Tensor]:
        return {
            "obs": torch.randn(size, 4, generator=generator),
            "actions": torch.randint(2, (size,), generator=generator),
            "rewards": 3 * torch.randn(size, generator=generator),
            "next_obs": torch.randn(size, 4, generator=generator),
            "discount": 0.99 * (torch.rand(size, generator=generator) < 0.8),
        }

    return [one() for _ in range(count)]


@pytest.mark.parametrize("double", [False, True])
def test_targets_losses_and_weights_agree_over_many_updates(reference: ModuleType, double: bool) -> None:
    cfg = reference.Config(double=double, target_update_every=4, max_grad_norm=1.0)
    torch.manual_seed(0)
    agent = reference.Agent(4, 2, cfg)
    hyperparams = DQNConfig(
        learning_rate=cfg.learning_rate, max_grad_norm=1.0, target_update_every=4, double=double
    )
    spec = Spec(spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2))
    network = NetworkConfig(hidden=(128, 128))
    ours = DQN.from_context(Context(spec, hyperparams, network, torch.device("cpu")))
    weights = {
        f"{NAMES[name.split('.')[0]]}.{name.split('.')[1]}": value
        for name, value in agent.q.state_dict().items()
    }
    ours.policy.q.load_state_dict(weights)
    ours.target.load_state_dict(weights)

    for data in batches(10):
        batch = TransitionBatch(**data, weights=torch.ones(32), index=torch.zeros(2, 32, dtype=torch.int64))
        torch.testing.assert_close(ours.targets(batch), agent.targets(data), atol=1e-6, rtol=1e-6)
        expected, result = agent.update(data), ours.update(batch).metrics
        for name in ("loss", "q_mean"):
            torch.testing.assert_close(result[name], expected[name], atol=1e-6, rtol=1e-6)
        for mine, theirs in ((ours.policy.q, agent.q), (ours.target, agent.target)):
            torch.testing.assert_close(
                parameters_to_vector(mine.parameters()),
                parameters_to_vector(theirs.parameters()),
                atol=1e-6,
                rtol=1e-6,
            )
    assert agent.num_updates == ours.num_updates == 10


def test_it_runs_and_reports() -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "256", "--train-every", "32"]
    finished = subprocess.run(
        [*command, "--gradient-steps", "4"], check=True, capture_output=True, text=True, timeout=120
    )
    *reports, last = finished.stdout.splitlines()
    assert re.match(r"step=256 .* loss=\d", reports[-1])
    outcome = dict(re.findall(r"(\w+)=(\S+)", last))
    assert last.startswith("finished: env=CartPole-v1")
    assert 3 <= int(outcome["episodes"]) <= 30  # of a nearly random policy, which lasts about 20 steps


def test_same_seed_same_weights(reference: ModuleType) -> None:
    def weights(seed: int) -> Tensor:
        cfg = reference.Config(total_timesteps=256, train_every=32, gradient_steps=2, seed=seed)
        agent, _ = reference.train(cfg)
        return parameters_to_vector(agent.q.parameters()).detach()

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))


def test_a_time_limit_is_no_end(reference: ModuleType) -> None:
    """MountainCar is cut off after 200 steps and never reaches its goal at random."""
    cfg = reference.Config(env_id="MountainCar-v0", num_envs=1, total_timesteps=201, gamma=0.9)
    envs = reference.SyncVectorEnv(
        [lambda: reference.gym.make(cfg.env_id)], autoreset_mode=reference.AutoresetMode.DISABLED
    )
    replay = reference.Replay(300, 2, 0)
    sampler = reference.Sampler(envs, replay, cfg)
    agent = reference.Agent(2, 3, cfg)
    for _ in range(201):
        sampler.step(agent, 1.0)
    assert len(sampler.episode_returns) == 1
    assert replay.data["discount"][:201].tolist() == pytest.approx([0.9] * 201)
    assert torch.equal(replay.data["next_obs"][:199], replay.data["obs"][1:200])
    assert not torch.equal(replay.data["next_obs"][199], replay.data["obs"][200])  # a new episode


def test_it_imports_nothing_but_its_tools() -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}
