"""Which seed an episode starts from: decided by the run's seed, the env's index and the episode's number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_BLOCK = 64  # seeds are drawn a block at a time: a SeedSequence for each costs as much as a CartPole step


def episode_seed(seed: int, index: int, episode: int) -> int:
    """The 31-bit seed that `reset` gets for one episode, so that any episode can be played again."""
    block, offset = divmod(episode, _BLOCK)
    return _block(seed, index, block)[offset]


@lru_cache(maxsize=4096)
def _block(seed: int, index: int, block: int) -> tuple[int, ...]:
    sequence = np.random.SeedSequence((seed, index, block))
    return tuple(int(word >> 1) for word in sequence.generate_state(_BLOCK).tolist())
