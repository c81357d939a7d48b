"""The faster-moving tier: what is here works and is tested, but may change in any minor release."""

from rl_training.algorithms.base import Algorithm, Context, OnPolicyAlgorithm, OnPolicyHyperparams
from rl_training.envs.batched import BatchedEnv, register_batched_env
from rl_training.export.data import export_data
from rl_training.export.policy import export_policy
from rl_training.policies.encoder_registry import register_encoder
from rl_training.profiling.profile import profile
from rl_training.registry import register_algorithm

__all__ = [
    "Algorithm",
    "BatchedEnv",
    "Context",
    "OnPolicyAlgorithm",
    "OnPolicyHyperparams",
    "export_data",
    "export_policy",
    "profile",
    "register_algorithm",
    "register_batched_env",
    "register_encoder",
]
