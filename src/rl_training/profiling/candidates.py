"""What could be set otherwise for the sake of speed, and what that would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch

from rl_training import registry
from rl_training.envs import can_play
from rl_training.envs.kinds import BACKENDS, BackendKind
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import replace
from rl_training.experiment.sections import nested

Effect = Literal["identical", "equivalent", "data"]
EFFECTS: dict[Effect, str] = {
    "identical": "same results",
    "equivalent": "same algorithm",
    "data": "changes the data",
}
"""identical: to the last bit, on the same machine; equivalent: the same algorithm on the same amounts of the
same kind of data, with other rounding or random numbers; data: what an update learns from is not the same."""
WORTHWHILE = 1.05
"""Gains below this are noise, or not worth a change."""
MOST_WORKERS = 8
"""Async envs a core, beyond which they are not tried: each is a process."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting that is not the present one."""

    key: str
    value: Any
    effect: Effect
    helps: tuple[str, ...]
    """The parts of the time that it could shorten."""
    note: str = ""

    @property
    def name(self) -> str:
        """As it would stand in a file."""
        return f"{self.key}: {self.value}"

    @property
    def option(self) -> str:
        """As it would stand on the command line."""
        return f"--{self.key.replace('_', '-')} {self.value}"

    def changes(self) -> dict[str, Any]:
        """As a layer of a configuration."""
        return nested(self.key, self.value)

    def apply(self, config: TrainConfig) -> TrainConfig:
        """The configuration with this setting; a ConfigError says why it cannot be."""
        try:
            return replace(config, **self.changes())
        except ConfigError as error:  # nobody has written it, so there is no place to name
            raise ConfigError([told.partition(": ")[2] for told in error.problems]) from None

    def largest_gain(self, shares: Mapping[str, float]) -> float:
        """What it would bring if the parts that it helps took no time at all; infinite where they are all."""
        # A sampler is waited for because of its envs, or its policy, which acts on one core.
        parts = (*self.helps, "wait") if "env" in self.helps else self.helps
        rest = 1.0 - sum(shares.get(part, 0.0) for part in parts)
        return 1.0 / rest if rest > 1e-9 else inf


def candidates(
    config: TrainConfig, device: torch.device, cores: int, modes: Mapping[str, str]
) -> list[Candidate]:
    """Everything there is to try from a resolved configuration; what of it works, only trying tells.

    `modes` says how updates are computed for each value of `compile`.
    """
    return [
        *_backends(config, cores),
        *_threads(config, device, cores),
        *_devices(config, device),
        *_compile(config, modes),
        *_collection(config),
        *_learners(config, device, cores),
        *_num_envs(config),
    ]


def _backends(config: TrainConfig, cores: int) -> list[Candidate]:
    room_for_workers = cores > 1 and 1 < config.num_envs <= MOST_WORKERS * cores
    present = BACKENDS[config.env.backend]

    def effect(kind: BackendKind) -> Effect:
        return "equivalent" if kind.differs or present.differs else "identical"

    def helps(kind: BackendKind) -> tuple[str, ...]:
        parts = ("env", "transfer", "overhead")
        # The policy may be compiled in one piece with envs that are tensors.
        return (*parts, "inference") if kind.name == "batched" else parts

    return [
        Candidate("env.backend", name, effect(kind), helps(kind), kind.differs)
        for name, kind in BACKENDS.items()
        if name != config.env.backend
        and (name != "async" or room_for_workers)
        and (config.env.atari.preprocess or not kind.atari_only)
        and can_play(config, kind.name)
    ]


def _threads(config: TrainConfig, device: torch.device, cores: int) -> list[Candidate]:
    if device.type != "cpu":
        return []
    others = sorted({1, cores} - {config.threads})
    # Envs that are tensors use the threads; those in processes of their own, the cores that they leave.
    own = config.env.backend in ("async", "batched") or config.collection == "pipelined"
    helps = ("env", "inference", "learn") if own else ("inference", "learn")
    return [Candidate("threads", count, "equivalent", helps) for count in others]


def _devices(config: TrainConfig, device: torch.device) -> list[Candidate]:
    if not torch.cuda.is_available():
        return []
    other = "cpu" if device.type == "cuda" else "cuda"
    moved = ("env",) if config.env.backend == "batched" else ()
    helps = (*moved, "inference", "transfer", "learn", "overhead")
    return [Candidate("device", other, "equivalent", helps)]


def _compile(config: TrainConfig, modes: Mapping[str, str]) -> list[Candidate]:
    """Other ways to compute updates; another word for the present one is none."""
    helps: tuple[str, ...] = ("learn", "inference")
    if config.env.backend == "batched":
        helps = ("env", *helps)
    elif config.collection == "pipelined":
        helps = (*helps, "wait")  # the sampler compiles what its policy chooses
    return [
        Candidate("compile", choice, "equivalent", helps)
        for choice in ("on", "off")
        if modes[choice] != modes[config.compile]
    ]


def _collection(config: TrainConfig) -> list[Candidate]:
    """The other moment to collect steps."""
    parts = ("env", "inference", "transfer", "overhead")
    if config.env.backend == "batched":
        return []  # such envs are stepped where the policy learns
    if config.collection == "serial":
        note = "learns from what an older policy did"
        return [Candidate("collection", "pipelined", "data", parts, note)]
    # Without a sampler beside it the learner has the cores, or the GPU, to itself.
    return [Candidate("collection", "serial", "data", (*parts, "learn"), "learns from what its policy did")]


def _learners(config: TrainConfig, device: torch.device, cores: int) -> list[Candidate]:
    """As many learners as there are cores, each with its share of the envs."""
    entry = registry.algorithm(config.algo)
    together = entry.family == "on-policy" and not entry.cls.alone_only
    if not together or device.type != "cpu" or config.num_envs % cores or cores < 2:
        return []
    return [Candidate("learners", cores, "equivalent", ("env", "inference", "learn", "overhead"))]


def _num_envs(config: TrainConfig) -> list[Candidate]:
    parts = ("env", "inference", "transfer", "learn", "overhead")
    return [Candidate("num_envs", config.num_envs * times, "data", parts) for times in (2, 4)]
