"""Update rules: how networks learn from a batch. One readable file each, its config at the top.

Every registered algorithm class can be imported from here; adding a file is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.algorithms.a2c import A2C as A2C
    from rl_training.algorithms.dqn import DQN as DQN
    from rl_training.algorithms.ppo import PPO as PPO
    from rl_training.algorithms.sac import SAC as SAC
    from rl_training.algorithms.td3 import DDPG as DDPG
    from rl_training.algorithms.td3 import TD3 as TD3
    from rl_training.algorithms.trpo import TRPO as TRPO


def __getattr__(name: str) -> Any:
    if not name[0].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rl_training import registry

    classes = {entry.cls.__name__: entry.cls for entry in registry.algorithms().values()}
    if name not in classes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; algorithms: {sorted(classes)}")
    return classes[name]
