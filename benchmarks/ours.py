"""This package as a contender, and the envs alone as its ceiling."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from pace import FOREVER, Job, Meter, experience, resident

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


def axiomrl(job: Job, meter: Meter) -> None:
    """Train; what a run writes on its way (evaluations, checkpoints) is off, its metrics are on."""
    import rl_training
    from turns import merged

    class Pace(rl_training.Callback):
        def on_collect(self, trainer: Trainer) -> None:
            meter.collected()

        def on_update(self, trainer: Trainer) -> None:
            meter.boundary(trainer.global_step)

    common: dict[str, Any] = {
        "algo": job.algo,
        "env_id": job.env_id,
        "num_envs": job.num_envs,
        "total_timesteps": FOREVER,
        "device": "cpu",
        "threads": job.threads,
        **({"network": {"hidden": list(job.hidden)}} if job.hidden else {}),
        "hyperparams": hyperparams(job),
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
        "logging": {"every_steps": 10_000, "tensorboard": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        rl_training.train(**merged(common, job.settings), output_dir=folder, callbacks=[Pace()])


def hyperparams(job: Job) -> dict[str, Any]:
    """The job in our words."""
    if job.is_on_policy:
        return {
            "num_steps": job.num_steps,
            "update_epochs": job.epochs,
            "num_minibatches": job.minibatches,
        }
    found = {
        "batch_size": job.batch_size,
        "buffer_size": job.buffer_size,
        "learning_starts": job.learning_starts,
        "train_every": 1,
        "gradient_steps": 1,
    }
    return {**found, "exploration_initial": 0.05} if job.algo == "dqn" else found


def bare_envs(job: Job, meter: Meter) -> None:
    """The envs alone, one after the other in a plain loop, as Gymnasium makes them."""
    import gymnasium as gym

    envs = [gym.make(job.env_id) for _ in range(job.num_envs)]
    for number, env in enumerate(envs):
        env.reset(seed=number)
        env.action_space.seed(number)
    actions = [env.action_space.sample() for env in envs for _ in range(1 + 256 // job.num_envs)]
    steps = 0
    while True:
        for turn in range(0, len(actions), job.num_envs):
            for env, action in zip(envs, actions[turn : turn + job.num_envs], strict=False):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
                steps += 1
        meter.boundary(steps)


def vector_envs(job: Job, meter: Meter) -> None:
    """The envs alone, in Gymnasium's own vector of them."""
    import gymnasium as gym

    envs = gym.make_vec(job.env_id, job.num_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(1 + 256 // job.num_envs)]
    steps = 0
    while True:
        for action in actions:
            envs.step(action)
        steps += job.num_envs * len(actions)
        meter.boundary(steps)


def replay(job: Job, meter: Meter, *, prioritized: bool = False) -> None:
    """Our replay buffer, full: one step of all envs goes in, one batch comes out (and its priorities in)."""
    import gymnasium as gym
    import numpy as np
    import torch

    from rl_training.data.layout import rollout_layout
    from rl_training.data.replay_buffer import ReplayBuffer
    from rl_training.data.samplers import PrioritizedSampler, UniformSampler
    from rl_training.types import Spec, StepResult

    torch.set_num_threads(job.threads)
    env = gym.make(job.env_id)
    before = resident()
    buffer = ReplayBuffer(
        job.buffer_size, job.num_envs, rollout_layout(Spec(env.observation_space, env.action_space))
    )
    no = np.zeros(job.num_envs, bool)
    steps = [
        (torch.from_numpy(actions), StepResult(following, rewards, over, no, ended, following[ended]))
        for actions, _, following, rewards, over, ended in experience(job)
    ]
    buffer.begin(steps[0][1].obs)
    for number in range(-(-job.buffer_size // job.num_envs)):
        buffer.add(*steps[number % len(steps)])
    meter.extra["bytes_per_transition"] = float(buffer.bytes_per_transition)
    meter.extra["buffer_bytes"] = float(resident() - before)
    sampler = UniformSampler(buffer, gamma=0.99)
    if prioritized:
        sampler = PrioritizedSampler(buffer, gamma=0.99)
        started = buffer.starts.flatten().nonzero().flatten().numpy()
        sampler.tree.set(started, np.random.default_rng(0).random(len(started)))
        meter.extra["buffer_bytes"] = float(resident() - before)
    generator = torch.Generator().manual_seed(0)
    count = 0
    while True:
        sampler.written(buffer.add(*steps[count % len(steps)]))
        meter.collected()
        batch = sampler.sample(job.batch_size, generator)
        if prioritized:
            sampler.update_priorities(batch.index, batch.rewards)
        count += 1
        meter.boundary(count)


def prioritized_replay(job: Job, meter: Meter) -> None:
    """The same with draws by priority."""
    replay(job, meter, prioritized=True)
