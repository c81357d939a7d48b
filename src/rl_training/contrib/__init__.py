"""Algorithms that add state or edge cases to the core contract."""

from rl_training.contrib.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig

__all__ = ["RecurrentPPO", "RecurrentPPOConfig"]
