"""A2C and TRPO in the package and in one file: the same losses, steps and weights; and the files run."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.nn.utils import parameters_to_vector

from rl_training import registry
from rl_training.algorithms.base import Context, OnPolicyAlgorithm
from rl_training.functional.flat import flat
from rl_training.policies.config import NetworkConfig
from rl_training.types import RolloutBatch, Spec

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {  # reference -> package
    "actor.0": "core.layers.0",
    "actor.2": "core.layers.1",
    "actor.4": "policy_head.linear",
    "critic.0": "critic_core.layers.0",
    "critic.2": "critic_core.layers.1",
    "critic.4": "value_head.linear",
    "": "policy_head",
}
SCRIPTS = ["a2c_reference", "trpo_reference"]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up the annotations of their fields
    spec.loader.exec_module(module)
    return module


def package_name(name: str) -> str:
    module, _, parameter = name.rpartition(".")
    return f"{NAMES[module]}.{parameter}"


def pair(script: str, env_id: str, **settings: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The script, its config and agent, the package's algorithm with the same weights, and a sampler."""
    reference = load(script)
    cfg = reference.Config(env_id=env_id, num_envs=4, **settings)
    envs = SyncVectorEnv([lambda: gym.make(env_id)] * 4, autoreset_mode=AutoresetMode.DISABLED)
    torch.manual_seed(0)
    space = envs.single_action_space
    agent = reference.Agent(
        envs.single_observation_space.shape[0], int(space.n) if script == "a2c_reference" else space
    )
    entry = registry.algorithm(script.removesuffix("_reference"))
    known = {field.name for field in fields(entry.cls.Hyperparams)}
    shared = {name: value for name, value in vars(cfg).items() if name in known}
    spec = Spec(envs.single_observation_space, space)
    context = Context(spec, entry.cls.Hyperparams(**shared), NetworkConfig(), torch.device("cpu"))
    ours: OnPolicyAlgorithm = entry.cls.from_context(context)
    ours.policy.load_state_dict({package_name(name): value for name, value in agent.state_dict().items()})
    return reference, cfg, agent, ours, reference.Sampler(envs, seed=3)


def batch_of(rollout: dict[str, torch.Tensor]) -> RolloutBatch:
    return RolloutBatch(**{name: rollout[name] for name in RolloutBatch.__match_args__[:6]})


def assert_same_weights(agent: Any, ours: Any) -> None:
    mine = dict(ours.policy.named_parameters())
    for name, parameter in agent.named_parameters():
        torch.testing.assert_close(mine[package_name(name)], parameter, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "settings", [{}, {"ent_coef": 0.01, "normalize_advantages": True, "gae_lambda": 0.9}]
)
def test_a2c_computes_the_same_losses_and_weights(settings: dict[str, Any]) -> None:
    reference, cfg, agent, a2c, sampler = pair("a2c_reference", "CartPole-v1", **settings)
    optimizer = reference.make_optimizer(agent, cfg)
    begin = parameters_to_vector(agent.parameters()).detach().clone()
    for _ in range(20):
        rollout = sampler.rollout(agent, cfg.num_steps, cfg)
        expected = reference.update(agent, optimizer, rollout, cfg)
        actual = a2c.update(batch_of(rollout)).metrics
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, atol=1e-6, rtol=1e-6)
        assert_same_weights(agent, a2c)
    assert (parameters_to_vector(agent.parameters()) - begin).abs().max() > 1e-3


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_trpo_takes_the_same_step_and_fits_the_same_critic(env_id: str) -> None:
    # Few solver steps: each multiplies the rounding errors in which two orders of summation differ.
    reference, cfg, agent, trpo, sampler = pair("trpo_reference", env_id, cg_damping=0.1, cg_steps=4)
    optimizer = reference.make_optimizer(agent, cfg)
    order = torch.Generator().manual_seed(1)
    for _ in range(3):
        rollout = sampler.rollout(agent, 64, cfg)
        batch = batch_of(rollout)
        old = agent.policy(rollout["obs"])
        step = reference.natural_step(agent, *reference.surrogate(agent, rollout, detached(old)), cfg)
        start = flat(trpo.actor).detach()

        expected = reference.update_policy(agent, rollout, cfg)
        actual = trpo.before_epochs(batch).metrics
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, atol=1e-6, rtol=1e-5)
        assert actual["line_search_success"] == 1
        assert 0 < actual["kl"] <= cfg.target_kl
        assert_same_weights(agent, trpo)
        moved = flat(trpo.actor).detach() - start
        aligned = torch.cosine_similarity(moved, in_package_order(agent, trpo, step), dim=0)
        assert aligned > 0.99999

        for index in torch.randperm(256, generator=order).split(64):
            minibatch = {name: value[index] for name, value in rollout.items()}
            loss = reference.update_critic(agent, optimizer, minibatch)["value_loss"]
            ours = trpo.update(batch_of(minibatch)).metrics["value_loss"]
            torch.testing.assert_close(ours, loss, atol=1e-5, rtol=1e-6)
        assert_same_weights(agent, trpo)


def detached(policy: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(part.detach() for part in policy)


def in_package_order(agent: Any, trpo: Any, row: torch.Tensor) -> torch.Tensor:
    """A row over the reference's actor as a row over the package's."""
    theirs = agent.actor_parameters()
    names = {id(parameter): package_name(name) for name, parameter in agent.named_parameters()}
    parts = row.split([parameter.numel() for parameter in theirs])
    by_name = {names[id(parameter)]: part for parameter, part in zip(theirs, parts, strict=True)}
    ours = {id(parameter): name for name, parameter in trpo.policy.named_parameters()}
    return torch.cat([by_name[ours[id(parameter)]] for parameter in trpo.actor])


@pytest.mark.parametrize(
    ("script", "options", "env_id"),
    [
        ("a2c_reference", ["--num-steps", "16"], "CartPole-v1"),
        ("trpo_reference", ["--num-steps", "64"], "CartPole-v1"),
        (
            "trpo_reference",
            ["--env-id", "Pendulum-v1", "--num-envs", "1", "--num-steps", "128"],
            "Pendulum-v1",
        ),
    ],
)
def test_scripts_run_as_a_reader_would_run_them(script: str, options: list[str], env_id: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), "--total-timesteps", "256", *options]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    *reports, last = finished.stdout.splitlines()
    assert [re.match(r"step=(\d+) ", line)[1] for line in reports] == ["128", "256"]  # type: ignore[index]
    outcome = dict(re.findall(r"(\w+)=(\S+)", last))
    assert outcome["env"] == env_id
    low, high = (8, 40) if env_id == "CartPole-v1" else (-2000, -100)
    assert low < float(outcome["mean_return"]) < high


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_import_nothing_but_their_tools(script: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse((EXAMPLES / f"{script}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}
