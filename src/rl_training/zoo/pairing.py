"""Which runs of A and B are held against each other, and what one of the sides does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rl_training.errors import AxiomError
from rl_training.zoo import formatting as fmt
from rl_training.zoo.leaderboard import UNFINISHED
from rl_training.zoo.summaries import RunSummary

Runs = list[RunSummary]
Value = Callable[[RunSummary], float | None]
"""What is compared of a run; None where it has none."""
_NEARLY = 0.01  # numbers of steps are rounded up to whole rollouts


@dataclass(frozen=True, slots=True)
class Matched:
    """Runs that have ended: what both sides have, and what only one has; and how many have not, by task."""

    tasks: Sequence[tuple[str, Runs, Runs]]
    alone_a: Mapping[str, Runs]
    alone_b: Mapping[str, Runs]
    unfinished_a: Mapping[str, int]
    unfinished_b: Mapping[str, int]

    @property
    def only_a(self) -> list[str]:
        """Tasks that B does not have."""
        return sorted(self.alone_a)

    @property
    def only_b(self) -> list[str]:
        """Tasks that A does not have."""
        return sorted(self.alone_b)


def match(a: Sequence[RunSummary], b: Sequence[RunSummary]) -> Matched:
    """Pair runs that have ended by algorithm, env and preset; if that pairs nothing, by env."""
    sides = _ended("A", a), _ended("B", b)
    for key in (_exactly, _env):
        left, right = (_by(side, key) for side in sides)
        if shared := sorted(left.keys() & right.keys()):
            return Matched(
                [(name, left[name], right[name]) for name in shared],
                {name: runs for name, runs in left.items() if name not in right},
                {name: runs for name, runs in right.items() if name not in left},
                _unfinished(a, key),
                _unfinished(b, key),
            )
        if both := sorted(_by(a, key).keys() & _by(b, key).keys()):  # others would be compared in their place
            raise AxiomError(f"nothing to compare: on {fmt.listed(both)}, runs of A or of B have not ended")
    envs = [", ".join(sorted({run.env_id for run in side})) for side in sides]
    raise AxiomError(f"nothing to compare: A has runs on {envs[0]}, B on {envs[1]}")


def shortfalls(matched: Matched, value: Value, what: str) -> list[str]:
    """What A can show and B cannot: whole tasks, or runs on tasks where A is complete."""
    absent = [name for name in matched.only_a if any(_has(matched.alone_a[name], value))]
    unfinished = [name for name in absent if matched.unfinished_b.get(name)]
    gone = [name for name in absent if name not in unfinished]
    found = [f"{_count(len(gone), 'task')} of A not in it: {fmt.listed(gone)}"] if gone else []
    found += [f"{name}: none of its runs has ended" for name in unfinished]
    for name, a, b in matched.tasks:
        shown_a, shown_b = _has(a, value), _has(b, value)
        if not any(shown_a):
            continue
        if not all(shown_b) and (all(shown_a) or not any(shown_b)):
            found.append(_lacking(name, "B", b, value, what))
        if (count := matched.unfinished_b.get(name)) and not matched.unfinished_a.get(name):
            found.append(f"{name}: {count} of {_count(len(b) + count, 'run')} of B not ended")
    return found


def without_result(matched: Matched, value: Value, what: str) -> list[str]:
    """Tasks on which runs of either side have nothing to compare."""
    return [
        _lacking(name, side, runs, value, what)
        for name, a, b in matched.tasks
        for side, runs in (("A", a), ("B", b))
        if not all(_has(runs, value))
    ]


def conditions(matched: Matched, which: str = "final") -> list[str]:
    """What was left out, and where A and B were not made alike."""

    def episodes(run: RunSummary) -> int:
        return run.episodes(which) or 0

    notes = []
    for side, unfinished in (("A", matched.unfinished_a), ("B", matched.unfinished_b)):
        if count := sum(unfinished.values()):
            notes.append(f"{_count(count, 'run')} of {side} not ended ({', '.join(UNFINISHED)}), left out")
    for title, of in (("steps", _steps), ("evaluation episodes a run", episodes)):
        if unequal := [text for task in matched.tasks if (text := _unequal(*task, of))]:
            notes.append(f"unequal numbers of {title}: {fmt.listed(unequal)}")
    notes += [f"only in A: {name}" for name in matched.only_a]
    return notes + [f"only in B: {name}" for name in matched.only_b]


def _ended(side: str, runs: Sequence[RunSummary]) -> Runs:
    ended = [run for run in runs if run.status not in UNFINISHED]
    if not ended:
        states = " or ".join(UNFINISHED)
        raise AxiomError(f"nothing to compare: of {_count(len(runs), 'run')} of {side}, all are {states}")
    return ended


def _unfinished(runs: Sequence[RunSummary], key: Callable[[RunSummary], str]) -> dict[str, int]:
    found = _by([run for run in runs if run.status in UNFINISHED], key)
    return {name: len(own) for name, own in found.items()}


def _has(runs: Runs, value: Value) -> list[bool]:
    return [value(run) is not None for run in runs]


def _lacking(name: str, side: str, runs: Runs, value: Value, what: str) -> str:
    lacking = _has(runs, value).count(False)
    have = "has" if lacking == 1 else "have"
    return f"{name}: {lacking} of {_count(len(runs), 'run')} of {side} {have} no {what}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _unequal(name: str, a: Runs, b: Runs, of: Callable[[RunSummary], int]) -> str:
    """Both ranges, if they are not nearly the same; nothing where they are, or are not known."""
    left, right = ([n for run in side if (n := of(run))] for side in (a, b))
    if not left or not right:
        return ""
    bounds = (min(left), min(right)), (max(left), max(right))
    if all(abs(one - two) <= _NEARLY * max(one, two) for one, two in bounds):
        return ""
    return f"{name} (A {fmt.span(left)}, B {fmt.span(right)})"


def _steps(run: RunSummary) -> int:
    return run.steps


def _by(runs: Sequence[RunSummary], key: Callable[[RunSummary], str]) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _exactly(run: RunSummary) -> str:
    return " · ".join([run.algo, run.env_id, *([run.preset] if run.preset else [])])


def _env(run: RunSummary) -> str:
    return run.env_id
