"""The `env` section: how environments are stepped and what is wrapped around them."""

from __future__ import annotations

from typing import Literal

from rl_training.schema import Bool, NonNegativeInt, PositiveFloat, PositiveInt, config

BackendName = Literal["auto", "sync", "async", "native"]


@config
class EnvConfig:
    """Backend, wrappers and normalisation. Everything here is applied the same way in every backend."""

    backend: BackendName = "auto"
    """sync: one process; async: a process an env; native: many at once, CartPole only; auto: sync."""
    worker_timeout: PositiveFloat = 60.0
    """Seconds after which an async worker that does not answer is reported as hung."""
    max_worker_restarts: NonNegativeInt = 0
    """Restart async workers that die, hang or raise this often in all; their episodes are truncated."""
    frame_skip: PositiveInt = 1
    """Repeat each action this many times and sum the rewards; one agent step."""
    frame_stack: PositiveInt = 1
    """Stack the last n observations along a new first axis (images: along the channels)."""
    grayscale: Bool = False
    """Turn RGB images into one grey channel."""
    resize: tuple[PositiveInt, PositiveInt] | None = None
    """Resize images to (height, width)."""
    max_episode_steps: PositiveInt | None = None
    """Time limit in agent steps; null: the env's registered limit."""
    normalize_obs: Bool = False
    """Normalise observations by running statistics that live in the policy and are saved with it."""
    normalize_reward: Bool = False
    """Divide the learner's rewards by the running deviation of the discounted return."""
    clip_reward: PositiveFloat | None = None
    """Clip the learner's rewards to [-c, c]. Episode statistics always use raw rewards."""
    reward_scale: PositiveFloat = 1.0
    """Multiply the learner's rewards. Episode statistics always use raw rewards."""
