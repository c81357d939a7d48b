"""Action-value networks from a Spec."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from gymnasium import spaces
from torch import nn

from rl_training.errors import ConfigError
from rl_training.policies.activations import ACTIVATIONS
from rl_training.policies.build import (
    build_action_map,
    build_encoder,
    build_normalizer,
    encoded_space,
    is_image_encoder,
)
from rl_training.policies.cores import MLP
from rl_training.policies.encoder_registry import encoder_name
from rl_training.policies.noisy import NoisyLinear
from rl_training.policies.q_heads import C51Head, ImplicitQuantileHead, MakeLinear, QHead, QuantileHead
from rl_training.policies.q_networks import QFunction, QPolicy

if TYPE_CHECKING:
    from rl_training.policies.config import NetworkConfig
    from rl_training.types import Spec

HeadKind = Literal["scalar", "c51", "qr", "iqn"]


def build_q_policy(
    spec: Spec,
    network: NetworkConfig,
    *,
    head: HeadKind = "scalar",
    dueling: bool = False,
    noisy_sigma: float | None = None,
    size: int = 1,
    value_range: tuple[float, float] = (0.0, 1.0),
    huber: bool = True,
    normalize_obs: bool = False,
) -> QPolicy:
    """The greedy policy for an env with Discrete actions. `size`: atoms or quantiles an action."""
    if not isinstance(spec.action_space, spaces.Discrete):
        raise ConfigError(f"action values need Discrete actions, not {spec.action_space}")
    _check(network)
    linear: MakeLinear = nn.Linear if noisy_sigma is None else partial(NoisyLinear, sigma=noisy_sigma)
    space, leaf, masked = encoded_space(spec)
    name = encoder_name(network.encoder)
    encoder = build_encoder(name, space, normalized=normalize_obs)
    is_cnn = is_image_encoder(encoder, name, space)
    hidden = network.hidden if network.hidden is not None else () if is_cnn else (64, 64)
    activation = network.activation or "relu"

    # The last hidden layer is noisy where the head is, and as two side by side where the head is dueling.
    own_branch = bool(hidden) and (dueling or noisy_sigma is not None)
    core = MLP(encoder.out_dim, hidden[:-1] if own_branch else hidden, activation)
    width = hidden[-1] * (2 if dueling else 1) if own_branch else core.out_dim
    branch = linear(core.out_dim, width) if own_branch else None
    q_head = _build_head(
        head, width, int(spec.action_space.n), linear, dueling, own_branch and dueling, size, value_range
    )
    q_head.huber = huber
    return QPolicy(
        QFunction(encoder, core, q_head, branch, ACTIVATIONS[activation]),
        build_action_map(spec.action_space, rescale=False),
        noisy=noisy_sigma is not None,
        normalizer=build_normalizer(spec) if normalize_obs else None,
        masked=masked,
        leaf=leaf,
    )


def _build_head(
    kind: HeadKind,
    in_dim: int,
    num_actions: int,
    linear: MakeLinear,
    dueling: bool,
    split: bool,
    size: int,
    value_range: tuple[float, float],
) -> QHead:
    if kind == "c51":
        c51 = C51Head(in_dim, num_actions, linear, dueling=dueling, split=split, size=size)
        return c51.set_support(*value_range)
    if kind == "qr":
        qr = QuantileHead(in_dim, num_actions, linear, dueling=dueling, split=split, size=size)
        return qr.set_fractions(size)
    if kind == "iqn":
        iqn = ImplicitQuantileHead(in_dim, num_actions, linear, dueling=dueling, split=split)
        return iqn.set_fractions(size)
    return QHead(in_dim, num_actions, linear, dueling=dueling, split=split)


def _check(network: NetworkConfig) -> None:
    """Refuse settings that only an actor with a critic can have."""
    told = {
        "critic_hidden": network.critic_hidden is not None,
        "shared": network.shared is not None,
        "distribution": network.distribution != "auto",
    }
    if wrong := [
        f"network.{key}: is for policies with a critic, not for action values" for key in told if told[key]
    ]:
        raise ConfigError(wrong)
