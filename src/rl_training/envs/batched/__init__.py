"""Envs as tensors: many copies stepped by a few operations, on the CPU or on a GPU, never read by the host.

`BatchedEnv` is what a user writes, `BatchedVectorEnv` what trains on it, `classic` what ships.
"""

from rl_training.envs.batched.env import BatchedEnv, State, register_batched_env
from rl_training.envs.batched.random import Uniform, fork
from rl_training.envs.batched.vector import BatchedVectorEnv

__all__ = ["BatchedEnv", "BatchedVectorEnv", "State", "Uniform", "fork", "register_batched_env"]
