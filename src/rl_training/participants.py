"""Who takes part in training besides the loop: envs, a sampler that has them, other learners."""

from __future__ import annotations

import dataclasses
import warnings
from functools import partial
from pathlib import Path

import gymnasium
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.assembly import Session, require_same_spaces
from rl_training.envs import make_vector_env
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.averaging import Seat
from rl_training.runtime.device import available_threads
from rl_training.runtime.nowhere import Nowhere, never
from rl_training.runtime.off_policy import OffPolicyTrainer  # noqa: F401 - registers its family
from rl_training.runtime.on_policy import OnPolicyTrainer  # noqa: F401 - registers its family
from rl_training.runtime.random import derive_seed
from rl_training.runtime.sampler import Sampler
from rl_training.runtime.sampler_process import Recipe
from rl_training.runtime.team import Team
from rl_training.runtime.trainer import LoopSettings, Trainer, reward_settings


def training_envs(session: Session, algorithm: Algorithm) -> VectorEnv:
    """The envs that a session trains in: here, or in the hands of a sampler that collects meanwhile.

    Of several learners that train together, these are the first one's.
    """
    config = session.config
    if config.collection == "serial":
        count = config.num_envs // config.learners
        envs = make_vector_env(config, count, env=session.env, device=session.context.device)
    else:
        envs = Sampler(_recipe(session, algorithm), algorithm)
    try:
        require_same_spaces(session.spec, envs.spec, config.env_id)
    except BaseException:
        envs.close()
        raise
    return envs


def other_learners(session: Session, algorithm: Algorithm) -> Team | None:
    """The processes that train together with this one, if there are to be any."""
    config = session.config
    if config.learners == 1:
        return None
    if algorithm.context.device.type != "cpu":
        raise ConfigError(
            f"learners: {config.learners} train together on a CPU only, not on {algorithm.context.device}; "
            "use device: cpu, or learners: 1"
        )
    if isinstance(session.env, gymnasium.Env):
        raise ConfigError("learners: several need a function that makes the env, not a ready-made one")
    if config.learners > (cores := available_threads()):
        warnings.warn(f"learners: {config.learners} wait for each other on {cores} core(s)", stacklevel=3)
    alone = dataclasses.replace(session, state=None)
    return Team(
        config.learners - 1,
        algorithm,
        lambda number: partial(_other_learner, type(algorithm), alone, number),
        deterministic=config.deterministic,
    )


def _other_learner(cls: type[Algorithm], session: Session, number: int, seat: Seat) -> Trainer:
    """The trainer of one of the others: the same algorithm in other episodes, with other random numbers."""
    seed = derive_seed(session.config.seed, "learner", number)
    config = dataclasses.replace(session.config, seed=seed)
    algorithm = cls.from_context(session.context)
    envs = make_vector_env(config, config.num_envs // config.learners, env=session.env)
    nowhere = Nowhere()
    return Trainer.families[algorithm.family](
        algorithm, envs, loop_settings(config), metrics=nowhere, checkpoints=nowhere, evaluator=never,
        seat=seat,
    )  # fmt: skip


def _recipe(session: Session, algorithm: Algorithm) -> Recipe:
    """What a sampler needs to make the same envs and the same kind of policy, on the CPU."""
    config = session.config
    if isinstance(session.env, gymnasium.Env):
        raise ConfigError("collection: 'pipelined' needs a function that makes the env, not a ready-made one")
    on_cpu = dataclasses.replace(session.context, device=torch.device("cpu"))
    return Recipe(
        config.env_id,
        config.num_envs,
        config.seed,
        config.deterministic,
        reward_settings(loop_settings(config), algorithm),
        make_envs=partial(make_vector_env, config, env=session.env),
        make_algorithm=partial(type(algorithm).from_context, on_cpu),
    )


def loop_settings(config: TrainConfig, *, scratch: Path | None = None) -> LoopSettings:
    """What the loop needs of a configuration."""
    return LoopSettings(
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        log_every=config.logging.every_steps,
        on_nan=config.on_nan,
        compile=config.compile,
        reward_scale=config.env.reward_scale,
        normalize_reward=config.env.normalize_reward,
        clip_reward=config.env.clip_reward,
        frame_stack=config.env.frame_stack,
        intrinsic=config.intrinsic,
        scratch=scratch,
    )
