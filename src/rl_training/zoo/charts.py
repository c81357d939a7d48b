"""Charts for reports: HTML around inline SVG, so that lines stretch with the page and text does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from rl_training.zoo.formatting import compact, count, number, ticks
from rl_training.zoo.records import Point

SPAN = 1000  # the SVG's own units, in both directions; the page decides what they measure
MAX_POINTS = 600
MAX_HINTS = 100


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `kind` picks its colour in the style sheet."""

    label: str
    points: Sequence[Point]
    kind: str = "train"
    band: Sequence[tuple[float, float, float]] = ()
    """Where the line might as well be: x, low, high."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured point with the range it stands for."""

    x: float
    y: float
    low: float
    high: float
    hint: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps data to percent of the plot, y counted from the top."""

    x_start: float
    x_end: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Percent from the left."""
        return 100 * (value - self.x_start) / (self.x_end - self.x_start)

    def y(self, value: float) -> float:
        """Percent from the top."""
        return 100 * (self.y_high - value) / (self.y_high - self.y_low)


def chart(
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    title: str,
    y_label: str = "",
    x_label: str = "",
    x_ticks: int = 7,
    y_ticks: int = 6,
    x_start: float = 0.0,
    x_axis: Sequence[tuple[float, str]] = (),
    x_end: float | None = None,
    x_name: str = "step",
    y_has: Sequence[float] = (),
    kind: str = "",
    hints: bool = True,
) -> str:
    """A line chart over environment steps (or what `x_name` says), with hints under the pointer.

    `x_axis` are positions with labels of their own, for an axis that does not count; `y_has` are values that
    the y axis covers in any case.
    """
    scale, y_at = _scale(lines, marks, y_ticks, x_start, x_end, y_has)
    x_last = x_start + 0.97 * (scale.x_end - x_start)
    counted = [(x, compact(x)) for x in ticks(x_start, x_last, x_ticks) if x_start <= x <= scale.x_end]
    grid = "".join(f"M0 {_at(scale.y(y))}H{SPAN}" for y in y_at)
    whiskers = "".join(f"M{_at(scale.x(m.x))} {_at(scale.y(m.low))}V{_at(scale.y(m.high))}" for m in marks)
    lines = [line for line in lines if line.points]
    paths = "".join(
        f'<path class="band {line.kind}" d="{_area(line, scale)}"/>' for line in lines if line.band
    )
    paths += "".join(f'<path class="line {line.kind}" d="{_path(line.points, scale)}"/>' for line in lines)
    columns = ""
    if hints:
        columns = (_hints if len(lines) <= 1 else _shared_hints)(lines, scale, x_name)
    y_texts = "".join(
        f'<span class="y" style="top:{scale.y(y):.2f}%">{text}</span>'
        for y, text in zip(y_at, _labels(y_at), strict=True)
    )
    x_texts = "".join(
        f'<span class="x" style="left:{scale.x(x):.2f}%">{escape(text)}</span>'
        for x, text in x_axis or counted
    )
    return (
        f'<figure class="chart {kind}" role="img" aria-label="{escape(title)}">'
        + (f'<div class="y-label">{escape(y_label)}</div>' if y_label else "")
        + f'<div class="plot"><svg viewBox="0 0 {SPAN} {SPAN}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{grid}"/>{paths}<path class="whisker" d="{whiskers}"/></svg>'
        f"{y_texts}{x_texts}{columns}{_dots(marks, scale)}</div>"
        + (f'<div class="x-label">{escape(x_label)}</div>' if x_label else "")
        + "</figure>"
    )


def stacked_bar(shares: Mapping[str, float], *, title: str) -> str:
    """One bar of parts that add up to the whole; `part-<name>` picks each colour."""
    parts = "".join(
        f'<i class="part-{escape(name)}" style="flex-grow:{share:.5f}"></i>'
        for name, share in shares.items()
        if share > 0
    )
    return f'<div class="bar" role="img" aria-label="{escape(title)}">{parts}</div>'


def thin(points: Sequence[Point], at_most: int = MAX_POINTS) -> list[Point]:
    """Fewer points with the same outline: the lowest and the highest of each stretch."""
    if len(points) <= at_most:
        return list(points)
    stretches = at_most // 2
    kept: list[Point] = []
    for index in range(stretches):
        part = points[index * len(points) // stretches : (index + 1) * len(points) // stretches]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def _scale(
    lines: Sequence[Line],
    marks: Sequence[Mark],
    y_ticks: int,
    x_start: float,
    x_end: float | None,
    y_has: Sequence[float],
) -> tuple[Scale, list[float]]:
    """A scale that shows everything and ends on round numbers above and below."""
    xs = [x for line in lines for x, _ in line.points] + [m.x for m in marks]
    ys = [y for line in lines for _, y in line.points] + [y for m in marks for y in (m.low, m.y, m.high)]
    ys += [y for line in lines for _, low, high in line.band for y in (low, high)] + list(y_has)
    y_at = ticks(min(ys, default=0.0), max(ys, default=1.0), y_ticks)
    last = max(xs, default=x_start) if x_end is None else x_end
    return Scale(x_start, last if last > x_start else x_start + 1.0, y_at[0], y_at[-1]), y_at


