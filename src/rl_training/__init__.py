"""AxiomRL: reinforcement learning in PyTorch that you can install, run, trust, reproduce and read.

The public names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Threads of torch that wait for each other keep their cores busy for milliseconds: where other processes want
# these too, several threads are slower than one, by far. GNU's OpenMP reads this when torch is loaded. A
# thousand turns take some 25 microseconds, which is enough between two operations.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"

_EXPORTS = {
    "TrainConfig": "rl_training.experiment.config",
    "load_config": "rl_training.experiment.layers",
    "TrainResult": "rl_training.api",
    "train": "rl_training.api",
    "resume": "rl_training.api",
    "evaluate": "rl_training.api",
    "load": "rl_training.api",
    "export_policy": "rl_training.export.policy",
    "export_data": "rl_training.export.data",
    "profile": "rl_training.profiling.profile",
    "Callback": "rl_training.runtime.callbacks",
    "make_vector_env": "rl_training.envs",
    "register_algorithm": "rl_training.registry",
    "register_encoder": "rl_training.policies.encoder_registry",
    "AxiomError": "rl_training.errors",
}

if TYPE_CHECKING:
    from rl_training.algorithms.a2c import A2C as A2C
    from rl_training.algorithms.dqn import DQN as DQN
    from rl_training.algorithms.ppo import PPO as PPO
    from rl_training.algorithms.sac import SAC as SAC
    from rl_training.algorithms.td3 import DDPG as DDPG
    from rl_training.algorithms.td3 import TD3 as TD3
    from rl_training.algorithms.trpo import TRPO as TRPO
    from rl_training.api import TrainResult as TrainResult
    from rl_training.api import evaluate as evaluate
    from rl_training.api import load as load
    from rl_training.api import resume as resume
    from rl_training.api import train as train
    from rl_training.envs import make_vector_env as make_vector_env
    from rl_training.errors import AxiomError as AxiomError
    from rl_training.experiment.config import TrainConfig as TrainConfig
    from rl_training.experiment.layers import load_config as load_config
    from rl_training.export.data import export_data as export_data
    from rl_training.export.policy import export_policy as export_policy
    from rl_training.policies.encoder_registry import register_encoder as register_encoder
    from rl_training.profiling.profile import profile as profile
    from rl_training.registry import register_algorithm as register_algorithm
    from rl_training.runtime.callbacks import Callback as Callback


def __getattr__(name: str) -> Any:
    from importlib import import_module

    from rl_training.garbage import importing_torch

    if name not in _EXPORTS and not name[0].isupper():  # algorithm classes are capitalised, submodules not
        raise AttributeError(f"module 'rl_training' has no attribute {name!r}")
    with importing_torch():
        module = import_module(_EXPORTS.get(name, "rl_training.algorithms"))
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module 'rl_training' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
