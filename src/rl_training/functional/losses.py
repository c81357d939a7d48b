"""Losses as pure functions of tensors, one entry a sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.types import Averaging


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
    values, returns = minibatch["new_values"], minibatch["returns"]
    old_values = minibatch["values"] if clip_value_loss else None
    critic_loss = value_loss(values, returns, old_values, clip_coef)
    entropy = minibatch["entropy"].mean()

    loss = policy_loss + vf_coef * critic_loss
    if isinstance(ent_coef, Tensor) or ent_coef != 0:
        loss = loss - ent_coef * entropy
    excess = ratio.detach() - 1
    return {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": critic_loss,
        "entropy_loss": entropy,
        "approx_kl": (excess - log_ratio.detach()).mean(),  # an estimate that is never negative
        "clip_fraction": (excess.abs() > clip_coef).float().mean(),
    }


def a2c_loss(
    minibatch: Mapping[str, Tensor], ent_coef: float | Tensor, vf_coef: float | Tensor
) -> dict[str, Tensor]:
    """The advantage actor-critic's loss (Mnih et al. 2016, section 4), with its parts.

    `minibatch` has `logprobs`, `new_values` and `entropy` of the policy that learns and `advantages` and
    `returns` of the rollout. Advantages are used as given. Coefficients are as for `ppo_loss`.
    """
    policy_loss = -(minibatch["advantages"] * minibatch["logprobs"]).mean()
    critic_loss = value_loss(minibatch["new_values"], minibatch["returns"])
    entropy = minibatch["entropy"].mean()
    loss = policy_loss + vf_coef * critic_loss
    if isinstance(ent_coef, Tensor) or ent_coef != 0:
        loss = loss - ent_coef * entropy
    return {"loss": loss, "policy_loss": policy_loss, "value_loss": critic_loss, "entropy_loss": entropy}


def standardized(x: Tensor, averaging: Averaging | None = None) -> Tensor:
    """Shifted and scaled to mean 0 and (Bessel-corrected) deviation 1; `averaging`: of what all have."""
    if averaging is None:
        return (x - x.mean()) / (x.std() + 1e-8)
    wide, count = x.double(), x.numel() * averaging.members
    mean, square = averaging(torch.stack([wide.mean(), wide.square().mean()])).unbind()
    deviation = ((square - mean.square()).clamp_min(0.0) * (count / (count - 1))).sqrt()
    return ((wide - mean) / (deviation + 1e-8)).to(x.dtype)


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip_coef: float | Tensor = 0.0
) -> Tensor:
    """Half the mean squared error; given `old_values`, of the worse of the value and one kept near them."""
    if old_values is None:
        return 0.5 * F.mse_loss(values, returns)
    clipped = torch.clamp(values, old_values - clip_coef, old_values + clip_coef)
    errors = F.mse_loss(values, returns, reduction="none")
    return 0.5 * torch.maximum(errors, F.mse_loss(clipped, returns, reduction="none")).mean()
