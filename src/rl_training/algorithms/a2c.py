"""Advantage Actor-Critic (Mnih et al. 2016), synchronous: one gradient step on each short rollout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl_training.algorithms.policy_gradient import PolicyGradient, PolicyGradientHyperparams
from rl_training.algorithms.rmsprop import RMSprop
from rl_training.functional.losses import a2c_loss
from rl_training.registry import register_algorithm
from rl_training.schema import Bool, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, config
from rl_training.types import RolloutBatch

__all__ = ["A2C", "A2CConfig", "a2c_loss"]


@config
class A2CConfig(PolicyGradientHyperparams):
    """Hyperparameters of A2C."""

    num_steps: PositiveInt = 5
    """Steps collected in each env before an update."""
    num_minibatches: PositiveInt = 1
    """Always 1: A2C makes one step on the whole rollout."""
    update_epochs: PositiveInt = 1
    """Always 1: A2C sees each rollout once."""
    gae_lambda: Fraction = 1.0
    """λ of generalised advantage estimation; 1 is the n-step return."""
    learning_rate: PositiveFloat = 7e-4
    """RMSprop's step size."""
    rmsprop_alpha: Fraction = 0.99
    """How much of RMSprop's mean square is kept at each step."""
    rmsprop_eps: PositiveFloat = 1e-5
    """RMSprop's ε, under the square root."""
    vf_coef: NonNegativeFloat = 1.0
    """Weight of the value loss, which has a factor ½ of its own."""
    normalize_advantages: Bool = False
    """Shift and scale the advantages of each rollout to mean 0 and deviation 1."""


@register_algorithm(
    "a2c",
    tier="core",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    summary="Advantage Actor-Critic: one step on each short rollout",
    num_minibatches=1,
    update_epochs=1,
)
class A2C(PolicyGradient):
    """A2C for any supported observation and action space."""

    Hyperparams = A2CConfig
    hyperparams: A2CConfig
    optimizer_name = "rmsprop"

    def make_optimizer(self, parameters: Sequence[Tensor], learning_rate: Tensor) -> RMSprop:
        """RMSprop in TensorFlow's form."""
        return RMSprop(
            parameters, learning_rate, self.hyperparams.rmsprop_alpha, self.hyperparams.rmsprop_eps
        )

    def losses(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """The policy gradient's loss of a rollout, and what it is made of."""
        return a2c_loss(self.minibatch(batch), self.ent_coef, self.hyperparams.vf_coef)
