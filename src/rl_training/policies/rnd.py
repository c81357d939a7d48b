"""Networks of random network distillation: a frozen random one and one that learns to agree with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.policies.base import Reader
from rl_training.policies.build import build_encoder, build_normalizer, encoded_space
from rl_training.policies.cores import MLP
from rl_training.policies.normalizer import ObsNormalizer

if TYPE_CHECKING:
    from rl_training.policies.config import IntrinsicConfig
    from rl_training.types import Spec, TensorObs


class RNDNetworks(Reader):
    """How wrong the predictor is about each observation, which is how unfamiliar the observation is."""

    def __init__(
        self,
        target: nn.Module,
        predictor: nn.Module,
        normalizer: ObsNormalizer | None,
        *,
        masked: bool,
        leaf: str | None,
    ) -> None:
        super().__init__(normalizer, masked=masked, leaf=leaf)
        self.target = target.requires_grad_(False)
        self.predictor = predictor

    def forward(self, obs: TensorObs) -> Tensor:
        """Mean squared error of the prediction, one number a row."""
        inputs, _ = self.inputs(obs)
        with torch.no_grad():
            wanted = self.target(inputs)
        errors: Tensor = (self.predictor(inputs) - wanted).square().mean(dim=-1)
        return errors


def build_rnd(spec: Spec, settings: IntrinsicConfig) -> RNDNetworks:
    """Both networks for an env's observations. Their weights depend on torch's seed and on nothing else."""
    space, leaf, masked = encoded_space(spec)
    try:
        normalizer = build_normalizer(spec, clip=5.0)
    except ConfigError:  # images, which encoders scale, and choices, which they make one-hot
        normalizer = None

    def network(widths: tuple[int, ...]) -> nn.Module:
        encoder = build_encoder("auto", space, normalized=normalizer is not None)
        core = MLP(encoder.out_dim, widths, "relu")
        return nn.Sequential(encoder, core, nn.Linear(core.out_dim, settings.features))

    # One layer more for the predictor, as in the paper: that it cannot follow must be for want of data.
    last = settings.hidden[-1:] or (settings.features,)
    networks = network(settings.hidden), network((*settings.hidden, *last))
    for layer in (layer for module in networks for layer in module.modules()):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return RNDNetworks(*networks, normalizer, masked=masked, leaf=leaf)
