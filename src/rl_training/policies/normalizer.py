"""Running observation statistics that live in the policy, are saved with it and stand still in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rl_training.types import Averaging, TensorObs

Moments = tuple[Tensor, Tensor, Tensor]


def merge_moments(known: Moments, new: Moments) -> Moments:
    """Mean, population variance and count of two samples put together (Chan et al., 1979)."""
    mean, var, count = known
    new_mean, new_var, new_count = new
    total = count + new_count
    delta = new_mean - mean
    squares = var * count + new_var * new_count + delta.square() * (count * new_count / total)
    return mean + delta * (new_count / total), squares / total, total


class ObsNormalizer(nn.Module):
    """Observations shifted and scaled to mean 0 and deviation 1, clipped to ±`clip`.

    `shapes` gives the observation's shape, or for Dict observations the shape of each key to normalise; the
    other keys pass through. The statistics of all keys are one row of numbers, so that an update is a single
    set of operations. They change only by `update`.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(
        self, shapes: Sequence[int] | Mapping[str, Sequence[int]], clip: float = 10.0, eps: float = 1e-8
    ) -> None:
        super().__init__()
        self.clip = clip
        self.eps = eps
        self.sizes: dict[str, int] | None = None
        if isinstance(shapes, Mapping):
            self.sizes = {key: prod(shape) for key, shape in shapes.items()}
            size = sum(self.sizes.values())
        else:
            size = prod(shapes)
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # What `forward` needs, in float32 and ready: it runs at every step.
        self.register_buffer("shift", torch.zeros(size), persistent=False)
        self.register_buffer("scale", torch.ones(size), persistent=False)
        self.register_load_state_dict_post_hook(_refresh_after_load)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def update(self, obs: TensorObs, averaging: Averaging | None = None) -> None:
        """Take a batch of observations `[*, obs_shape]` into the statistics; `averaging`: one of several."""
        rows = self._rows(obs).double()
        mean, var, size = rows.mean(0), rows.var(0, correction=0), rows.shape[0]
        if averaging is not None:
            own, mean = mean, averaging(mean)
            var, size = averaging(var + (own - mean).square()), size * averaging.members
        batch = (mean, var, torch.full_like(self.count, size))
        merged = merge_moments((self.mean, self.var, self.count), batch)
        for buffer, value in zip((self.mean, self.var, self.count), merged, strict=True):
            buffer.copy_(value)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute the float32 shift and scale from the statistics."""
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + self.eps).rsqrt())

    def forward(self, obs: TensorObs) -> TensorObs:
        if isinstance(obs, Tensor):
            return self._normalize(obs, self.shift, self.scale)
        out = dict(obs)
        if self.sizes is not None:
            start = 0
            for key, size in self.sizes.items():
                part = slice(start, start + size)
                out[key] = self._normalize(obs[key], self.shift[part], self.scale[part])
                start += size
        return out

    def _normalize(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(x.shape[0], -1)
        return ((rows - shift) * scale).clamp(-self.clip, self.clip).reshape(x.shape)

    def _rows(self, obs: TensorObs) -> Tensor:
        if isinstance(obs, Tensor):
            return obs.reshape(-1, self.mean.shape[0])
        assert self.sizes is not None, "built for plain observations, given a Dict"
        return torch.cat([obs[key].reshape(-1, size) for key, size in self.sizes.items()], dim=1)


def _refresh_after_load(module: nn.Module, _incompatible: Any) -> None:
    assert isinstance(module, ObsNormalizer)
    module.refresh()
