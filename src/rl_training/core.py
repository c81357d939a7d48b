"""The stable tier: what is here follows semantic versioning (see docs/compatibility.md)."""

from rl_training.algorithms.a2c import A2C, A2CConfig
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.algorithms.td3 import DDPG, TD3, DDPGConfig, TD3Config
from rl_training.algorithms.trpo import TRPO, TRPOConfig
from rl_training.api import TrainResult, evaluate, load, resume, train
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import load_config
from rl_training.runtime.callbacks import Callback

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "TRPO",
    "A2CConfig",
    "Callback",
    "DDPGConfig",
    "DQNConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
    "TRPOConfig",
    "TrainConfig",
    "TrainResult",
    "evaluate",
    "load",
    "load_config",
    "resume",
    "train",
]
