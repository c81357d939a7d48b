"""State of envs: the actions since `reset` to replay, or the state itself, and a hash to prove it exact."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rl_training.envs.backends import Backend
from rl_training.envs.spaces import Space, arrays

if TYPE_CHECKING:
    from rl_training.types import Array, Obs

Grade: TypeAlias = tuple[str, str]
"""How well envs were restored (`exact` or `episode`), and why."""

REPLAY_STEPS = 100_000
"""Episodes longer than this are not replayed but given up; also the most steps that are remembered."""
DIRECT_STEPS = 1_000
"""Longer episodes are saved directly where the env is known; shorter ones are quickly replayed in any env."""
REPLAY_BYTES = 256 << 20
"""The most memory that remembered actions may take."""


def worst(grades: Sequence[Grade]) -> Grade:
    """The grade of several together: the first of the worst."""
    return max(grades, key=lambda grade: grade[0] != "exact")


class ActionLog:
    """The last actions of all envs, one row a step: enough rows to replay every episode under way."""

    def __init__(self, num_envs: int, space: Space, steps: int | None = None) -> None:
        row = np.zeros((num_envs, *(space.shape or ())), dtype=space.dtype)
        self.limit = max(1, min(steps or REPLAY_STEPS, REPLAY_BYTES // max(row.nbytes, 1)))
        self._rows = np.zeros((min(1024, 2 * self.limit), *row.shape), dtype=row.dtype)
        self._used = 0

    def append(self, actions: Array, lengths: Array) -> None:
        """Remember one step; `lengths` are the steps of each episode before it."""
        if self._used == len(self._rows):
            self._make_room(int(lengths.max()))
        self._rows[self._used] = actions
        self._used += 1

    def _make_room(self, longest: int) -> None:
        """Forget what no episode under way needs or is too long to replay; grow if half is still needed."""
        keep = min(longest, self.limit, self._used)
        kept = self._rows[self._used - keep : self._used]
        size = len(self._rows) * (2 if 2 * keep > len(self._rows) else 1)
        rows = np.zeros((min(size, 2 * self.limit), *self._rows.shape[1:]), dtype=self._rows.dtype)
        rows[:keep] = kept
        self._rows, self._used = rows, keep

    def tail(self, longest: int) -> Array:
        """The last rows, as many as the longest episode needs and there are."""
        keep = min(longest, self.limit, self._used)
        return self._rows[self._used - keep : self._used].copy()

    def restore(self, rows: Array) -> None:
        """Start over from the rows that `tail` gave."""
        rows = rows[max(0, len(rows) - self.limit) :]
        self._used = len(rows)
        if 2 * len(rows) > len(self._rows):
            shape = (min(2 * len(rows), 2 * self.limit), *self._rows.shape[1:])
            self._rows = np.zeros(shape, dtype=self._rows.dtype)
        self._rows[: len(rows)] = rows


class RollingHash:
    """A polynomial hash, element by element, of all observations of every episode under way."""

    _FACTOR = 1_000_003  # odd, so that multiplication modulo a power of two loses nothing

    def __init__(self, obs: Obs) -> None:
        self._parts = []
        for array in arrays(obs):
            view = _words(array)
            factor = view.dtype.type(self._FACTOR % (1 << 8 * view.itemsize))
            self._parts.append((np.zeros_like(view), view, factor))

    def update(self) -> None:
        """Take in the current observation of every env."""
        for total, view, factor in self._parts:
            total *= factor
            total += view

    def update_rows(self, rows: Sequence[int]) -> None:
        """Take in the current observation of some envs."""
        for total, view, factor in self._parts:
            total[rows] = total[rows] * factor + view[rows]

    def restart(self, rows: Sequence[int]) -> None:
        """Begin anew with the current observation: the first one of an episode."""
        for total, view, _ in self._parts:
            for i in rows:
                total[i] = view[i]

    def row(self, i: int) -> list[Array]:
        """The hash of one env as bytes."""
        return [total[i].view(np.uint8).copy() for total, _, _ in self._parts]

    def restore_row(self, i: int, row: Sequence[Array]) -> None:
        """Go on from what `row` gave."""
        for (total, _, _), saved in zip(self._parts, row, strict=True):
            total[i] = np.ascontiguousarray(saved, dtype=np.uint8).view(total.dtype)

    def digests(self, returns: Array, lengths: Array) -> list[int]:
        """One number an env: its observations, the sum of its rewards and its length."""
        digests = []
        for i, (total_reward, length) in enumerate(zip(returns, lengths, strict=True)):
            digest = zlib.crc32(np.float64(total_reward).tobytes() + np.int64(length).tobytes())
            for total, _, _ in self._parts:
                digest = zlib.crc32(total[i].tobytes(), digest)
            digests.append(digest)
        return digests


def _words(array: Array) -> Array:
    """The same memory as `[num_envs, words]` of the widest unsigned integers that fit."""
    flat = array.reshape(len(array), -1)
    size = next(size for size in (8, 4, 2, 1) if flat[0].nbytes % size == 0)
    return flat.view(np.uint8).view(f"u{size}")


def capture_long(backend: Backend, hashes: RollingHash, lengths: Array) -> dict[str, Any]:
    """The state of those envs, by index, whose episode is long and whose state can be read."""
    long = np.flatnonzero(lengths > DIRECT_STEPS).tolist() if backend.direct else []
    states = backend.capture(long) if long else []
    return {
        str(i): {
            "env": state,
            "hash": hashes.row(i),
            "obs": [np.array(rows[i]) for rows in arrays(backend.obs)],
        }
        for i, state in zip(long, states, strict=True)
        if state is not None
    }


def restore(
    backend: Backend, hashes: RollingHash, limit: int | None, state: Mapping[str, Any]
) -> tuple[Array, dict[int, str]]:
    """Put envs back where they were; returns their rewards so far, and why some envs failed."""
    direct = {int(i): saved for i, saved in state.get("direct", {}).items()}
    returns = np.zeros(len(state["lengths"]))
    failed = _restore_direct(backend, hashes, direct, state["seeds"])
    for i in direct:
        returns[i] = state["returns"][i]
    failed.update(_replay(backend, hashes, limit, state, returns, skipped=list(direct)))
    lengths = np.asarray(state["lengths"])
    for i, (now, then) in enumerate(zip(hashes.digests(returns, lengths), state["digests"], strict=True)):
        if now != int(then):
            differs = "its replayed episode differs from the saved one: the env is not deterministic"
            failed.setdefault(i, "its saved state is damaged" if i in direct else differs)
    return returns, failed


def _restore_direct(
    backend: Backend, hashes: RollingHash, direct: Mapping[int, Mapping[str, Any]], seeds: Sequence[int]
) -> dict[int, str]:
    """Write saved states into envs that were just reset; returns why some envs failed."""
    indices = list(direct)
    if not indices:
        return {}
    backend.reset(indices, [int(seeds[i]) for i in indices])
    failed: dict[int, str] = {}
    for i, reason in zip(indices, backend.restore(indices, [direct[i]["env"] for i in indices]), strict=True):
        if reason is not None:
            failed[i] = reason
            continue
        try:
            hashes.restore_row(i, direct[i]["hash"])
            for rows, row in zip(arrays(backend.obs), direct[i]["obs"], strict=True):
                rows[i] = row
        except ValueError as error:
            failed[i] = f"its saved observation does not fit: {error}"
    return failed


def _replay(
    backend: Backend,
    hashes: RollingHash,
    limit: int | None,
    state: Mapping[str, Any],
    returns: Array,
    skipped: Sequence[int],
) -> dict[int, str]:
    """Play saved episodes again from their seeds, adding up `returns`; returns why some envs failed."""
    actions, lengths, seeds = np.asarray(state["actions"]), np.asarray(state["lengths"]), state["seeds"]
    starts = len(actions) - lengths
    starts[skipped] = len(actions) + 1  # never
    failed = {
        i: f"its episode is {lengths[i]} steps long, more than the {len(actions)} remembered"
        for i in np.flatnonzero(starts < 0).tolist()
    }
    for t in range(len(actions) + 1):
        if begin := np.flatnonzero(starts == t).tolist():
            backend.reset(begin, [int(seeds[i]) for i in begin])
            hashes.restart(begin)
        if t == len(actions):
            break
        going = [i for i in np.flatnonzero(starts <= t).tolist() if i not in failed]
        if not going:
            continue
        backend.step(actions[t], going)
        hashes.update_rows(going)
        returns[going] += backend.rewards[going]
        for i in going:
            ended = backend.terminated[i] or backend.truncated[i]
            if ended or (limit is not None and t + 1 - starts[i] >= limit):
                failed[i] = f"its replayed episode ended after {t + 1 - starts[i]} of {lengths[i]} steps"
    return failed
