"""Action-value learning as pure functions of tensors, one row a sample.

A loss is the weighted mean over the batch; with it comes the size of each sample's error, which prioritised
replay draws by.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LossAndErrors = tuple[Tensor, Tensor]


def weighted_mean(errors: Tensor, weights: Tensor) -> Tensor:
    """The mean of `weights * errors`, with one operation to differentiate."""
    return torch.dot(errors, weights / len(weights))


def td_loss(values: Tensor, targets: Tensor, weights: Tensor, *, huber: bool = True) -> LossAndErrors:
    """Half the squared error of values; `huber`: linear beyond an error of 1, where gradients stay at 1."""
    if huber:
        errors = F.smooth_l1_loss(values, targets, reduction="none")
    else:
        errors = 0.5 * F.mse_loss(values, targets, reduction="none")
    return weighted_mean(errors, weights), (values.detach() - targets).abs()


def project_distribution(probs: Tensor, rewards: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """The distribution of r + γz on `support`, given that of z `[B, K]` (Bellemare 2017, algorithm 1).

    Each atom's probability goes to the two neighbours of where it lands, the nearer one getting more; what
    lands outside goes to the outermost atom.
    """
    atoms = len(support)
    spacing = support[1] - support[0]
    landed = rewards[:, None] + discount[:, None] * support
    position = ((landed - support[0]) / spacing).clamp(0, atoms - 1)
    below = position.floor()
    share = position - below
    row = torch.arange(len(probs), device=probs.device)[:, None] * atoms
    left = below.long()
    right = (left + 1).clamp_(max=atoms - 1)  # with share 0 where there is no atom to the right
    projected = torch.zeros(probs.numel(), device=probs.device)
    projected.index_add_(0, (row + left).flatten(), (probs * (1 - share)).flatten())
    projected.index_add_(0, (row + right).flatten(), (probs * share).flatten())
    return projected.view_as(probs)


def categorical_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> LossAndErrors:
    """Cross-entropy of predicted and target distributions `[B, K]`; a sample's error is its KL divergence."""
    entropies = -(targets * torch.log_softmax(logits, -1)).sum(-1)
    divergence = entropies.detach() + torch.xlogy(targets, targets).sum(-1)
    return weighted_mean(entropies, weights), divergence.clamp_(min=0)


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, taus: Tensor, weights: Tensor) -> LossAndErrors:
    """Quantile regression with κ = 1 (Dabney 2018, eq. 10): Σ over quantiles, mean over target samples.

    `quantiles` `[B, N]` at the fractions `taus` (`[N]` or `[B, N]`), `targets` `[B, M]`.
    """
    gaps = targets[:, None, :] - quantiles[:, :, None]
    sizes = gaps.abs()
    inner = sizes.clamp(max=1.0)
    huber = inner * (sizes - 0.5 * inner)
    sides = (taus[..., None] - (gaps.detach() < 0).float()).abs()
    errors = (sides * huber).mean(2).sum(1)
    return weighted_mean(errors, weights), (targets.mean(1) - quantiles.detach().mean(1)).abs()


def munchausen_bonus(log_probs: Tensor, actions: Tensor, *, alpha: float, tau: float, low: float) -> Tensor:
    """α · clip(τ log π(a|s), low, 0): what Munchausen adds to the reward (Vieillard 2020, eq. 4)."""
    chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
    return alpha * (tau * chosen).clamp(low, 0.0)


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy of each row of log-probabilities; the impossible has a large negative one, not -inf."""
    return -(log_probs.exp() * log_probs).sum(-1)
