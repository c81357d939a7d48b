"""Learners that train together: one run, whoever takes part in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from test_pipelined import STEPS, Dawdling, Sleepy, Stop, learned, quick_env, rows
from test_pipelined import settings as settings_of_one

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoint import read_checkpoint


def settings(output_dir: Path, **more: Any) -> dict[str, Any]:
    return settings_of_one(output_dir, **{"collection": "serial", "learners": 2, **more})


def slow_env() -> gymnasium.Env[Any, Any]:
    return Dawdling(gymnasium.make("CartPole-v1"))


def test_a_run_is_the_same_however_long_each_learner_takes(tmp_path: Path) -> None:
    config = settings(tmp_path, env={"normalize_obs": True, "normalize_reward": True})
    quick = rl_training.train(config, env=quick_env)
    slow = rl_training.train(config, env=slow_env, callbacks=[Sleepy()])
    assert learned(slow.run_dir) == learned(quick.run_dir)
    assert rows(slow.run_dir) == rows(quick.run_dir)


@pytest.mark.parametrize("learners", [2, 4])
def test_all_steps_and_episodes_count(learners: int, tmp_path: Path) -> None:
    result = rl_training.train(settings(tmp_path, learners=learners, total_timesteps=20 * STEPS))
    assert result.metrics["global_step"] == 20 * STEPS
    checkpoint = read_checkpoint(result.checkpoint_path)
    streams = [checkpoint.state, *checkpoint.state["learners"].values()]
    assert len(streams) == learners
    begun = [int(number) for stream in streams for number in stream["envs"]["episodes"]]
    assert len(begun) == 4
    assert sum(begun) == result.metrics["rollout/episodes"] > 20
    seeds = [int(seed) for stream in streams for seed in stream["envs"]["seeds"]]
    assert len(set(seeds)) == 4


def test_they_stop_together_where_the_policy_has_moved_too_far(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config["hyperparams"] |= {"target_kl": 1e-4, "update_epochs": 50}
    result = rl_training.train(config)
    assert result.status == "completed"
    steps = read_checkpoint(result.checkpoint_path).state["optimizers"]["adam"]["0"]["step"]
    assert 5 * 2 <= int(steps) < 5 * 2 * 50


class AtOnce(rl_training.Callback):
    def on_train_start(self, trainer: Any) -> None:
        trainer.interrupt("the test")


@pytest.mark.parametrize("env", [{"normalize_obs": True}, {"backend": "batched"}], ids=["arrays", "tensors"])
def test_a_run_that_was_stopped_before_its_first_iteration_is_resumed_exactly(
    env: dict[str, Any], tmp_path: Path
) -> None:
    config = settings(tmp_path, env=env, total_timesteps=2 * STEPS)
    stopped = rl_training.train(config, callbacks=[AtOnce()])
    assert stopped.metrics["global_step"] == 0
    resumed = rl_training.resume(stopped.run_dir)
    metadata = json.loads((resumed.run_dir / "metadata.json").read_text())
    assert [resume["grade"] for resume in metadata["resumes"]] == ["exact"]
    assert learned(resumed.run_dir) == learned(rl_training.train(config).run_dir)


def test_the_number_of_learners_is_changed_only_if_that_is_allowed(tmp_path: Path) -> None:
    run_dir = rl_training.train(settings(tmp_path), callbacks=[Stop(2 * STEPS)]).run_dir
    with pytest.raises(ConfigError, match="learners: 2 → 1"):
        rl_training.resume(run_dir, learners=1)
    rl_training.resume(run_dir, learners=1, allow_drift=True, callbacks=[Stop(3 * STEPS)])
    resumed = rl_training.resume(run_dir, learners=4, allow_drift=True)
    assert resumed.metrics["global_step"] == 5 * STEPS
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert [resume["grade"] for resume in metadata["resumes"]] == ["drift", "drift"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"learners": 2}, {"learners": 1}),
        ({"learners": 1}, {"learners": 2}),
        ({"learners": 2}, {"learners": 4}),
        ({"learners": 4}, {"learners": 2}),
        ({"learners": 2}, {"num_envs": 8}),
        ({"learners": 2}, {"learners": 4, "num_envs": 8}),  # the first two go on with their envs
        ({"learners": 1}, {"num_envs": 8}),
        ({"learners": 1}, {"env": {"backend": "native"}}),  # as many envs, in other episodes
        ({"learners": 1, "collection": "pipelined"}, {"num_envs": 8}),
        ({"learners": 1, "collection": "pipelined"}, {"env": {"backend": "native"}}),
    ],
)
def test_rewards_are_divided_by_the_same_in_whatever_envs_a_run_goes_on(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    """Nothing that was seen is forgotten, and running returns are of the episodes that are under way."""
    config = settings(tmp_path, env={"backend": "sync", "normalize_reward": True}, **before)
    run_dir = rl_training.train(config, callbacks=[Stop(2 * STEPS)]).run_dir
    resumed = rl_training.resume(run_dir, allow_drift=True, callbacks=[Stop(3 * STEPS)], **after)
    checkpoint = read_checkpoint(resumed.checkpoint_path).state
    streams = [checkpoint, *checkpoint.get("learners", {}).values()]
    now = {"num_envs": 4, **before, **after}
    assert len(streams) == now["learners"]
    moments = streams[0]["collector"]["rewards"]["moments"]
    assert moments[2] >= resumed.metrics["global_step"] >= 3 * STEPS
    for stream in streams:
        assert stream["collector"]["rewards"]["moments"] == moments
        returns = torch.as_tensor(stream["collector"]["rewards"]["returns"])
        lengths = torch.as_tensor(stream["envs"]["lengths"]).double()  # each step brings 1
        assert len(returns) == now["num_envs"] // now["learners"]
        assert torch.allclose(returns, (1.0 - 0.99**lengths) / (1.0 - 0.99))


def test_an_agent_learns_on_from_what_the_first_learner_knows(tmp_path: Path) -> None:
    """Loaded weights are those of all, a second call goes on exactly, and in between the agent is alone."""
    agent = rl_training.PPO(settings(tmp_path / "one", total_timesteps=2 * STEPS)).learn()
    assert agent.averaging is None
    assert all(optimizer.averaging is None for optimizer in agent.optimizers.values())  # type: ignore[attr-defined]
    agent.save(tmp_path / "agent")
    agent.learn(total_timesteps=4 * STEPS)
    again = rl_training.PPO.load(tmp_path / "agent").learn(total_timesteps=4 * STEPS)
    whole = rl_training.train(settings(tmp_path / "whole", total_timesteps=4 * STEPS))
    expected = learned(whole.run_dir)
    assert learned(agent.session.run_dir) == expected
    assert learned(again.session.run_dir) == expected


def test_what_cannot_be_learned_together_is_refused(tmp_path: Path) -> None:
    for more, reason in [
        (
            {"algo": "trpo"},
            "learners: 2 cannot be combined with algo 'trpo': a line search.*; use learners: 1",
        ),
        ({"algo": "recurrent_ppo"}, "learners: 2 cannot be combined with algo 'recurrent_ppo': sequences"),
        (
            {"collection": "pipelined"},
            "learners: 2 cannot .* collection 'pipelined'.*; use collection: serial, or learners: 1",
        ),
        ({"intrinsic": {"kind": "rnd"}}, r"learners: 2 cannot .* intrinsic\.kind.*; use learners: 1"),
        ({"threads": 2}, "learners: 2 cannot .* threads 2.*; use threads: 1"),
        ({"learners": 3}, "learners: 3 does not divide num_envs: 4; use 2 or 4$"),
        ({"learners": 3, "num_envs": 8}, "learners: 3 does not divide num_envs: 8; use 2 or 4$"),
        ({"learners": 9, "num_envs": 7}, "learners: 9 does not divide num_envs: 7; use 7$"),
        ({"learners": 0}, "learners"),
        (
            {"hyperparams": {"num_steps": 3, "num_minibatches": 4}},
            r"learners: for each of 2, hyperparams\.num_minibatches: 4 does not divide the batch"
            r".*; use learners: 1$",
        ),
        (
            {"learners": 3, "hyperparams": {"num_steps": 3, "num_minibatches": 4}},
            "learners: 3 does not divide num_envs: 4; use 1$",  # neither 2 nor 4 could share out a batch
        ),
    ]:
        with pytest.raises(ConfigError, match=reason):
            rl_training.train(settings(tmp_path, **more))
    with pytest.raises(ConfigError, match=r"learners: 'dqn' is not on-policy.*; use learners: 1"):
        rl_training.train(algo="dqn", env_id="CartPole-v1", learners=2, output_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="learners: several need a function that makes the env"):
        rl_training.train(settings(tmp_path, num_envs=2), env=quick_env())
    assert not list(tmp_path.iterdir())


def test_cartpole_is_learned_together(tmp_path: Path) -> None:
    quiet = {"evaluation": {"every_steps": 5_000}, "checkpoint": {"every_steps": 0}}
    result = rl_training.train(
        preset="ppo/cartpole", seed=1, output_dir=str(tmp_path), learners=2, **quiet,
        stopping={"target_return": 400.0}, logging={"tensorboard": False},
    )  # fmt: skip
    assert result.stop_reason is not None
    assert "reached the target" in result.stop_reason
