"""Positions of random generators, which outlive the device they were noted on."""

from __future__ import annotations

import hashlib

from torch import Generator, Tensor


def go_on_from(generator: Generator, position: Tensor) -> None:
    """Go on from where a generator was.

    One of another kind of device draws other numbers from any position: there a new stream begins, which
    depends on nothing but that position.
    """
    position = position.cpu()
    if position.numel() == generator.get_state().numel():
        generator.set_state(position)
    else:
        digest = hashlib.sha256(position.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
