"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MINUS, NONE = "\u2212", "\u2013"


def count(value: float) -> str:
    """A whole number with separators: 100,096."""
    return f"{int(value):,}".replace("-", MINUS)


def number(value: float, decimals: int | None = None) -> str:
    """A measurement with about four digits that mean something: 1,975, 500.0, 21.86, 0.00567, 3.64e−7."""
    size = abs(value)
    if not math.isfinite(value):
        return f"{value}".replace("-", MINUS)
    if decimals is None and value and not 1e-3 <= size < 1e7:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}".replace("-", MINUS)
    if decimals is None:
        decimals = decimals_of(value)
    return f"{value:z,.{decimals}f}".replace("-", MINUS)  # z: what is rounded to zero has no sign


def plus(shown: str) -> str:
    """A formatted difference with its sign, unless what is shown is zero."""
    value = shown.partition(" ")[0]
    return shown if value.startswith(MINUS) or not value.strip("0.,") else f"+{shown}"


def known(value: float | None) -> str:
    """A measurement, or a dash where there is none."""
    return NONE if value is None else number(value)


def decimals_of(value: float) -> int:
    """How many decimals `number` shows."""
    size = abs(value)
    if not size or not math.isfinite(size):
        return 0
    if size >= 1:
        return 0 if size >= 1000 else 1 if size >= 100 else 2
    return min(6, 2 - math.floor(math.log10(size)))


def decimals_to_tell(size: float, low: float, high: float) -> int:
    """How many decimals show numbers of this size with two digits or more, and tell two bounds apart.

    Bounds that differ only beyond the sixth digit are the same to a reader.
    """
    order = _order(size)
    plain = 1 - order if order < -1 else 2 if size < 10 else 1 if size < 10_000 else 0
    apart = -_order(high - low) if high > low else 0
    return min(12, max(plain, apart if apart <= 5 - order else 0))


def _order(size: float) -> int:
    """The power of ten of a number's first digit."""
    return math.floor(math.log10(size)) if size and math.isfinite(size) else 0


def spread(mean: float, std: float) -> str:
    """`453.2 ± 74.1`, both with the decimals of the mean."""
    decimals = max(1, decimals_of(mean)) if abs(mean) < 1e7 else 0
    return f"{number(mean, decimals)} ± {number(std, decimals)}"


def compact(value: float) -> str:
    """A tick label: 0, 20k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}".replace("-", MINUS)
    return f"{value:z.4g}".replace("-", MINUS)


def span(values: Sequence[float]) -> str:
    """`100k`, or `10k–100k` where values differ."""
    low, high = compact(min(values)), compact(max(values))
    return low if low == high else f"{low}{NONE}{high}"


def listed(names: Sequence[str], at_most: int = 3) -> str:
    """Names in a sentence: `a, b, c and 4 more`."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def duration(seconds: float) -> str:
    """`42.1 s`, `3 min 12 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 0.1 or not seconds else "< 0.1 s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {rest:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def percent(share: float) -> str:
    """A share of the whole with one decimal."""
    return "< 0.1 %" if 0 < share < 0.0005 else f"{share:.1%}".replace("%", " %")


def chance(value: float, low: float | None = None, high: float | None = None) -> str:
    """A probability in whole percents, with its interval where there is one: `96 % [80, 100]`."""
    bounds = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * value:.0f} %{bounds}"


def p_value(value: float) -> str:
    """A probability that is small or not, as in `p = 0.013`: without the equals sign."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def p_equals(value: float) -> str:
    """The same in a sentence: `p = 0.013`, `p < 0.001`."""
    return f"p {'' if value < 0.001 else '= '}{p_value(value)}"


def size(num_bytes: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def utc(stamp: Any) -> str:
    """`2026-11-16T02:26:42+00:00` as people write it; nothing for nothing."""
    return str(stamp).replace("T", " ").replace("+00:00", " UTC") if stamp else ""


def ticks(low: float, high: float, at_most: int) -> list[float]:
    """Round positions (steps of 1, 2, 2.5 or 5) from at or below `low` to at or above `high`."""
    largest = max(abs(low), abs(high))
    if high - low <= 1e-9 * largest or largest < 1e-200:  # one value: show it in the middle
        margin = 0.5 * largest if largest > 1e-200 else 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / max(1, at_most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10, 20, 25, 50):
        step = factor * power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < at_most:
            break
    return [index * step for index in range(first, last + 1)]
