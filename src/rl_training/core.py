"""The stable tier: what is here follows semantic versioning (see docs/compatibility.md)."""

from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.api import TrainResult, evaluate, load, resume, train
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.runtime.callbacks import Callback

__all__ = [
    "PPO",
    "Callback",
    "PPOConfig",
    "TrainConfig",
    "TrainResult",
    "evaluate",
    "load",
    "load_config",
    "resume",
    "train",
]
