"""d3rlpy as a contender: online, though it is made for data that is there already."""

from __future__ import annotations

import itertools
from typing import Any

from pace import FOREVER, Job, Meter


def d3rlpy(job: Job, meter: Meter) -> None:
    """Train with `fit_online`; nothing is logged."""
    import gymnasium as gym
    import torch
    from d3rlpy import algos
    from d3rlpy.dataset import create_fifo_replay_buffer
    from d3rlpy.logging import NoopAdapterFactory
    from d3rlpy.models.encoders import VectorEncoderFactory

    torch.set_num_threads(job.threads)
    encoder = VectorEncoderFactory(list(job.hidden))
    if job.algo == "dqn":
        config: Any = algos.DQNConfig(
            batch_size=job.batch_size, encoder_factory=encoder, target_update_interval=1_000
        )
        explorer: Any = algos.ConstantEpsilonGreedy(0.05)
    else:
        kind = {"sac": algos.SACConfig, "td3": algos.TD3Config}[job.algo]
        encoders = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
        config = kind(batch_size=job.batch_size, **encoders)
        explorer = algos.NormalNoise(std=0.1) if job.algo == "td3" else None
    algorithm = config.create(device="cpu:0")
    env = gym.make(job.env_id)
    steps = itertools.count(job.learning_starts)

    algorithm.build_with_env(env)
    update = algorithm.update

    def measured(batch: Any) -> Any:
        meter.collected()
        result = update(batch)
        meter.boundary(next(steps))
        return result

    algorithm.update = measured
    algorithm.fit_online(
        env,
        create_fifo_replay_buffer(job.buffer_size, env=env),
        explorer=explorer,
        n_steps=FOREVER,
        n_steps_per_epoch=FOREVER,
        update_start_step=job.learning_starts,
        random_steps=job.learning_starts,
        logging_steps=FOREVER,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
    )
