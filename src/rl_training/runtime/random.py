"""Randomness with names: each use owns a generator, and all of them are saved with a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.generators import go_on_from


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on the run's seed and on what it is for."""
    entropy = [seed, *(zlib.crc32(n.encode()) if isinstance(n, str) else n for n in names)]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


class RandomStreams:
    """Generators by name, each seeded from the run's seed and its own name."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._streams: dict[str, torch.Generator] = {}

    def get(self, name: str, device: str | torch.device | None = None) -> torch.Generator:
        """The generator called `name`, created at first use."""
        if name not in self._streams:
            generator = torch.Generator(device if device is not None else self._device)
            generator.manual_seed(derive_seed(self._seed, name))
            self._streams[name] = generator
        return self._streams[name]

    def state_dict(self) -> dict[str, Tensor]:
        """The exact position of every stream."""
        return {name: generator.get_state() for name, generator in self._streams.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue every stream where it was."""
        for name, position in state.items():
            go_on_from(self.get(name), position)
