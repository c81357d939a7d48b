"""Recurrent PPO: what was collected is what is learned from, and states go where they belong."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rl_training
from rl_training.contrib import RecurrentPPO, RecurrentPPOConfig
from rl_training.errors import ConfigError


class Count(gymnasium.Env[Any, Any]):
    """Shows how many steps it has taken; a time limit of 5 cuts it off."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.show(), 1.0, False, self.steps == 5, {}

    def show(self) -> Any:
        return np.array([self.steps / 10], np.float32)


def small(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "num_envs": 2,
        "total_timesteps": 96,
        "num_steps": 16,
        "num_minibatches": 2,
        "sequence_length": 8,
        "update_epochs": 1,
        "output_dir": str(tmp_path),
        "evaluation": {"every_steps": 0},
        "logging": {"tensorboard": False},
        **more,
    }


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("length", [None, 16, 4, 1])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "axiom/PendulumNoVelocity-v0"])
def test_the_ratio_is_one_before_the_first_update(
    core: str, length: int | None, env_id: str, tmp_path: Path
) -> None:
    checked: list[int] = []

    class Compare(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            generator = torch.Generator().manual_seed(0)
            starts = 0
            for batch in trainer.buffer.sequences(2, generator):
                logprobs, _, values = trainer.algorithm.evaluate_actions(batch)
                torch.testing.assert_close(logprobs, batch.logprobs, atol=2e-6, rtol=1e-5)
                torch.testing.assert_close(values, batch.values, atol=2e-6, rtol=1e-5)
                starts += int(batch.episode_starts[1:].sum())
            checked.append(starts)

    config = small(tmp_path, env_id=env_id, core=core, sequence_length=length, num_layers=2, hidden_size=8)
    config |= {"learning_rate": 0.03, "env": {"normalize_obs": True, "max_episode_steps": 7}}
    RecurrentPPO(**config).learn(callbacks=[Compare()])
    assert len(checked) == 3
    assert sum(checked) > 0 or length == 1  # episodes did start inside of sequences


def test_a_lost_life_ends_the_return_but_not_the_memory(tmp_path: Path) -> None:
    if importlib.util.find_spec("ale_py") is None:
        pytest.skip("needs the extra atari: pip install 'axiomrl[atari]'")
    lost: list[int] = []

    class Compare(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            buffer = trainer.buffer
            lost.append(int((buffer.dones[:-1].bool() & buffer.carried[:-1]).sum()))
            (batch,) = buffer.sequences(1, torch.Generator())
            assert int(batch.episode_starts[1:].sum()) == int(buffer.dones[:-1].sum()) - lost[-1]
            logprobs, _, values = trainer.algorithm.evaluate_actions(batch)
            torch.testing.assert_close(logprobs, batch.logprobs, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(values, batch.values, atol=1e-5, rtol=1e-5)

    config = small(tmp_path, env_id="ALE/Breakout-v5", num_steps=160, sequence_length=160)
    protocol = {"preprocess": True, "screen_size": 20, "fire_reset": True, "episodic_life": True}
    config |= {"env": {"frame_skip": 4, "atari": protocol}, "network": {"hidden": [16], "encoder": "mlp"}}
    RecurrentPPO(**config).learn(callbacks=[Compare()])
    assert sum(lost) > 0


def test_a_cut_off_episode_is_bootstrapped_in_the_state_it_was_in(tmp_path: Path) -> None:
    seen: list[int] = []

    class Compare(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            policy, buffer = trainer.algorithm.policy, trainer.buffer
            with torch.no_grad():
                state = None
                for step in range(5):
                    state = policy.act(torch.full((1, 1), step / 10), state).state
                expected = policy.values(torch.full((1, 1), 0.5), state)
            where = buffer.truncated != 0
            torch.testing.assert_close(
                buffer.final_values[where], expected.expand(int(where.sum())), atol=1e-6, rtol=1e-5
            )
            seen.append(int(where.sum()))

    # Episodes last 5 steps, so that two fit into a rollout: no update falls into one.
    config = small(tmp_path, num_steps=10, sequence_length=2, total_timesteps=60)
    RecurrentPPO(**config, env=Count).learn(callbacks=[Compare()])
    assert seen == [4, 4, 4]


def test_a_deployment_loop_plays_the_evaluated_episodes(tmp_path: Path) -> None:
    config = small(tmp_path, env_id="axiom/CartPoleNoVelocity-v0", total_timesteps=2048, num_steps=128)
    agent = RecurrentPPO(**config, learning_rate=0.01).learn()
    evaluation = agent.evaluate(num_episodes=6)
    env = gymnasium.make("axiom/CartPoleNoVelocity-v0")
    returns = []
    for seed in evaluation["seeds"]:
        obs, _ = env.reset(seed=int(seed))
        state, total, ended = None, 0.0, False
        while not ended:
            action, state = agent.predict(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    assert returns == evaluation["returns"]
    assert len(set(returns)) > 1


def test_impossible_sequences_are_refused() -> None:
    def problems(num_envs: int = 8, **values: Any) -> list[str]:
        return RecurrentPPOConfig(**values).problems(num_envs)

    assert problems() == []
    assert problems(num_steps=128, sequence_length=16, num_minibatches=64) == []
    (problem,) = problems(num_steps=128, sequence_length=24)
    assert problem == "hyperparams.sequence_length: 24 does not divide num_steps = 128"
    (problem,) = problems(num_envs=2, num_minibatches=4)
    assert "num_minibatches: 4 does not divide the 2 sequences" in problem
    (problem,) = problems(num_envs=1, num_steps=4, sequence_length=1, num_minibatches=4)
    assert "cannot be normalised" in problem
    with pytest.raises(ConfigError, match=r"core.*did you mean 'lstm'"):
        RecurrentPPOConfig(core="lsmt")  # type: ignore[arg-type]
