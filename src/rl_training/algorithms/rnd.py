"""Random Network Distillation (Burda et al. 2019): novelty as the error of a prediction that improves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.optim import Adam, descend, load_optimizer_state, optimizer_state
from rl_training.policies.config import IntrinsicConfig
from rl_training.policies.rnd import build_rnd
from rl_training.types import Spec, TensorObs, UpdateResult


class RND:
    """The networks, their optimiser and their normaliser; what it is good for is the trainer's business."""

    def __init__(self, spec: Spec, settings: IntrinsicConfig, device: torch.device, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = build_rnd(spec, settings).to(device)
        self.parameters = list(self.networks.predictor.parameters())
        self.optimizer = Adam(self.parameters, settings.learning_rate)

    def observe(self, obs: TensorObs) -> None:
        """Take observations into the statistics by which they are normalised."""
        if self.networks.normalizer is not None:
            self.networks.normalizer.update(obs)

    @torch.no_grad()
    def novelty(self, obs: TensorObs) -> Tensor:
        """How unfamiliar each observation is."""
        errors: Tensor = self.networks(obs)
        return errors

    def update(self, obs: TensorObs) -> UpdateResult:
        """One gradient step of the predictor towards the target network."""
        loss = self.networks(obs).mean()
        grad_norm = descend(loss, self.optimizer, self.parameters)
        return UpdateResult({"rnd_loss": loss.detach(), "rnd_grad_norm": grad_norm})

    def state_dict(self) -> dict[str, Any]:
        """Both networks, the normaliser and the optimiser."""
        return {"networks": dict(self.networks.state_dict()), "optimizer": optimizer_state(self.optimizer)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.networks.load_state_dict(state["networks"])
        load_optimizer_state(self.optimizer, state["optimizer"])
