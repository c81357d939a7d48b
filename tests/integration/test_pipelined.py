"""Collection ahead of learning: a fixed lag, whoever is faster, and nothing lost by stopping."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoint import read_checkpoint

STEPS = 64
"""Of a rollout."""


def settings(output_dir: Path, **more: Any) -> dict[str, Any]:
    rates = {} if more.get("algo") == "trpo" else {"learning_rate": 0.01}
    return {
        "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 4, "total_timesteps": 5 * STEPS,
        "hyperparams": {"num_steps": STEPS // 4, "num_minibatches": 2, "update_epochs": 2, **rates},
        "network": {"hidden": [16]}, "collection": "pipelined", "output_dir": str(output_dir),
        "evaluation": {"every_steps": 0}, "checkpoint": {"every_steps": 0},
        "logging": {"every_steps": STEPS, "tensorboard": False}, **more,
    }  # fmt: skip


def rows(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    clocks = ("time/", "sampler/", "elapsed_s", "steps_per_second")
    return [{k: v for k, v in row.items() if not k.startswith(clocks)} for row in lines]


def learned(run_dir: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, to the bit."""
    metadata = json.loads((run_dir / "metadata.json").read_text())
    tensors: dict[str, bytes] = {}

    def walk(part: Any, where: str) -> None:
        if isinstance(part, dict | list):
            for key, value in part.items() if isinstance(part, dict) else enumerate(part):
                walk(value, f"{where}/{key}")
        elif isinstance(part, torch.Tensor):
            tensors[where] = part.numpy().tobytes()

    walk(read_checkpoint(run_dir / metadata["latest_checkpoint"]).state, "")
    return tensors


