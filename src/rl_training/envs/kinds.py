"""The env backends there are, and what each can do. Whoever needs to know reads it here.

Nothing is imported for it: a configuration is read before Gymnasium is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BackendName = Literal["auto", "sync", "async", "native", "ale", "batched"]


@dataclass(frozen=True, slots=True)
class BackendKind:
    """What is to be known of a backend without making one."""

    name: BackendName
    plays: str
    """Which envs, in words."""
    comes_back: Literal["by replay", "by state", "not at all"]
    """How a resume puts its envs where they were; where it cannot, they begin their next episode."""
    differs: str = ""
    """What of its episodes is not as in `sync` from the same seeds; empty: they are equal to the last bit."""
    reseeds: bool = True
    """Whether every episode starts from a seed of its own, or only the first one after a reset of all."""
    limits: bool = False
    """Whether it ends episodes at their time limit itself."""
    atari_only: bool = False
    """Whether it plays nothing but games by `env.atari.preprocess`."""

    @property
    def replays(self) -> bool:
        """Whether it steps single envs, which any such backend can restore by replaying their actions."""
        return self.comes_back == "by replay"


BACKENDS: dict[str, BackendKind] = {
    kind.name: kind
    for kind in (
        BackendKind("sync", "all envs", "by replay"),
        BackendKind("async", "all envs", "by replay"),
        BackendKind("native", "CartPole", "by state", limits=True),
        BackendKind(
            "ale", "Atari games", "not at all",
            differs="other games; a resume begins them anew",
            reseeds=False,  # ALE loads the game anew for a seed, which takes as long as 250 steps
            atari_only=True,
        ),
        BackendKind(
            "batched", "classic control, and your own as tensors", "by state",
            differs="other episodes of the same env", limits=True,
        ),
    )
}  # fmt: skip
"""Every backend by its name; `auto` is a choice among them."""
