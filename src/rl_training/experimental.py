"""The faster-moving tier: what is here works and is tested, but may change in any minor release."""

from rl_training.algorithms.base import Algorithm, Context, OnPolicyAlgorithm, OnPolicyHyperparams
from rl_training.policies.encoder_registry import register_encoder
from rl_training.registry import register_algorithm

__all__ = [
    "Algorithm",
    "Context",
    "OnPolicyAlgorithm",
    "OnPolicyHyperparams",
    "register_algorithm",
    "register_encoder",
]
