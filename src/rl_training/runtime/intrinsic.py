"""A bonus for novelty on top of the env's rewards, between collection and advantages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.rnd import RND
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.policies.config import IntrinsicConfig
from rl_training.policies.obs import to_tensor
from rl_training.runtime.collector import Collector
from rl_training.runtime.rewards import RewardSettings, RewardTransform
from rl_training.types import Spec, UpdateResult


class IntrinsicReward:
    """Random network distillation, the scale of its bonus, and what of it a run saves."""

    def __init__(
        self,
        spec: Spec,
        settings: IntrinsicConfig,
        num_envs: int,
        device: torch.device,
        seed: int,
        gamma: float,
    ) -> None:
        self.settings = settings
        self.rnd = RND(spec, settings, device, seed)
        self.scale = RewardTransform(RewardSettings(normalize=True, gamma=gamma), num_envs)

    def add_to(self, buffer: RolloutBuffer, collector: Collector) -> list[UpdateResult]:
        """Pay for the observation each step led to, then let the predictor learn from the rollout."""
        rollout = buffer.whole().obs
        self.rnd.observe(rollout)
        novelty = self.rnd.novelty(rollout).reshape(buffer.num_steps, buffer.num_envs)
        last = self.rnd.novelty(to_tensor(collector.obs, buffer.device))
        bonus = torch.cat([novelty[1:], last[None]]).numpy(force=True)
        # Where an episode ended, the next stored observation is of another one.
        for ending in collector.stepping.endings or ():
            final = self.rnd.novelty(to_tensor(ending.final_obs, buffer.device))
            bonus[ending.step, ending.envs] = final.numpy(force=True)
        # Curiosity does not end with an episode: its returns are those of one endless stream.
        self.scale.apply(bonus, np.zeros_like(bonus))
        rewards = torch.as_tensor(buffer.steps("rewards"))
        rewards += torch.from_numpy(self.settings.coef * bonus).to(rewards.device)
        paid = torch.tensor(float(bonus.mean()), device=buffer.device)
        updates = [self.rnd.update(rollout) for _ in range(self.settings.update_steps)]
        return [UpdateResult({"intrinsic_reward": paid}), *updates]

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimiser and both kinds of statistics."""
        return {"rnd": self.rnd.state_dict(), "scale": self.scale.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.rnd.load_state_dict(state["rnd"])
        self.scale.load_state_dict(state["scale"])
