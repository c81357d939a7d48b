"""Actors and critics of pixel control, from a Spec."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from torch import nn

from rl_training.policies.actors import DeterministicActor
from rl_training.policies.build import encoded_space, image_layouts
from rl_training.policies.build_continuous import action_size, build_deterministic_actor
from rl_training.policies.pixels import RandomShift, TrunkCritics, TrunkMLP

if TYPE_CHECKING:
    from rl_training.policies.config import NetworkConfig
    from rl_training.types import Spec

DEFAULT_HIDDEN = (1024, 1024)


def build_pixel_actor(
    spec: Spec, network: NetworkConfig, *, trunk: int, normalize_obs: bool = False
) -> DeterministicActor:
    """A deterministic actor with a trunk; `auto` is DrQ-v2's encoder where there are images."""
    hidden = DEFAULT_HIDDEN if network.hidden is None else network.hidden
    encoder = network.encoder
    if encoder == "auto" and image_layouts(encoded_space(spec)[0]):
        encoder = "drq_cnn"
    chosen = dataclasses.replace(network, encoder=encoder, hidden=hidden, orthogonal_init=False)
    actor = build_deterministic_actor(spec, chosen, normalize_obs=normalize_obs)
    features: int = actor.encoder.out_dim  # type: ignore[assignment]
    actor.core = TrunkMLP(features, trunk, hidden, network.activation or "relu")
    if network.orthogonal_init is not False:
        init_orthogonal(actor)
    return actor


def build_pixel_critics(
    spec: Spec, network: NetworkConfig, encoder: nn.Module, *, num_critics: int, trunk: int
) -> TrunkCritics:
    """Critics over an encoder's features, with a trunk that they share."""
    features: int = encoder.out_dim  # type: ignore[assignment]
    hidden = DEFAULT_HIDDEN if network.hidden is None else network.hidden
    critics = TrunkCritics(
        num_critics,
        features,
        action_size(spec),
        trunk,
        hidden if network.critic_hidden is None else network.critic_hidden,
        network.activation or "relu",
    )
    if network.orthogonal_init is not False:
        critics.init_orthogonal()
        init_orthogonal(critics)
    return critics


def build_random_shift(spec: Spec, pad: int) -> RandomShift:
    """Shifts for every image of the observation, wherever it keeps its channels."""
    return RandomShift(image_layouts(spec.observation_space), pad)


def init_orthogonal(module: nn.Module) -> None:
    """Orthogonal weights, zero biases: gain √2 in convolutions, 1 elsewhere."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(part.weight, math.sqrt(2.0) if isinstance(part, nn.Conv2d) else 1.0)
            assert part.bias is not None
            nn.init.zeros_(part.bias)
