"""The package and the one-file references compute the same: losses, gradients and weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.algorithms.base import Context
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
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
    "log_std": "policy_head.log_std",
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def package_name(name: str) -> str:
    prefix, _, last = name.rpartition(".")
    return f"{NAMES[prefix]}.{last}" if prefix else NAMES[name]


@pytest.fixture(params=["ppo_cartpole_reference", "ppo_continuous_reference"])
def pair(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A reference agent and a package PPO with the same weights, and one rollout of the reference."""
    reference = load(request.param)
    cfg = reference.Config(num_envs=4, num_steps=64, ent_coef=0.01)
    envs = SyncVectorEnv([lambda: gym.make(cfg.env_id)] * 4, autoreset_mode=AutoresetMode.DISABLED)
    torch.manual_seed(0)
    obs_size = envs.single_observation_space.shape[0]
    actions = envs.single_action_space
    agent = reference.Agent(obs_size, int(actions.n) if hasattr(actions, "n") else actions.shape[0])
    hyperparams = PPOConfig(
        learning_rate=cfg.learning_rate,
        num_steps=cfg.num_steps,
        gamma=cfg.gamma,
        gae_lambda=cfg.gae_lambda,
        clip_coef=cfg.clip_coef,
        ent_coef=cfg.ent_coef,
        vf_coef=cfg.vf_coef,
        max_grad_norm=cfg.max_grad_norm,
        clip_value_loss=cfg.clip_value_loss,
    )
    spec = Spec(envs.single_observation_space, envs.single_action_space)
    ppo = PPO.from_context(Context(spec, hyperparams, NetworkConfig(), torch.device("cpu")))
    weights = {package_name(name): value for name, value in agent.state_dict().items()}
    ppo.policy.load_state_dict(weights)
    rollout = reference.Sampler(envs, seed=3).rollout(agent, cfg.num_steps, cfg)
    return {"reference": reference, "cfg": cfg, "agent": agent, "ppo": ppo, "rollout": rollout}


def test_losses_gradients_and_weights_agree_over_many_minibatches(pair: dict[str, Any]) -> None:
    reference, cfg, agent, ppo = pair["reference"], pair["cfg"], pair["agent"], pair["ppo"]
    optimizer = reference.make_optimizer(agent, cfg)
    order = torch.Generator().manual_seed(1)
    gradients: list[torch.Tensor] = []
    apply = ppo.optimizer.apply

    def watched(found: list[torch.Tensor], scale: torch.Tensor, skip: torch.Tensor) -> None:
        gradients[:] = [gradient / scale for gradient in found]
        apply(found, scale, skip)

    ppo.optimizer.apply = watched
    for _ in range(3):
        for index in torch.randperm(256, generator=order).split(64):
            minibatch = {name: value[index] for name, value in pair["rollout"].items()}
            batch = RolloutBatch(**{name: minibatch[name] for name in RolloutBatch.__match_args__[:6]})
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


def test_advantages_agree_with_time_limits_and_terminations(pair: dict[str, Any]) -> None:
    cfg, steps = pair["cfg"], 64
    generator = torch.Generator().manual_seed(5)
    buffer = RolloutBuffer(steps, 4, (1,), ())
    for name in ("rewards", "values"):
        getattr(buffer, name).copy_(torch.randn(steps, 4, generator=generator))
    buffer.dones.copy_((torch.rand(steps, 4, generator=generator) < 0.1).float())
    buffer.truncated.copy_(buffer.dones * (torch.rand(steps, 4, generator=generator) < 0.5))
    final = torch.randn(steps, 4, generator=generator)
    last = torch.randn(4, generator=generator)
    where = buffer.truncated.nonzero(as_tuple=True)
    assert len(where[0]) > 3
    buffer.set_final_values(*where, final[where])
    buffer.compute_returns_and_advantages(last, cfg.gamma, cfg.gae_lambda)
    next_values = torch.cat([buffer.values[1:], last[None]])
    next_values = torch.where(buffer.truncated.bool(), final, next_values)
    expected = pair["reference"].compute_gae(
        buffer.rewards, buffer.values, next_values, buffer.terminated, buffer.dones, cfg.gamma, cfg.gae_lambda
    )
    torch.testing.assert_close(buffer.advantages, expected, atol=1e-5, rtol=1e-5)
