"""PPO with a memory: an LSTM or GRU reads the observations, and learns from sequences in order of time."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rl_training.algorithms.base import Context
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.build import build_actor_critic
from rl_training.policies.memory import MemorySize
from rl_training.policies.recurrent import RecurrentActorCritic
from rl_training.registry import register_algorithm
from rl_training.schema import PositiveInt, config
from rl_training.types import RolloutBatch

__all__ = ["RecurrentPPO", "RecurrentPPOConfig"]


@config
class RecurrentPPOConfig(PPOConfig):
    """Hyperparameters of recurrent PPO: PPO's, and the memory."""

    core: Literal["lstm", "gru"] = "lstm"
    """What remembers: an LSTM (the faster on CPUs) or a GRU."""
    hidden_size: PositiveInt = 64
    """Numbers in the memory's state, in each layer."""
    num_layers: PositiveInt = 1
    """Recurrent layers on top of each other."""
    sequence_length: PositiveInt | None = None
    """Steps over which gradients flow back; num_steps must be divisible by it; null: the whole rollout."""

    @property
    def steps_a_sequence(self) -> int:
        """`sequence_length`, or what null stands for."""
        return self.num_steps if self.sequence_length is None else self.sequence_length

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        length = self.steps_a_sequence
        if self.num_steps % length:
            return [f"hyperparams.sequence_length: {length} does not divide num_steps = {self.num_steps}"]
        sequences = self.num_steps // length * num_envs
        if sequences % self.num_minibatches:
            return [
                f"hyperparams.num_minibatches: {self.num_minibatches} does not divide the {sequences} "
                f"sequences of a rollout (num_envs {num_envs} * num_steps {self.num_steps} / "
                f"sequence_length {length})"
            ]
        return super().problems(num_envs)


@register_algorithm(
    "recurrent_ppo",
    tier="contrib",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    summary="PPO with an LSTM or GRU, for what a single observation does not tell",
)
class RecurrentPPO(PPO):
    """PPO whose policy has a state: what it has seen in the episode so far."""

    Hyperparams = RecurrentPPOConfig
    hyperparams: RecurrentPPOConfig
    policy: RecurrentActorCritic
    eager_only = alone_only = "sequences are cut where episodes begin, so their shapes change"

    def build(self, context: Context) -> None:
        """PPO's networks with a memory; the trainer is asked for sequences."""
        super().build(context)
        self.sequence_length = self.hyperparams.steps_a_sequence

    def build_policy(self, context: Context) -> ActorCritic:
        """An actor-critic that remembers."""
        hp = self.hyperparams
        memory = MemorySize(hp.core, hp.hidden_size, hp.num_layers)
        return build_actor_critic(
            context.spec, context.network, normalize_obs=context.normalize_obs, memory=memory
        )

    def evaluate_actions(self, batch: RolloutBatch) -> tuple[Tensor, Tensor, Tensor]:
        """As the policy would have it now, step after step from the state each sequence began in."""
        return self.policy.evaluate_actions(batch.obs, batch.actions, batch.state, batch.episode_starts)
