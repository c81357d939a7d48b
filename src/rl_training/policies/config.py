"""The `network` section: what networks are built. Read by `policies/build.py` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import BeforeValidator

from rl_training.policies.encoder_registry import encoder_name
from rl_training.schema import Bool, Float, NonNegativeInt, PositiveFloat, PositiveInt, config

if TYPE_CHECKING:
    from torch import nn

    EncoderChoice: TypeAlias = str | type[nn.Module]
else:
    # A class may be passed; what is kept is its name, so that a config can always be written to a file.
    EncoderChoice = Annotated[str, BeforeValidator(encoder_name)]


@config
class IntrinsicConfig:
    """A reward for novelty, added to the learner's rewards of on-policy algorithms."""

    kind: Literal["none", "rnd"] = "none"
    """none, or rnd: random network distillation."""
    coef: PositiveFloat = 1.0
    """Weight of the bonus, after it has been divided by the running deviation of its discounted return."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's step size, for the predictor."""
    update_steps: PositiveInt = 4
    """Steps of the predictor after each rollout, each on all of it."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers after the encoder."""
    features: PositiveInt = 64
    """How many numbers are predicted of an observation."""


@config
class NetworkConfig:
    """Encoder, widths and initialisation. `null` means: chosen from the observation space."""

    encoder: EncoderChoice = "auto"
    """auto, mlp, nature_cnn, impala_cnn, drq_cnn, drq_cnn_small, dict, or the registered name (in Python: the
    class) of your own."""
    hidden: tuple[PositiveInt, ...] | None = None
    """Widths of the hidden layers after the encoder; null: 64, 64 for vectors and Dicts, none after a CNN."""
    critic_hidden: tuple[PositiveInt, ...] | None = None
    """Widths of the critic's own hidden layers; null: as `hidden`, and shared where `shared` says so."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] | None = None
    """Activation of the hidden layers; null: tanh (ReLU inside the CNNs)."""
    shared: Bool | None = None
    """Actor and critic share encoder and hidden layers; null: shared for images, separate for vectors."""
    orthogonal_init: Bool | None = None
    """Orthogonal weights, or torch's defaults; null: orthogonal for on-policy algorithms only."""
    distribution: Literal["auto", "gaussian", "squashed_gaussian", "state_dependent"] = "auto"
    """Distribution over Box actions; auto: gaussian. Other action spaces have one natural choice."""
    log_std_init: Float = 0.0
    """Initial log standard deviation of Gaussian policies."""
    sde_sample_freq: NonNegativeInt = 4
    """Steps for which state-dependent noise is kept before it is drawn anew; 0: a whole episode."""
