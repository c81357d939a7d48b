"""Random numbers that are a function of a seed: no generator, so nothing to save and nothing to synchronise.

An episode's seed is a number of 63 bits. Everything random in it is a hash of that number (the finaliser of
SplitMix64; Steele, Lea and Flood, 2014), computed for all envs at once on whatever device they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# SplitMix64's constants as torch's signed integers: products wrap around, which is what is wanted of them.
_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_FORK = 0xD1342543DE82EF95 - (1 << 64)  # another odd number, so that forks and draws never meet


def mix(numbers: Tensor) -> Tensor:
    """Hash each number into [0, 2⁶³): neighbours come out unrelated.

    Shifts keep the sign, as torch's do. That makes x and ~x the same number, and the result never negative.
    """
    numbers = (numbers ^ (numbers >> 30)) * _FIRST
    numbers = (numbers ^ (numbers >> 27)) * _SECOND
    return numbers ^ (numbers >> 31)


def env_keys(seed: int, num_envs: int, device: torch.device) -> Tensor:
    """One number below 2⁶² an env. The episode `n` of an env has the seed `key + n`."""
    run = mix(torch.tensor(seed & ((1 << 63) - 1), device=device))
    return mix(run + _STRIDE * torch.arange(1, num_envs + 1, device=device)) >> 1


def fork(seeds: Tensor, index: Tensor | int) -> Tensor:
    """Seeds of their own for whatever `index` counts, such as the steps of an episode."""
    if isinstance(index, Tensor):
        return mix(seeds + _FORK * (index.long() + 1))
    return mix(seeds + _wrapped(_FORK * (int(index) + 1)))


def _wrapped(number: int) -> int:
    """What is left of a number in 64 bits, as products of tensors have it: Python's have no end."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Uniform:
    """One row a seed of independent numbers, each between its own `low` and `high`."""

    def __init__(self, low: Sequence[float], high: Sequence[float], device: torch.device) -> None:
        self._low = torch.tensor(low, dtype=torch.float64, device=device)
        self._scale = (torch.tensor(high, dtype=torch.float64, device=device) - self._low) * 2.0**-63
        self._offsets = _STRIDE * torch.arange(1, len(low) + 1, device=device)

    def __call__(self, seeds: Tensor) -> Tensor:
        """`[seeds, numbers]` in double precision."""
        return self._low + mix(seeds.unsqueeze(1) + self._offsets) * self._scale