def _path(points: Sequence[Point], scale: Scale) -> str:
    shown = [f"{_at(scale.x(x))} {_at(scale.y(y))}" for x, y in thin(points)]
    return "M" + "L".join(shown) + ("h0" if len(shown) == 1 else "")


def _area(line: Line, scale: Scale) -> str:
    """There along the upper edge of the band, back along the lower."""
    upper = [(x, high) for x, _, high in line.band]
    lower = [(x, low) for x, low, _ in reversed(line.band)]
    return "M" + "L".join(f"{_at(scale.x(x))} {_at(scale.y(y))}" for x, y in (*upper, *lower)) + "Z"


def _at(percent: float) -> str:
    return f"{percent * SPAN / 100:.1f}".removesuffix(".0")


def _labels(values: Sequence[float]) -> list[str]:
    """Tick labels of one axis, all with the same number of decimals."""
    top = max(abs(v) for v in values)
    if top >= 10_000:
        return [compact(v) for v in values]
    if top < 1e-3:
        return [number(v) if v else "0" for v in values]
    decimals = next(d for d in range(7) if d == 6 or all(abs(round(v, d) - v) < 1e-9 * top for v in values))
    return [number(v, decimals) for v in values]


def _hints(lines: Sequence[Line], scale: Scale, x_name: str) -> str:
    """Invisible columns that show the value under the pointer."""
    hints = []
    for line in lines:
        points = line.points[:: -(-len(line.points) // MAX_HINTS)]
        edges = [scale.x((a[0] + b[0]) / 2) for a, b in pairwise(points)]
        for (x, y), left, right in zip(points, [0.0, *edges], [*edges, 100.0], strict=True):
            text = f"{_where(x, x_name)}\n{line.label} {number(y)}"
            at = f"--x:{100 * (scale.x(x) - left) / max(right - left, 1e-9):.0f}%;--y:{scale.y(y):.1f}%"
            side = " flip" if scale.x(x) > 60 else ""
            style = f"left:{left:.2f}%;width:{right - left:.2f}%;{at}"
            hints.append(f'<i class="hint{side}" style="{style}" data-hint="{escape(text)}"></i>')
    return "".join(hints)


def _shared_hints(lines: Sequence[Line], scale: Scale, x_name: str) -> str:
    """Invisible columns that show what every line has under the pointer."""
    at = sorted({x for line in lines for x, _ in line.points})
    at = at[:: -(-len(at) // MAX_HINTS)]
    edges = [scale.x((a + b) / 2) for a, b in pairwise(at)]
    hints = []
    for x, left, right in zip(at, [0.0, *edges], [*edges, 100.0], strict=True):
        known = [(line.label, value) for line in lines if (value := _value_at(line.points, x)) is not None]
        known.sort(key=lambda pair: -pair[1])
        text = "\n".join(
            [
                _where(x, x_name),
                *(f"{number(value)}  {label}" for label, value in known),
            ]
        )
        where = f"--x:{100 * (scale.x(x) - left) / max(right - left, 1e-9):.0f}%;--y:50%"
        side = " flip" if scale.x(x) > 60 else ""
        style = f"left:{left:.2f}%;width:{right - left:.2f}%;{where}"
        hints.append(f'<i class="hint many{side}" style="{style}" data-hint="{escape(text)}"></i>')
    return "".join(hints)


def _where(x: float, name: str) -> str:
    """`step 10,000`, or a measurement where x is one."""
    return f"{name} {count(x) if name == 'step' else number(x)}"


def _value_at(points: Sequence[Point], x: float) -> float | None:
    """A line's value between its first and its last point."""
    if not points or not points[0][0] <= x <= points[-1][0]:
        return None
    after = next(i for i, (at, _) in enumerate(points) if at >= x)
    (x1, y1), (x0, y0) = points[after], points[max(0, after - 1)]
    return y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _dots(marks: Sequence[Mark], scale: Scale) -> str:
    dots = []
    for m in marks:
        names = " ".join(filter(None, ("dot", "flip" if scale.x(m.x) > 60 else "", m.kind)))
        at = f"left:{scale.x(m.x):.2f}%;top:{scale.y(m.y):.2f}%"
        dots.append(f'<i class="{names}" data-hint="{escape(m.hint)}" style="{at}"></i>')
    return "".join(dots)
