"""SAC and TD3 in the package and in one file: the same targets, losses and weights; and the files run."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from rl_training import registry
from rl_training.algorithms.actor_critic import OffPolicyActorCritic
from rl_training.algorithms.base import Context
from rl_training.policies.config import NetworkConfig
from rl_training.types import Spec, TransitionBatch

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ["sac_reference", "td3_reference"]
BATCH = 32


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up the annotations of their fields
    spec.loader.exec_module(module)
    return module


def linears(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def stacked(critics: nn.ModuleList) -> dict[str, Tensor]:
    """Separate critics as the weights of an ensemble."""
    layers = list(zip(*(linears(critic) for critic in critics), strict=True))
    weights = {f"weights.{i}": torch.stack([m.weight.T for m in members]) for i, members in enumerate(layers)}
    biases = {f"biases.{i}": torch.stack([m.bias[None] for m in members]) for i, members in enumerate(layers)}
    return {name: value.detach().clone() for name, value in {**weights, **biases}.items()}


def actor_weights(network: nn.Module) -> dict[str, Tensor]:
    names = ["core.layers.0", "core.layers.1", "head"]
    return {
        f"{name}.{part}": getattr(layer, part).detach().clone()
        for name, layer in zip(names, linears(network), strict=True)
        for part in ("weight", "bias")
    }


def build(name: str, reference: Any, cfg: Any, agent: Any) -> OffPolicyActorCritic:
    """The package's algorithm with the weights of a reference agent."""
    algo = name.removesuffix("_reference")
    entry = registry.algorithm(algo)
    env = gym.make(cfg.env_id)
    shared = {"learning_rate": cfg.learning_rate, "tau": cfg.tau, "gamma": cfg.gamma}
    context = Context(
        Spec(env.observation_space, env.action_space),
        entry.cls.Hyperparams(**shared),
        NetworkConfig(hidden=(cfg.hidden, cfg.hidden)),
        torch.device("cpu"),
        seed=7,
    )
    ours: OffPolicyActorCritic = entry.cls.from_context(context)
    ours.policy.load_state_dict(actor_weights(agent.actor))
    ours.critics.load_state_dict(stacked(agent.critics))
    ours.target_critics.load_state_dict(stacked(agent.critics))
    if algo == "td3":
        weights = actor_weights(agent.actor)
        for part in ("core", "head"):
            own = {k.removeprefix(f"{part}."): v for k, v in weights.items() if k.startswith(part)}
            ours.networks[f"target_{part}"].load_state_dict(own)
    return ours


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, atol=1e-6, rtol=1e-6, msg=f"{what}: {name}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_targets_losses_and_weights_agree_over_many_updates(name: str) -> None:
    reference = load(name)
    cfg = reference.Config(hidden=32)
    torch.manual_seed(0)
    agent = reference.Agent(3, 1, cfg)
    optimizers = reference.Optimizers(agent, cfg)
    ours = build(name, reference, cfg, agent)
    data = torch.Generator().manual_seed(1)
    noise = torch.Generator().manual_seed(7)  # the package's own stream, drawn a second time
    targets: list[Tensor] = []
    bootstrap = ours.bootstrap
    ours.bootstrap = lambda *args: (targets.append(bootstrap(*args)), targets[-1])[1]  # type: ignore[assignment]
    for _ in range(12):
        columns = {
            "obs": torch.randn(BATCH, 3, generator=data),
            "actions": torch.rand(BATCH, 1, generator=data) * 2 - 1,
            "rewards": torch.randn(BATCH, generator=data),
            "next_obs": torch.randn(BATCH, 3, generator=data),
            "discount": 0.99 * (torch.rand(BATCH, generator=data) > 0.2),
        }
        draws = [torch.empty(BATCH, 1).normal_(generator=noise)]
        if name == "sac_reference":
            draws.append(torch.empty(BATCH, 1).normal_(generator=noise))
        given = tuple(draws) if len(draws) > 1 else draws[0]
        expected = reference.update(agent, optimizers, columns, given, cfg)
        batch = TransitionBatch(
            **columns, weights=torch.ones(BATCH), index=torch.zeros(2, BATCH, dtype=torch.int64)
        )
        metrics = ours.update(batch).metrics
        torch.testing.assert_close(targets[-1][:, 0], expected.pop("target"), atol=1e-6, rtol=1e-6)
        assert_same({key: metrics[key] for key in expected}, expected, "metrics")
        assert_same(dict(ours.critics.named_parameters()), stacked(agent.critics), "critics")
        slow = agent.targets if name == "sac_reference" else agent.target_critics
        assert_same(dict(ours.target_critics.named_parameters()), stacked(slow), "target critics")
        assert_same(dict(ours.policy.named_parameters()), actor_weights(agent.actor), "actor")
        if name == "sac_reference":
            torch.testing.assert_close(
                ours.networks["temperature"].log, agent.log_temperature, atol=1e-6, rtol=1e-6
            )
        else:
            head = linears(agent.target_actor)[-1]
            torch.testing.assert_close(ours.networks["target_head"].weight, head.weight, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_runs_as_a_reader_would_run_it(name: str) -> None:
    options = ["--total-timesteps", "256", "--learning-starts", "128", "--batch-size", "16"]
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *options]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    *reports, last = finished.stdout.splitlines()
    assert len(reports) >= 20
    outcome = dict(re.findall(r"(\w+)=(\S+)", last))
    assert outcome["env"] == "Pendulum-v1"
    assert outcome["episodes"] == "1"  # the time limit of 200 steps is reached once
    assert -2000 < float(outcome["mean_return"]) < -100


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_seed_same_weights(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reference = load(name)

    def weights(seed: int) -> Tensor:
        cfg = reference.Config(total_timesteps=48, learning_starts=32, batch_size=8, seed=seed)
        agent, _ = reference.train(cfg)
        return parameters_to_vector(agent.parameters()).detach()

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))
    assert "step=48 " in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_references_import_nothing_but_their_tools(name: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}
