"""The other side of `team`: a process that trains as the first learner does, in envs of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.envs.processes import converse
from rl_training.runtime.averaging import Meeting, Seat
from rl_training.runtime.device import torch_settings
from rl_training.runtime.exchange import packed, unpacked

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

MakeTrainer: TypeAlias = "Callable[[Seat], Trainer]"
"""Makes the trainer of a learner, envs and all, given its seat."""


def learn(
    pipe: Connection, make: MakeTrainer, meeting: Meeting, number: int, deterministic: bool | str
) -> None:
    """The life of a learner: make everything, then answer commands."""
    seat = Seat(meeting, number)  # without the first learner, this process ends by itself

    def prepare() -> tuple[_Member, None]:
        return _Member(make(seat)), None

    with torch_settings(torch.device("cpu"), threads=1, deterministic=deterministic):
        converse(pipe, prepare)


class _Member:
    """Executes the first learner's commands: each is the name of a method."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.close = trainer.envs.close

    def answer(self, command: str, payload: Any) -> Any:
        """Do as told."""
        return packed(getattr(self, command)(*payload))

    def begin(self, algorithm: Any, mode: str, counters: Mapping[str, int], moments: list[float]) -> None:
        """Know what the first learner knows, and be where it is."""
        trainer = self.trainer
        trainer.algorithm.load_state_dict(unpacked(algorithm))
        trainer.updates.adopt(mode)
        for name, value in counters.items():
            setattr(trainer, name, value)
        trainer.collector.rewards.moments = moments
        trainer.collector.start()
        trainer.prepare()

    def advance(self) -> Any:
        """One iteration; the answer: which episodes have ended, what could not be computed as planned."""
        self.trainer.advance()
        return [self.trainer.collector.statistics.take(), list(self.trainer.updates.of_updates)]

    def save(self) -> Any:
        """The own stream of experience, what restoring it gives, and a fingerprint of what was learned."""
        trainer = self.trainer
        trainer.collector.start()  # a run may be saved before its first iteration
        return [trainer.stream_state(), trainer.envs.resume_grade, fingerprint(trainer.algorithm)]

    def load(self, stream: Any) -> Any:
        """Continue a saved stream; without one it begins anew."""
        if stream is None:
            return "episode", "there were fewer learners"
        return self.trainer.load_stream(unpacked(stream))


def fingerprint(algorithm: Algorithm) -> str:
    """The same for the same weights, statistics and moments, to the bit."""
    found = hashlib.sha256()
    for tensor in _tensors(algorithm.state_dict()):
        found.update(tensor.detach().contiguous().numpy(force=True).tobytes())
    return found.hexdigest()


def _tensors(tree: Any) -> Iterable[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
