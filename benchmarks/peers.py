"""Other libraries as contenders, with the settings of a job and otherwise as they come."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pace import FOREVER, Job, Meter, experience, resident


def sb3(job: Job, meter: Meter) -> None:
    """Train with Stable-Baselines3."""
    import stable_baselines3
    import torch

    torch.set_num_threads(job.threads)
    train(stable_baselines3, job, meter)


def sbx(job: Job, meter: Meter) -> None:
    """Train with SBX: Stable-Baselines3's loop and buffers around updates in JAX, compiled as it comes."""
    import sbx as module
    import torch

    torch.set_num_threads(job.threads)
    train(module, job, meter)


def train(module: ModuleType, job: Job, meter: Meter) -> None:
    """Both have the same interface."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Pace(BaseCallback):  # type: ignore[misc]
        def _on_rollout_start(self) -> None:  # the iteration before is over
            meter.boundary(self.num_timesteps)

        def _on_rollout_end(self) -> None:
            meter.collected()

        def _on_step(self) -> bool:
            return True

    model(module, job).learn(FOREVER, callback=Pace())


def model(module: ModuleType, job: Job, **options: Any) -> Any:
    """The algorithm of a job with its settings."""
    cls = getattr(module, job.algo.upper())
    policy = "CnnPolicy" if job.env_id.startswith("ALE/") else "MlpPolicy"
    network = {"policy_kwargs": {"net_arch": list(job.hidden)}} if job.hidden else {}
    options = {"device": "cpu", "seed": 0, **network, **hyperparams(job), **options}
    return cls(policy, vector_env(job), **options)


def train_until(
    name: str,
    job: Job,
    *,
    target: float,
    steps: int,
    every: int,
    episodes: int,
    side_by_side: int,
    **options: Any,
) -> tuple[int, float]:
    """Train until an evaluation reaches `target`, with their own callbacks: the steps and the last mean."""
    import importlib

    import gymnasium as gym
    import torch
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(job.threads)
    evaluations = EvalCallback(
        DummyVecEnv([lambda: Monitor(gym.make(job.env_id))] * side_by_side),
        callback_on_new_best=StopTrainingOnRewardThreshold(target, verbose=0),
        n_eval_episodes=episodes,
        eval_freq=every // job.num_envs,
        verbose=0,
        warn=False,
    )
    trained = model(importlib.import_module(name.replace("-", "_")), job, **options)
    trained.learn(steps, callback=evaluations)
    return trained.num_timesteps, float(evaluations.last_mean_reward)


def falling(start: float) -> Callable[[float], float]:
    """A schedule that falls to zero on a line."""
    return lambda remaining: start * remaining


def vector_env(job: Job) -> Any:
    """The envs in one process, as the library makes them."""
    import gymnasium as gym
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    if job.env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        games = {"frameskip": 1, "repeat_action_probability": 0.0}
        return VecFrameStack(make_atari_env(job.env_id, job.num_envs, seed=0, env_kwargs=games), 4)
    return DummyVecEnv([lambda: gym.make(job.env_id)] * job.num_envs)


def hyperparams(job: Job) -> dict[str, Any]:
    """The job in their words."""
    if job.is_on_policy:
        found = {
            "n_steps": job.num_steps,
            "batch_size": job.num_steps * job.num_envs // job.minibatches,
            "n_epochs": job.epochs,
            "clip_range_vf": 0.2,  # SBX takes it and does without
        }
        games = {"learning_rate": 2.5e-4, "clip_range": 0.1, "clip_range_vf": 0.1, "ent_coef": 0.01}
        return {**found, **games} if job.env_id.startswith("ALE/") else found
    found = {
        "batch_size": job.batch_size,
        "buffer_size": job.buffer_size,
        "learning_starts": job.learning_starts,
        "train_freq": 1,
        "gradient_steps": 1,
    }
    # While they explore at random they ask no network: as many random actions for all.
    return {**found, "exploration_initial_eps": 0.05} if job.algo == "dqn" else found


def sb3_replay(job: Job, meter: Meter) -> None:
    """Stable-Baselines3's replay buffer, full (SBX has the same): one step goes in, one batch comes out."""
    import gymnasium as gym
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer

    torch.set_num_threads(job.threads)
    env = gym.make(job.env_id)
    before = resident()
    buffer = ReplayBuffer(
        job.buffer_size, env.observation_space, env.action_space, device="cpu", n_envs=job.num_envs
    )
    infos: list[dict[str, Any]] = [{}] * job.num_envs
    steps = [
        (obs, following, actions, rewards, over, infos)
        for actions, obs, following, rewards, over, _ in experience(job)
    ]
    for number in range(job.buffer_size // job.num_envs):
        buffer.add(*steps[number % len(steps)])
    meter.extra["buffer_bytes"] = float(resident() - before)
    count = 0
    while True:
        buffer.add(*steps[count % len(steps)])
        meter.collected()
        buffer.sample(job.batch_size)
        count += 1
        meter.boundary(count)
