"""`examples/recurrent_ppo_reference.py` runs on its own, and computes what the package computes."""

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
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.algorithms.base import Context
from rl_training.contrib import RecurrentPPO, RecurrentPPOConfig
from rl_training.policies.config import NetworkConfig
from rl_training.types import RolloutBatch, Spec

SCRIPT = Path(__file__).parents[2] / "examples" / "recurrent_ppo_reference.py"
NAMES = {  # reference -> package
    "actor.cell.": "memory.layers.",
    "actor.hidden.": "core.layers.0.",
    "actor.output.": "policy_head.linear.",
    "critic.cell.": "critic_memory.layers.",
    "critic.hidden.": "critic_core.layers.0.",
    "critic.output.": "value_head.linear.",
}
KEYS = ("hidden", "cell", "critic_hidden", "critic_cell")


def package_name(name: str) -> str:
    prefix = next(prefix for prefix in NAMES if name.startswith(prefix))
    return NAMES[prefix] + name.removeprefix(prefix) + ("_l0" if ".cell." in name else "")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_losses_gradients_and_weights_agree_over_many_minibatches(reference: ModuleType) -> None:
    cfg = reference.Config(num_envs=4, num_steps=64, sequence_length=16, hidden_size=24, ent_coef=0.01)
    envs = SyncVectorEnv([lambda: reference.make_env(cfg)] * 4, autoreset_mode=AutoresetMode.DISABLED)
    torch.manual_seed(0)
    agent = reference.Agent(2, 2, cfg.hidden_size)
    sampler = reference.Sampler(envs, agent, cfg)
    sampler.rollout(agent, cfg)
    rollout = sampler.rollout(agent, cfg)  # the second: sequences that begin in the middle of an episode
    assert rollout["starts"][1:].any(), "no episode starts inside of a sequence"
    assert rollout["state"].any(2).any(1).sum() > 8
    hyperparams = RecurrentPPOConfig(
        learning_rate=cfg.learning_rate,
        hidden_size=cfg.hidden_size,
        clip_coef=cfg.clip_coef,
        ent_coef=cfg.ent_coef,
        vf_coef=cfg.vf_coef,
        max_grad_norm=cfg.max_grad_norm,
        clip_value_loss=False,
    )
    spec = Spec(envs.single_observation_space, envs.single_action_space)
    context = Context(spec, hyperparams, NetworkConfig(hidden=(64,)), torch.device("cpu"))
    ppo = RecurrentPPO.from_context(context)
    ppo.policy.load_state_dict({package_name(name): value for name, value in agent.state_dict().items()})

    optimizer = reference.make_optimizer(agent, cfg)
    order = torch.Generator().manual_seed(1)
    gradients: list[torch.Tensor] = []
    apply = ppo.optimizer.apply

    def watched(found: list[torch.Tensor], scale: torch.Tensor, skip: torch.Tensor) -> None:
        gradients[:] = [gradient / scale for gradient in found]
        apply(found, scale, skip)

    ppo.optimizer.apply = watched
    for _ in range(3):
        for rows in torch.randperm(16, generator=order).split(4):
            minibatch = reference.pick(rollout, rows)
            batch = RolloutBatch(
                **{name: minibatch[name] for name in RolloutBatch.__match_args__[:6]},
                episode_starts=minibatch["starts"] != 0,
                state={key: minibatch["state"][:, i, None] for i, key in enumerate(KEYS)},
            )
            expected = reference.update_minibatch(agent, optimizer, minibatch, cfg)
            actual = ppo.update(batch).metrics
            for name in ("loss", "policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"):
                torch.testing.assert_close(
                    actual[name], expected[name].detach(), atol=1e-6, rtol=1e-6, msg=name
                )
            ours = dict(ppo.policy.named_parameters())
            clipped = dict(zip(ours, gradients, strict=True))
            for name, parameter in agent.named_parameters():
                mine, gradient = ours[package_name(name)], clipped[package_name(name)]
                torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-5, msg=name)
                torch.testing.assert_close(mine, parameter, atol=1e-6, rtol=1e-6, msg=name)


def test_it_runs_as_a_reader_would_run_it() -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "512", "--num-steps", "32"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    *reports, last = finished.stdout.splitlines()
    assert [re.match(r"step=(\d+) ", line)[1] for line in reports] == ["256", "512"]  # type: ignore[index]
    outcome = dict(re.findall(r"(\w+)=(\S+)", last))
    assert outcome["env"] == "CartPole-v1"
    assert 8 <= float(outcome["mean_return"]) <= 40  # a nearly random policy


def test_it_imports_nothing_but_its_tools() -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}
