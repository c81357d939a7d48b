"""Comparisons in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.zoo import formatting as fmt
from rl_training.zoo.compare import EPISODE_MARGIN, Comparison, Matched, TaskResult, comparison_data
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


def remarks(comparisons: Sequence[Comparison], matched: Matched) -> list[str]:
    """What a reader must know of the numbers."""
    notes = [
        "n counts runs; intervals are 95 % bootstrap intervals over them; p is that of a permutation test "
        "for the direction in which B differs"
    ]
    if any(comparison.by_episodes for comparison in comparisons):
        notes.append(
            "too few runs to tell seeds apart: episodes (ep.) were compared instead, and a difference below "
            f"{EPISODE_MARGIN:.0%} counts as none; train more seeds to be sure".replace("%", " %")
        )
    if any(result.verdict == "cannot tell" for c in comparisons for result in c.results):
        notes.append("with so few runs no difference could be told from chance")
    notes += [f"only in A: {name}" for name in matched.only_a]
    notes += [f"only in B: {name}" for name in matched.only_b]
    return notes


def sentence(comparison: Comparison) -> str:
    """The verdict."""
    words = {
        "worse": "B is worse than A beyond noise",
        "better": "B is better than A beyond noise",
        "no difference": "no difference beyond noise",
        "cannot tell": "cannot tell",
    }
    p = min(comparison.p_worse, comparison.p_better)
    text = words[comparison.verdict]
    if comparison.by_episodes:  # nothing is known of other seeds
        text = text.replace("B is", "this run of B is").replace("than A", "than that of A")
    return f"{comparison.name}: {text} (p {'' if p < 0.001 else '= '}{fmt.p_value(p)})"


def _row(result: TaskResult) -> list[str]:
    a, b = len(result.samples.a), len(result.samples.b)
    unit = " ep." if result.samples.unit == "episodes" else ""
    plus = "+" * (result.delta.value > 0)
    relative = "" if result.relative is None else f"{100 * result.relative:+.1f} %".replace("-", fmt.MINUS)
    chance = fmt.chance(result.probability.value, result.probability.low, result.probability.high)
    counts = f"{a}{unit}" if a == b else f"{a}, {b}{unit}"
    p = min(result.p_worse, result.p_better)
    cells = [result.samples.task, counts, fmt.number(result.mean_a), fmt.number(result.mean_b)]
    return [*cells, plus + score_text(result.delta), relative, chance, fmt.p_value(p), result.verdict]
