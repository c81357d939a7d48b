"""Losses as pure functions of tensors, one entry a sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def ppo_loss(
    minibatch: Mapping[str, Tensor],
    clip_coef: float | Tensor,
    ent_coef: float | Tensor,
    vf_coef: float | Tensor,
    *,
    clip_value_loss: bool = True,
) -> dict[str, Tensor]:
    """PPO's clipped objective (Schulman et al. 2017, eq. 7 and 9) as a loss to minimise, with its parts.

    `minibatch` has `logprobs`, `new_values` and `entropy` of the policy that learns and `old_logprobs`,
    `values`, `advantages` and `returns` of the rollout. Advantages are used as given. Coefficients may be
    0-d tensors; an entropy coefficient that is the number 0 keeps the entropy out of the gradient's way.
    """
    log_ratio = minibatch["logprobs"] - minibatch["old_logprobs"]
    ratio = log_ratio.exp()
    advantages = minibatch["advantages"]
    # min(A·r, A·clip(r, 1 − ε, 1 + ε)) = min(A·r, A + ε·|A|): of the two bounds only one can ever bind.
    ceiling = advantages + clip_coef * advantages.abs()
    policy_loss = -torch.minimum(advantages * ratio, ceiling).mean()
    value_loss = _value_loss(minibatch, clip_coef if clip_value_loss else None)
    entropy = minibatch["entropy"].mean()

    loss = policy_loss + vf_coef * value_loss
    if isinstance(ent_coef, Tensor) or ent_coef != 0:
        loss = loss - ent_coef * entropy
    excess = ratio.detach() - 1
    return {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy,
        "approx_kl": (excess - log_ratio.detach()).mean(),  # an estimate that is never negative
        "clip_fraction": (excess.abs() > clip_coef).float().mean(),
    }


def _value_loss(minibatch: Mapping[str, Tensor], clip_coef: float | Tensor | None) -> Tensor:
    """Half the mean squared error, of the worse of the new value and the new value kept near the old one."""
    new_values, returns = minibatch["new_values"], minibatch["returns"]
    if clip_coef is None:
        return 0.5 * F.mse_loss(new_values, returns)
    old_values = minibatch["values"]
    clipped = torch.clamp(new_values, old_values - clip_coef, old_values + clip_coef)
    errors = F.mse_loss(new_values, returns, reduction="none")
    return 0.5 * torch.maximum(errors, F.mse_loss(clipped, returns, reduction="none")).mean()
