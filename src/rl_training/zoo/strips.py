"""Scores on a line: every run a dot, the interval a bar, the statistic a stroke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rl_training.zoo import formatting as fmt
from rl_training.zoo.statistics import Estimate

MAX_DOTS = 200


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of the plot."""

    label: str
    kind: str
    score: Estimate
    values: Sequence[float] = ()


def strips(rows: Sequence[Strip], *, title: str, decimals: int = 1) -> str:
    """Rows over one axis, which ends on round numbers."""
    numbers = [value for row in rows for value in (*row.values, *row.score.bounds, row.score.value)]
    at = fmt.ticks(min(numbers), max(numbers), 6)
    low, high = at[0], at[-1]

    def x(value: float) -> float:
        return 100 * (value - low) / (high - low)

    parts = []
    for row in rows:
        dots = row.values[:: -(-len(row.values) // MAX_DOTS)] if row.values else ()
        left, right = (x(bound) for bound in row.score.bounds)
        runs = "".join(f'<i class="run" style="left:{x(value):.2f}%"></i>' for value in dots)
        bar = f'<i class="span" style="left:{left:.2f}%;width:{right - left:.2f}%"></i>'
        middle = f'<i class="middle" style="left:{x(row.score.value):.2f}%"></i>'
        bounds = ""
        if row.score.low is not None and row.score.high is not None:
            ends = f"{fmt.number(row.score.low, decimals)}, {fmt.number(row.score.high, decimals)}"
            bounds = f" <span>[{ends}]</span>"
        parts.append(
            f'<div class="name"><i class="swatch {row.kind}"></i>{escape(row.label)}</div>'
            f'<div class="strip {row.kind}">{bar}{runs}{middle}</div>'
            f'<div class="figure">{fmt.number(row.score.value, decimals)}{bounds}</div>'
        )
    axis = "".join(f'<span style="left:{x(tick):.2f}%">{fmt.compact(tick)}</span>' for tick in at)
    parts.append(f'<div></div><div class="axis">{axis}</div><div></div>')
    return f'<div class="strips" role="img" aria-label="{escape(title)}">{"".join(parts)}</div>'
