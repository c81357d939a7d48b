"""Comparisons in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.zoo import formatting as fmt
from rl_training.zoo.compare import (
    ALPHA,
    EPISODE_MARGIN,
    Comparison,
    Direction,
    PValues,
    TaskResult,
    comparison_data,
)
from rl_training.zoo.overview import score_text
from rl_training.zoo.tables import Column, Table


def comparison_table(comparison: Comparison) -> Table:
    """One row a task."""
    columns = [
        Column("task", comparison.name, numeric=False), Column("n", "n"), Column("a", "A"), Column("b", "B"),
        Column("delta", f"B {fmt.MINUS} A"), Column("relative", ""), Column("probability", "P(B > A)"),
        Column("p", "p"), Column("verdict", "B is", numeric=False),
    ]  # fmt: skip
    rows = [_row(result) for result in comparison.results]
    return Table(columns, rows, comparison_data(comparison)["tasks"])


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """Every task in every respect, which the first column names."""
    rows = [{"measure": c.name, **row} for c in comparisons for row in comparison_data(c)["tasks"]]
    return Table([Column("measure", "")], [], rows).csv()


def remarks(comparisons: Sequence[Comparison]) -> list[str]:
    """What a reader must know of the numbers."""
    by_episodes = any(comparison.by_episodes for comparison in comparisons)
    units = ", or episodes where it says ep." if by_episodes else ""
    notes = [
        f"n counts runs{units}; intervals are 95 % bootstrap intervals over them; p is that of a permutation "
        "test for the direction in which B differs"
    ]
    if several := any(comparison.together for comparison in comparisons):
        notes[0] += f", corrected for the number of tasks: at most {ALPHA:g} is beyond noise"
    if by_episodes:
        notes.append(
            "too few runs to tell seeds apart: episodes (ep.) were compared instead, and a difference below "
            f"{_percent(EPISODE_MARGIN)} counts as none; train more seeds to be sure"
        )
    if any(comparison.on("cannot tell") for comparison in comparisons):
        needed = "four on each side, with several tasks" if several else "three on each side"
        notes.append(
            f"cannot tell: with so few runs no difference could be told from chance; it takes {needed}"
        )
    return notes


def sentence(comparison: Comparison) -> str:
    """The verdict, on what it rests, and the p-value that decided."""
    if comparison.together is None:
        (result,) = comparison.results
        above = f" and above {_percent(result.limit)} of A" if _is_waived(result) else ""
        text = f"{_WORDS[comparison.verdict]}{above} ({fmt.p_equals(result.p.lower)})"
    else:
        text = _WORDS[comparison.verdict] + _grounds(comparison, comparison.together)
    if comparison.by_episodes:  # nothing is known of other seeds
        text = text.replace("B is", "this run of B is").replace("than A", "than that of A")
    return f"{comparison.name}: {text}"


_WORDS = {
    "worse": "B is worse than A beyond noise",
    "better": "B is better than A beyond noise",
    "no difference": "no difference beyond noise",
    "cannot tell": "cannot tell",
}


def _grounds(comparison: Comparison, together: PValues) -> str:
    """Which tasks decided, or all of them together, or how near any of them came."""
    verdict, count = comparison.verdict, len(comparison.results)
    if verdict == "worse" or verdict == "better":
        found = _directed(comparison, together, verdict)
        if verdict == "worse" and (better := comparison.on("better")):
            found += f"; better on {_named(better)}"
        return found
    first = min(comparison.results, key=lambda result: result.p.lower)
    text = f" on any of {count} tasks (lowest {fmt.p_equals(first.p.lower)}: {first.samples.task})"
    text += f" or over all together ({fmt.p_equals(together.lower)})"
    if verdict == "no difference" and comparison.p.lower <= ALPHA:
        text += f"; differences up to {_percent(first.limit)} of A do not count"
    if verdict == "no difference" and (blind := comparison.on("cannot tell")):
        text += f"; cannot tell on {len(blind)} of them"
    return text


def _directed(comparison: Comparison, together: PValues, direction: Direction) -> str:
    p = fmt.p_equals(together.worse if direction == "worse" else together.better)
    count, found = len(comparison.results), comparison.on(direction)
    if not found:
        return f" over all {count} tasks together ({p}), though on none alone"
    also = f", and over all together ({p})" if comparison.shows_together(direction) else ""
    return f" on {len(found)} of {count} tasks: {_named(found)}{also}"


def _named(results: Sequence[TaskResult]) -> str:
    return fmt.listed([f"{result.samples.task} ({fmt.p_equals(result.p.lower)})" for result in results])


def _is_waived(result: TaskResult) -> bool:
    """Is it no difference for its size alone, however low the p-value?"""
    return result.verdict == "no difference" and result.p.lower <= ALPHA


def _row(result: TaskResult) -> list[str]:
    a, b = len(result.samples.a), len(result.samples.b)
    unit = " ep." if result.samples.unit == "episodes" else ""
    relative = "" if result.relative is None else fmt.plus(f"{fmt.number(100 * result.relative, 1)} %")
    chance = fmt.chance(result.probability.value, result.probability.low, result.probability.high)
    counts = f"{a}{unit}" if a == b else f"{a}, {b}{unit}"
    verdict = result.verdict + (f" above {_percent(result.limit)}" if _is_waived(result) else "")
    cells = [result.samples.task, counts, fmt.number(result.mean_a), fmt.number(result.mean_b)]
    cells += [fmt.plus(score_text(result.delta)), relative, chance, fmt.p_value(result.p.lower)]
    return [*cells, verdict]


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
