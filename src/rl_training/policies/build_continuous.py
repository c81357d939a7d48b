"""Actors and critic ensembles of off-policy actor-critics, from a Spec."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from rl_training.errors import ConfigError
from rl_training.policies.actors import Actor, CategoricalActor, DeterministicActor, GaussianActor
from rl_training.policies.batch_renorm import RenormMLP
from rl_training.policies.build import build_action_map, build_encoder, build_normalizer, encoded_space
from rl_training.policies.cores import MLP
from rl_training.policies.critics import CriticEnsemble, Norm
from rl_training.policies.encoder_registry import encoder_name

if TYPE_CHECKING:
    from rl_training.policies.config import NetworkConfig
    from rl_training.types import Spec

ActorT = TypeVar("ActorT", bound=Actor)
DEFAULT_HIDDEN = (256, 256)


def build_deterministic_actor(
    spec: Spec, network: NetworkConfig, *, normalize_obs: bool = False
) -> DeterministicActor:
    """The actor of TD3 and DDPG."""
    if network.distribution != "auto":
        raise ConfigError(
            f"network.distribution: {network.distribution!r} does not fit a deterministic policy; use 'auto'"
        )
    return _build(DeterministicActor, spec, network, action_size(spec), normalize_obs)


def build_gaussian_actor(
    spec: Spec, network: NetworkConfig, *, normalize_obs: bool = False, batch_renorm: bool = False
) -> GaussianActor:
    """The actor of SAC and its relatives."""
    if network.distribution not in ("auto", "squashed_gaussian"):
        raise ConfigError(
            f"network.distribution: {network.distribution!r} is not for this algorithm, whose policy is a "
            "squashed_gaussian"
        )
    size = action_size(spec)
    actor = _build(GaussianActor, spec, network, 2 * size, normalize_obs, batch_renorm=batch_renorm)
    with torch.no_grad():
        actor.head.bias[size:] += network.log_std_init
    return actor


def build_categorical_actor(
    spec: Spec, network: NetworkConfig, *, normalize_obs: bool = False
) -> CategoricalActor:
    """The actor of discrete SAC."""
    return _build(CategoricalActor, spec, network, num_choices(spec), normalize_obs)


def build_critics(
    spec: Spec,
    network: NetworkConfig,
    encoder: nn.Module,
    *,
    num_critics: int,
    out_dim: int = 1,
    norm: Norm = "none",
) -> CriticEnsemble:
    """Critics over an encoder's features; of Box actions too, which they read beside the features."""
    features: int = encoder.out_dim  # type: ignore[assignment]
    actions = action_size(spec) if isinstance(spec.action_space, spaces.Box) else 0
    hidden = DEFAULT_HIDDEN if network.hidden is None else network.hidden
    critics = CriticEnsemble(
        num_critics,
        features + actions,
        hidden if network.critic_hidden is None else network.critic_hidden,
        out_dim,
        activation=network.activation or "relu",
        norm=norm,
    )
    if network.orthogonal_init:
        critics.init_orthogonal()
    return critics


def action_size(spec: Spec) -> int:
    """Components of a Box action; refuses actions that cannot be rescaled to [-1, 1]."""
    space = spec.action_space
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(f"this algorithm needs Box actions of floats, not {space}")
    if not space.is_bounded():
        raise ConfigError(f"this algorithm needs actions with finite bounds, not {space}")
    return math.prod(space.shape)


def num_choices(spec: Spec) -> int:
    """Choices of a Discrete action."""
    if not isinstance(spec.action_space, spaces.Discrete):
        raise ConfigError(f"this algorithm needs Discrete actions, not {spec.action_space}")
    return int(spec.action_space.n)


def _build(
    kind: type[ActorT],
    spec: Spec,
    network: NetworkConfig,
    outputs: int,
    normalize_obs: bool,
    *,
    batch_renorm: bool = False,
) -> ActorT:
    space, leaf, masked = encoded_space(spec)
    encoder = build_encoder(encoder_name(network.encoder), space, normalized=normalize_obs)
    if network.shared is False and next(encoder.parameters(), None) is not None:
        raise ConfigError("network.shared: off-policy actors read the encoder that their critics train")
    core_class = RenormMLP if batch_renorm else MLP
    hidden = DEFAULT_HIDDEN if network.hidden is None else network.hidden
    actor = kind(
        encoder=encoder,
        core=core_class(encoder.out_dim, hidden, network.activation or "relu"),
        outputs=outputs,
        action_map=build_action_map(spec.action_space, rescale=True),
        action_shape=tuple(spec.action_space.shape or ()),
        normalizer=build_normalizer(spec) if normalize_obs else None,
        masked=masked,
        leaf=leaf,
    )
    if network.orthogonal_init:
        _init_orthogonal(actor)
    return actor


def _init_orthogonal(actor: Actor) -> None:
    """Orthogonal weights, zero biases: gain √2 in hidden layers, 0.01 in the last (actions near 0)."""
    layers = [(layer, math.sqrt(2.0)) for layer in actor.core.layers]
    for layer, gain in [*layers, (actor.head, 0.01)]:
        assert isinstance(layer, nn.Linear)
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