class Dawdling(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env that takes a time of its own, another one in every run."""

    def step(self, action: Any) -> Any:
        if random.SystemRandom().random() < 0.1:
            time.sleep(0.002)
        return self.env.step(action)


class Sleepy(rl_training.Callback):
    def on_collect(self, trainer: Any) -> None:
        time.sleep(random.SystemRandom().uniform(0.0, 0.05))


def quick_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def slow_env() -> gymnasium.Env[Any, Any]:
    return Dawdling(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_a_run_is_the_same_however_long_either_side_takes(algo: str, tmp_path: Path) -> None:
    config = settings(tmp_path, algo=algo, env={"normalize_obs": True, "normalize_reward": True})
    quick = rl_training.train(config, env=quick_env)
    slow_sampler = rl_training.train(config, env=slow_env)
    slow_learner = rl_training.train(config, env=quick_env, callbacks=[Sleepy()])
    for other in (slow_sampler, slow_learner):
        assert learned(other.run_dir) == learned(quick.run_dir)
        assert rows(other.run_dir) == rows(quick.run_dir)
    serial = rl_training.train({**config, "collection": "serial"}, env=quick_env)
    assert rows(serial.run_dir)[0]["rollout/episodes"] == rows(quick.run_dir)[0]["rollout/episodes"]
    assert rows(serial.run_dir)[-1] != rows(quick.run_dir)[-1]


class Watch(rl_training.Callback):
    """Keeps every rollout, and the policy as it was when that rollout was handed out."""

    def __init__(self) -> None:
        self.policies: list[Any] = []
        self.rollouts: list[dict[str, torch.Tensor]] = []
        self.lags: list[float] = []

    def on_collect(self, trainer: Any) -> None:
        self.policies.append(copy.deepcopy(trainer.algorithm.policy))
        self.rollouts.append({key: value.clone() for key, value in trainer.buffer.state_dict().items()})
        self.lags.append(trainer.collector.metrics()["train/policy_lag"])


def test_the_policy_that_acted_is_one_iteration_older_than_the_one_that_learns(tmp_path: Path) -> None:
    watch = Watch()
    options = {"normalize_obs": True}
    result = rl_training.train(settings(tmp_path, env=options), callbacks=[watch])

    def acted(policy: int, rollout: int) -> bool:
        """Is this the policy, statistics of observations included, by which a rollout came about?"""
        seen = watch.rollouts[rollout]
        with torch.no_grad():
            logprobs, _, values = watch.policies[policy].evaluate_actions(
                seen["obs"].flatten(0, 1), seen["actions"].flatten(0, 1)
            )
        same = [(logprobs, seen["logprobs"]), (values, seen["values"])]
        return all(torch.allclose(now, then.flatten(), atol=1e-6) for now, then in same)

    assert len(watch.rollouts) == 5
    for k in range(5):
        assert acted(max(k - 1, 0), k)
        assert not acted(max(k - 1, 0) + 1 if k != 0 else 1, k)
    assert watch.lags == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert result.metrics["train/policy_lag"] == 1.0
    assert {"sampler/env", "sampler/inference", "sampler/idle", "time/wait"} <= result.metrics.keys()
    # What is handed out is one stream of experience, each rollout going on where the last one ended.
    ends = torch.stack([rollout["dones"][-1] for rollout in watch.rollouts[:-1]])
    starts = torch.stack([rollout["initial_episode_starts"] for rollout in watch.rollouts[1:]])
    assert torch.equal(ends, starts)


class WatchSteps(rl_training.Callback):
    """Keeps what was done last, in what state, and the policy as it was when that was handed out."""

    def __init__(self) -> None:
        self.policies: list[Any] = []
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def on_collect(self, trainer: Any) -> None:
        buffer = trainer.buffer
        last = int(buffer.heads[0]) - 1
        self.policies.append(copy.deepcopy(trainer.algorithm.policy))
        self.steps.append((buffer.obs[last].clone(), buffer.actions[last].clone()))


def off_policy(output_dir: Path, algo: str, env_id: str, **more: Any) -> dict[str, Any]:
    hyperparams = {"buffer_size": 200, "batch_size": 8, "learning_starts": 8, "train_every": 2}
    config = settings(output_dir, algo=algo, env_id=env_id, num_envs=2, total_timesteps=24)
    return {**config, "hyperparams": {**hyperparams, **more}}


def test_off_policy_actions_are_those_of_the_policy_before_the_last_updates(tmp_path: Path) -> None:
    watch = WatchSteps()
    quiet = {"exploration_sigma": 0.0, "learning_rate": 0.01, "policy_delay": 1}
    rl_training.train(off_policy(tmp_path, "td3", "Pendulum-v1", **quiet), callbacks=[watch])

    def acted(policy: int, block: int) -> bool:
        obs, actions = watch.steps[block]
        with torch.no_grad():
            return torch.allclose(watch.policies[policy].act(obs).actions, actions, atol=1e-6)

    assert len(watch.steps) == 12
    for block in range(4, 12):  # the first four are random
        assert acted(block - 1, block)
        assert not acted(block, block)


@pytest.mark.parametrize(
    ("algo", "env_id", "more"),
    [("dqn", "axiom/BitFlip-v0", {"her": "future"}), ("sac", "Pendulum-v1", {"train_every": 5})],
)
def test_the_replay_buffer_is_filled_as_in_turn(
    algo: str, env_id: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """At random nothing depends on who is ahead: all that was stored must be the same, to the bit."""
    config = off_policy(tmp_path, algo, env_id, learning_starts=10**6, **more) | {"total_timesteps": 120}
    serial, ahead = (
        {name: part for name, part in learned(result.run_dir).items() if name.startswith("/buffer")}
        for result in (rl_training.train({**config, "collection": mode}) for mode in ("serial", "pipelined"))
    )
    assert serial
    assert serial == ahead


class Stop(rl_training.Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= self.at:
            trainer.interrupt("the test")


def test_a_run_trained_further_is_the_one_that_was_longer_from_the_start(tmp_path: Path) -> None:
    """The rollout that was collected ahead is not lost at the end either."""
    long = rl_training.train(settings(tmp_path, total_timesteps=4 * STEPS))
    short = rl_training.train(settings(tmp_path, total_timesteps=2 * STEPS))
    further = rl_training.resume(short.run_dir, total_timesteps=4 * STEPS)
    assert learned(further.run_dir) == learned(long.run_dir)


def test_a_run_can_change_its_collection_if_that_is_allowed(tmp_path: Path) -> None:
    run_dir = rl_training.train(settings(tmp_path), callbacks=[Stop(2 * STEPS)]).run_dir
    with pytest.raises(ConfigError, match="collection: pipelined → serial"):
        rl_training.resume(run_dir, collection="serial")
    rl_training.resume(run_dir, collection="serial", allow_drift=True, callbacks=[Stop(3 * STEPS)])
    resumed = rl_training.resume(run_dir, collection="pipelined", allow_drift=True)
    assert resumed.metrics["global_step"] == 5 * STEPS
    assert [row.get("train/policy_lag") for row in rows(run_dir)] == [0.0, 1.0, None, 0.0, 1.0]


class Count(rl_training.Callback):
    """Steps that were counted and steps that were stored."""

    def on_train_end(self, trainer: Any) -> None:
        self.counted, self.stored = trainer.global_step, trainer.buffer.total


@pytest.mark.parametrize(("before", "after"), [(2, 8), (8, 2)])
def test_steps_of_another_block_are_given_up(before: int, after: int, tmp_path: Path) -> None:
    config = off_policy(tmp_path, "dqn", "CartPole-v1", train_every=before) | {"total_timesteps": 80}
    run_dir = rl_training.train(config, callbacks=[Stop(40)]).run_dir
    count = Count()
    rl_training.resume(run_dir, train_every=after, allow_drift=True, callbacks=[count])
    assert (count.counted, count.stored) == (80, 80)


class Columns(rl_training.Callback):
    """Whether all envs of the first rollout have seen the same."""

    same: bool | None = None

    def on_collect(self, trainer: Any) -> None:
        if self.same is None:
            obs = trainer.buffer.obs
            self.same = bool((obs == obs[:, :1]).all())


@pytest.mark.parametrize(
    ("algo", "num_envs", "change"),
    [
        ("ppo", 1, {"num_envs": 4}),  # one column would do for four, if nobody looked
        ("ppo", 4, {"num_envs": 8}),
        ("ppo", 4, {"num_steps": 32}),
        ("recurrent_ppo", 4, {"sequence_length": 4}),
    ],
)
def test_a_rollout_of_another_shape_is_given_up(
    algo: str, num_envs: int, change: dict[str, Any], tmp_path: Path
) -> None:
    config = settings(tmp_path, algo=algo, num_envs=num_envs, total_timesteps=4 * STEPS)
    run_dir = rl_training.train(config, callbacks=[Stop(STEPS)]).run_dir
    columns = Columns()
    resumed = rl_training.resume(run_dir, allow_drift=True, callbacks=[columns], **change)
    assert resumed.status == "completed"
    assert columns.same is False


def test_a_run_that_had_ended_is_saved_as_it_was(tmp_path: Path) -> None:
    """Killed between its last checkpoint and its end: nothing is trained, and the sampler told nothing."""
    for config in (settings(tmp_path), off_policy(tmp_path, "dqn", "CartPole-v1")):
        run_dir = rl_training.train(config).run_dir
        metadata = json.loads((run_dir / "metadata.json").read_text())
        (run_dir / "metadata.json").write_text(json.dumps({**metadata, "status": "running"}))
        ended = rl_training.resume(run_dir)
        ended.algorithm.save(tmp_path / "saved")
        saved, before = (
            read_checkpoint(path).state["generators"] for path in (tmp_path / "saved", ended.checkpoint_path)
        )
        for name, position in before.items():
            assert torch.equal(saved[name], position), name


def test_what_cannot_be_collected_ahead_is_refused(tmp_path: Path) -> None:
    for more, reason in [
        ({"env": {"backend": "batched"}}, r"collection: 'pipelined' cannot .* env\.backend 'batched'"),
        ({"intrinsic": {"kind": "rnd"}}, r"collection: 'pipelined' cannot .* intrinsic\.kind"),
        ({"collection": "pipelind"}, "collection"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            rl_training.train(settings(tmp_path, **more))
    ready = quick_env()
    with pytest.raises(ConfigError, match="collection: 'pipelined' needs a function that makes the env"):
        rl_training.train(settings(tmp_path, num_envs=1), env=ready)
    assert not list(tmp_path.iterdir())


def test_cartpole_is_learned_from_rollouts_collected_ahead(tmp_path: Path) -> None:
    result = rl_training.train(
        preset="ppo/cartpole", seed=1, output_dir=str(tmp_path), collection="pipelined", num_minibatches=1,
        update_epochs=10, stopping={"target_return": 250.0}, evaluation={"every_steps": 5_000},
        checkpoint={"every_steps": 0}, logging={"tensorboard": False},
    )  # fmt: skip
    assert result.stop_reason is not None
    assert "reached the target" in result.stop_reason


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    def held() -> tuple[list[str], int]:
        gc.collect()
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        return children.read_text().split() if children.exists() else [], len(os.listdir("/proc/self/fd"))

    rl_training.train(settings(tmp_path, total_timesteps=STEPS))
    before = held()
    rl_training.train(settings(tmp_path, total_timesteps=STEPS))
    assert held() == before
