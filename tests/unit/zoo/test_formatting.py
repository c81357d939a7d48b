"""Numbers as they are shown, and the geometry of charts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.zoo import formatting as fmt
from rl_training.zoo.charts import thin
from rl_training.zoo.overview import score_text
from rl_training.zoo.statistics import Estimate


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (500.0, "500.0"), (21.858, "21.86"), (-195.26, "\u2212195.3"), (1974.47, "1,974"),
     (0.0339, "0.0339"), (0.152, "0.152"), (0.00567, "0.00567"), (3.637e-07, "3.64e\u22127"),
     (-2.5e9, "\u22122.5e9"), (-0.0, "0"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "\u2212inf")],
)  # fmt: skip
def test_number(value: float, shown: str) -> None:
    assert fmt.number(value) == shown


def test_nothing_is_ever_minus_zero() -> None:
    assert [fmt.number(v, d) for v, d in ((-0.004, 2), (-0.0, 1), (-0.04, 1), (-0.4, 0))] == [
        "0.00", "0.0", "0.0", "0",
    ]  # fmt: skip
    assert fmt.number(-0.006, 2) == "\u22120.01"
    assert fmt.spread(-0.04, 0.0) == "\u22120.0400 ± 0.0000"
    assert fmt.compact(-0.0) == "0"
    assert [fmt.number(value, 2) for value in (math.nan, -math.inf)] == ["nan", "\u2212inf"]
    assert [fmt.decimals_of(value) for value in (math.nan, math.inf)] == [0, 0]


@pytest.mark.parametrize(
    ("score", "shown"),
    [((0.0006, 0.0004, 0.0008), "0.00060 [0.00040, 0.00080]"), ((0.0004,), "0.00040"), ((0.0,), "0.00"),
     ((499.99, 499.97, 500.0), "499.99 [499.97, 500.00]"), ((499.9, 499.5, 500.0), "499.9 [499.5, 500.0]"),
     ((500.0, 499.9999999, 500.0), "500.0 [500.0, 500.0]"),  # noise is not a difference
     ((-1e-9, -2.0, 3.0), "0.00 [\u22122.00, 3.00]"),
     ((15_000.4, 14_000.0, 16_000.0), "15,000 [14,000, 16,000]"),
     ((12_345.6, 12_345.2, 12_345.9), "12,345.6 [12,345.2, 12,345.9]"),
     ((0.05, 0.01, 0.09), "0.050 [0.010, 0.090]")],
)  # fmt: skip
def test_scores_have_the_decimals_that_tell_their_bounds_apart(score: tuple[float, ...], shown: str) -> None:
    assert score_text(Estimate(*score)) == shown


def test_zero_has_no_sign() -> None:
    assert [fmt.number(value, 1) for value in (-0.04, -0.0, 0.04, -0.06)] == [
        "0.0",
        "0.0",
        "0.0",
        "\u22120.1",
    ]
    shown = [fmt.plus(fmt.number(value, 1)) for value in (-0.04, 0.04, 0.06, -2.0, 1000.0)]
    assert shown == ["0.0", "0.0", "+0.1", "\u22122.0", "+1,000.0"]
    assert fmt.plus("0.00 [\u22121.00, 1.00]") == "0.00 [\u22121.00, 1.00]"
    assert fmt.plus("2.00 [\u22121.00, 5.00]") == "+2.00 [\u22121.00, 5.00]"
    assert fmt.plus("3.64e\u22127") == "+3.64e\u22127"


def test_lists_and_ranges() -> None:
    assert fmt.listed(["a", "b", "c"]) == "a, b, c"
    assert fmt.listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert [fmt.span([2000, 2000]), fmt.span([20_000, 5000, 7000])] == ["2k", "5k\u201320k"]
    assert [fmt.p_equals(p) for p in (0.0131, 0.0001)] == ["p = 0.013", "p < 0.001"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (20_000, "20k"), (1_500_000, "1.5M"), (-2500, "\u22122.5k"), (0.25, "0.25"), (2e9, "2G")],
)
def test_compact(value: float, shown: str) -> None:
    assert fmt.compact(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "< 0.1 s"), (42.09, "42.1 s"), (192, "3 min 12 s"), (7500, "2 h 05 min"), (273_600, "3 d 4 h"),
     (59.97, "1 min 00 s"), (3599.7, "1 h 00 min")],
)  # fmt: skip
def test_duration(seconds: float, shown: str) -> None:
    assert fmt.duration(seconds) == shown


def test_spread_percent_and_size() -> None:
    assert fmt.spread(453.2, 74.06) == "453.2 ± 74.1"
    assert fmt.spread(-1050.74, 291.94) == "\u22121,050.7 ± 291.9"
    assert fmt.spread(0.0, 0.0) == "0.0 ± 0.0"
    assert [fmt.percent(s) for s in (0.7304, 0.0002, 0.0, 1.0)] == ["73.0 %", "< 0.1 %", "0.0 %", "100.0 %"]
    assert fmt.chance(0.956, 0.8, 1.0) == "96 % [80, 100]"
    assert fmt.chance(0.5) == fmt.chance(0.5, None, 1.0) == "50 %"
    assert [fmt.known(value) for value in (None, 0.0, 500.0)] == [fmt.NONE, "0", "500.0"]
    assert [fmt.size(b) for b in (512, 2048, 25_276_518_400)] == ["512 B", "2.0 KiB", "23.5 GiB"]


def test_ticks_of_common_axes() -> None:
    assert fmt.ticks(0, 97_000, 7) == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    assert fmt.ticks(-1961, -622, 6) == [-2000, -1500, -1000, -500]
    assert fmt.ticks(5.0, 5.0, 4)[0] < 5.0 < fmt.ticks(5.0, 5.0, 4)[-1]


finite = st.floats(-1e99, 1e99)


@given(a=finite, b=finite, at_most=st.integers(3, 8))
def test_ticks_cover_the_data_evenly(a: float, b: float, at_most: int) -> None:
    low, high = min(a, b), max(a, b)
    ticks = fmt.ticks(low, high, at_most)
    slack = 1e-6 * max(abs(low), abs(high))
    assert 2 <= len(ticks) <= at_most
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    gaps = [second - first for first, second in pairwise(ticks)]
    assert min(gaps) > 0
    assert math.isclose(min(gaps), max(gaps), rel_tol=1e-3)


def test_thinning_keeps_the_outline() -> None:
    points = [(float(i), math.sin(i)) for i in range(10_000)]
    points[1234] = (1234.0, 99.0)
    points[8765] = (8765.0, -99.0)
    kept = thin(points, 600)
    assert len(kept) <= 600
    assert kept == sorted(kept)
    assert {(1234.0, 99.0), (8765.0, -99.0)} <= set(kept)
    assert set(kept) <= set(points)
    assert thin(points[:50], 600) == points[:50]
