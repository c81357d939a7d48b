"""Statistics against plain Python, known values and their own invariants."""

from __future__ import annotations

import math
import random
import statistics as plain
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.zoo import curves, significance
from rl_training.zoo import statistics as ours

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)
tasks = st.lists(scores, min_size=1, max_size=4)


def slow_iqm(values: list[float]) -> float:
    ordered = sorted(values)
    cut = math.floor(0.25 * len(ordered))
    return plain.fmean(ordered[cut : len(ordered) - cut])


def slow_wins(first: list[float], second: list[float]) -> float:
    won = [1.0 if b > a else 0.5 if b == a else 0.0 for a in first for b in second]
    return plain.fmean(won)


# Point estimates


@given(tasks)
def test_point_estimates_equal_plain_python(strata: list[list[float]]) -> None:
    arrays = ours.as_strata(strata)
    means = [plain.fmean(task) for task in strata]
    near = {"rel": 1e-9, "abs": 1e-6}
    assert float(ours.mean(arrays)) == pytest.approx(plain.fmean(means), **near)
    middle = plain.median(means) if len(strata) > 1 else plain.median(strata[0])
    assert float(ours.median(arrays)) == pytest.approx(middle, **near)
    assert float(ours.iqm(arrays)) == pytest.approx(slow_iqm([x for task in strata for x in task]), **near)
    gap = plain.fmean(plain.fmean(max(0.0, 10.0 - x) for x in task) for task in strata)
    assert float(ours.optimality_gap(arrays, 10.0)) == pytest.approx(gap, **near)


def test_known_values() -> None:
    assert float(ours.interquartile_mean([1, 2, 3, 4, 5, 6, 7, 100])) == 4.5  # 1, 2 and 7, 100 are cut off
    assert float(ours.interquartile_mean([0, 10, 20, 30, 1000])) == 20.0  # one of five at each end
    assert float(ours.interquartile_mean([3, 5, 100])) == 36.0  # a quarter of three is none
    assert float(ours.median([np.array([1.0, 9.0, 2.0])])) == 2.0
    assert float(ours.median([np.array([1.0, 9.0]), np.array([3.0]), np.array([100.0])])) == 5.0
    assert float(ours.optimality_gap([np.array([0.5, 2.0])])) == 0.25
    assert ours.normalized([-20.7, 14.6, 32.25], -20.7, 14.6).tolist() == pytest.approx([0.0, 1.0, 1.5])
    with pytest.raises(ValueError, match="two different numbers"):
        ours.normalized([1.0], 3.0, 3.0)
    with pytest.raises(ValueError, match="no scores"):
        ours.estimate([[1.0], []])


@given(tasks, st.floats(0.1, 10), st.floats(-100, 100))
def test_statistics_follow_scale_and_shift(strata: list[list[float]], scale: float, shift: float) -> None:
    arrays = ours.as_strata(strata)
    moved = [scale * task + shift for task in arrays]
    for statistic in (ours.mean, ours.median, ours.iqm):
        expected = scale * float(statistic(arrays)) + shift
        assert float(statistic(moved)) == pytest.approx(expected, rel=1e-9, abs=1e-4)


# Intervals


def slow_bootstrap(strata: list[list[float]], rng: random.Random, replicates: int) -> list[float]:
    """IQM of runs drawn with replacement within each task, one at a time."""
    return sorted(slow_iqm([rng.choice(task) for task in strata for _ in task]) for _ in range(replicates))


def test_bootstrap_interval_equals_a_slow_one() -> None:
    rng = random.Random(0)
    strata = [[rng.gauss(100, 20) for _ in range(8)], [rng.gauss(50, 5) for _ in range(5)]]
    slow = slow_bootstrap(strata, rng, 20_000)
    found = ours.estimate(strata, replicates=20_000)
    assert found.value == pytest.approx(slow_iqm([x for task in strata for x in task]))
    assert found.low == pytest.approx(slow[500], abs=1.0)  # two Monte Carlo answers to one question
    assert found.high == pytest.approx(slow[19_500], abs=1.0)


def slow_interval(draw: Callable[[], float], replicates: int = 6000) -> list[float]:
    """The middle 95 % of what `draw` answers, counted off."""
    found = sorted(draw() for _ in range(replicates))
    return [found[int(0.025 * replicates)], found[int(0.975 * replicates)]]


def slow_statistic(name: str, strata: list[list[float]]) -> float:
    means = [plain.fmean(task) for task in strata]
    gaps = [plain.fmean(max(0.0, 1.0 - x) for x in task) for task in strata]
    pooled = [x for task in strata for x in task]
    values = {"iqm": slow_iqm(pooled), "mean": plain.fmean(means), "median": plain.median(means)}
    return {**values, "gap": plain.fmean(gaps)}[name]


@pytest.mark.parametrize("name", list(ours.STATISTICS))
def test_intervals_of_every_statistic_equal_slow_ones(name: str) -> None:
    rng = random.Random(5)
    strata = [[rng.gauss(m, 0.3) for _ in range(n)] for m, n in ((0.4, 6), (0.9, 4), (1.3, 5))]

    def draw() -> float:
        return slow_statistic(name, [[rng.choice(task) for _ in task] for task in strata])

    found = ours.estimate(strata, ours.STATISTICS[name], replicates=20_000)
    assert found.value == pytest.approx(slow_statistic(name, strata))
    assert found.bounds == pytest.approx(slow_interval(draw), abs=0.02)


def test_intervals_of_differences_and_improvements_equal_slow_ones() -> None:
    rng = random.Random(6)
    first = [[rng.gauss(0, 1) for _ in range(6)], [rng.gauss(5, 1) for _ in range(4)]]
    second = [[rng.gauss(0.5, 1) for _ in range(5)], [rng.gauss(5.5, 1) for _ in range(7)]]

    def drawn() -> list[list[list[float]]]:
        return [[[rng.choice(task) for _ in task] for task in side] for side in (first, second)]

    def behind() -> float:
        one, two = drawn()
        return slow_statistic("mean", two) - slow_statistic("mean", one)

    def better() -> float:
        return plain.fmean(slow_wins(a, b) for a, b in zip(*drawn(), strict=True))

    distance = ours.difference(first, second, replicates=20_000)
    chance = ours.probability_of_improvement(first, second, replicates=20_000)
    assert distance.bounds == pytest.approx(slow_interval(behind), abs=0.06)
    assert chance.bounds == pytest.approx(slow_interval(better), abs=0.03)


@given(tasks)
def test_resampling_ranks_is_resampling_scores(strata: list[list[float]]) -> None:
    by_ranks = ours.bootstrap(strata, ours.iqm, replicates=50)
    by_scores = ours.bootstrap(strata, lambda drawn: ours.iqm(drawn), replicates=50)
    assert by_ranks == pytest.approx(by_scores, rel=1e-9, abs=1e-6)


def test_bootstrap_of_two_runs_is_known() -> None:
    """Of two runs 0 and 1, a resample's mean is 0, ½ or 1 with probabilities ¼, ½ and ¼."""
    drawn = ours.bootstrap([[0.0, 1.0]], ours.mean, replicates=40_000)
    shares = [float(np.mean(drawn == value)) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
    assert ours.interval(drawn, 0.4) == (0.5, 0.5)
    assert ours.interval(drawn, 0.95) == (0.0, 1.0)


def test_resampling_stays_within_its_task() -> None:
    """Tasks that do not vary leave no interval, however far apart they are."""
    found = ours.estimate([[0.0] * 5, [100.0] * 5], ours.mean)
    assert (found.value, found.low, found.high) == (50.0, 50.0, 50.0)


def test_one_run_has_no_interval() -> None:
    assert ours.estimate([[7.0]]) == ours.Estimate(7.0)
    assert ours.difference([[7.0]], [[9.0]]) == ours.Estimate(2.0)
    assert ours.probability_of_improvement([[7.0]], [[9.0]]) == ours.Estimate(1.0)
    assert ours.estimate([[7.0, 8.0]]).low is not None


def test_one_run_on_a_side_or_on_a_task_leaves_no_interval() -> None:
    """Resampled, a single run would seem not to vary at all."""
    five = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert ours.difference([five], [[7.0]]) == ours.Estimate(4.0)
    assert ours.difference([[7.0]], [five]) == ours.Estimate(-4.0)
    assert ours.probability_of_improvement([five], [[7.0]]) == ours.Estimate(1.0)
    assert ours.estimate([five, [7.0]], ours.mean) == ours.Estimate(5.0)
    assert ours.difference([five, five], [five, [7.0]]) == ours.Estimate(2.0)


def test_the_same_seed_gives_the_same_interval_in_any_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    strata = [[1.0, 5.0, 2.0, 8.0, 4.0, 3.5, 7.0, 2.5]]
    whole = ours.estimate(strata)
    assert whole == ours.estimate(strata)
    assert whole != ours.estimate(strata, seed=1)
    monkeypatch.setattr(ours, "_CHUNK", 40)
    assert ours.estimate(strata) == whole


@settings(max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
def test_an_interval_lies_within_the_scores_and_narrows_with_confidence(values: list[float]) -> None:
    wide, narrow = ours.estimate([values]), ours.estimate([values], confidence=0.5)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert min(values) - slack <= wide.bounds[0] <= narrow.bounds[0] + slack
    assert narrow.bounds[1] - slack <= wide.bounds[1] <= max(values) + slack


def test_intervals_of_many_runs_cover_the_truth() -> None:
    """Of 300 experiments of 20 runs, about 95 % of the intervals hold the true mean."""
    rng = np.random.default_rng(3)
    found = [ours.estimate([rng.normal(10, 3, 20)], ours.mean, replicates=500) for _ in range(300)]
    covered = sum(e.bounds[0] <= 10 <= e.bounds[1] for e in found)
    assert 0.90 <= covered / 300 <= 0.98


def test_difference_and_overlap() -> None:
    found = ours.difference([[1.0, 2.0, 3.0]], [[11.0, 12.0, 13.0]])
    assert found.value == 10.0
    assert 8.0 <= found.bounds[0] < 10.0 < found.bounds[1] <= 12.0
    one, two, three = (ours.Estimate(v, v - 1, v + 1) for v in (0.0, 2.0, 2.5))
    assert one.overlaps(two)
    assert two.overlaps(one)
    assert not one.overlaps(three)


# Improvement and profiles


@given(scores, scores)
def test_probability_of_improvement_equals_counting(first: list[float], second: list[float]) -> None:
    found = ours.probability_of_improvement([first], [second], replicates=20)
    assert found.value == pytest.approx(slow_wins(first, second))
    reverse = ours.probability_of_improvement([second], [first], replicates=20)
    assert found.value + reverse.value == pytest.approx(1.0)


def test_probability_of_improvement_over_tasks() -> None:
    first, second = [[1.0, 2.0], [5.0, 5.0]], [[3.0, 4.0], [5.0, 1.0]]
    found = ours.probability_of_improvement(first, second)
    assert found.value == pytest.approx((1.0 + 0.25) / 2)
    assert 0.5 <= found.bounds[0] <= found.value <= found.bounds[1] <= 0.75
    with pytest.raises(ValueError, match="the same tasks"):
        ours.probability_of_improvement(first, second[:1])


@given(tasks, st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_performance_profile_equals_counting(strata: list[list[float]], at: list[float]) -> None:
    found = ours.performance_profile(strata, at, replicates=20)
    expected = [plain.fmean(plain.fmean(float(x > t) for x in task) for task in strata) for t in at]
    assert found.share.tolist() == pytest.approx(expected)
    assert (found.low <= found.high).all()


def test_performance_profile_intervals() -> None:
    found = ours.performance_profile([[0.0, 1.0], [0.0, 1.0]], [-1.0, 0.5, 2.0], replicates=4000)
    assert found.share.tolist() == [1.0, 0.5, 0.0]
    assert found.low.tolist() == [1.0, 0.0, 0.0]
    assert found.high.tolist() == [1.0, 1.0, 0.0]


# Curves


def test_a_curve_interpolates_and_never_extrapolates() -> None:
    runs = [([0, 10, 20], [0.0, 10.0, 10.0]), ([5, 15], [5.0, 25.0]), ([0, 20], [2.0, 2.0])]
    found = curves.sample_efficiency(runs, points=5)
    assert found.steps.tolist() == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert found.runs.tolist() == [2, 3, 3, 3, 2]
    assert found.value.tolist() == pytest.approx([1.0, 4.0, (10 + 15 + 2) / 3, (10 + 25 + 2) / 3, 6.0])
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()


def test_a_curve_ends_where_half_of_the_runs_end_and_uses_their_own_steps() -> None:
    runs = [([10, 20], [1.0, 2.0]), ([10, 20], [3.0, 4.0]), ([10, 20, 500], [5.0, 6.0, 7.0])]
    found = curves.sample_efficiency(runs)
    assert found.steps.tolist() == [10.0, 20.0]
    assert found.value.tolist() == [3.0, 4.0]
    assert len(curves.sample_efficiency([]).steps) == 0
    single = curves.sample_efficiency([([1, 2], [3.0, 4.0])])
    assert single.low.tolist() == single.high.tolist() == single.value.tolist() == [3.0, 4.0]
    assert single.band == []


def test_the_band_of_a_curve_is_the_interval_at_each_step() -> None:
    rng = np.random.default_rng(1)
    finals = rng.normal(100, 30, 9)
    found = curves.sample_efficiency([([0, 1], [0.0, x]) for x in finals], replicates=8000)
    expected = ours.estimate([finals], replicates=8000)
    assert found.value[-1] == pytest.approx(expected.value)
    assert (found.low[-1], found.high[-1]) == pytest.approx(expected.bounds, abs=2.0)
    assert (found.low[0], found.high[0]) == (0.0, 0.0)


def test_a_curve_over_uneven_steps_equals_a_slow_one() -> None:
    """At a step that no run was measured at, interpolated and resampled by hand."""
    rng = random.Random(7)
    runs = [([0, 40 + 10 * i, 200], [0.0, rng.gauss(50, 20), rng.gauss(100, 20)]) for i in range(6)]

    def at(step: float, steps: list[int], scores: list[float]) -> float:
        i = 1 if step <= steps[1] else 2
        share = (step - steps[i - 1]) / (steps[i] - steps[i - 1])
        return scores[i - 1] + share * (scores[i] - scores[i - 1])

    found = curves.sample_efficiency(runs, points=9, replicates=20_000)
    assert found.steps.tolist() == [25.0 * i for i in range(9)]
    values = [at(125.0, *run) for run in runs]
    assert found.value[5] == pytest.approx(slow_iqm(values))
    low, high = slow_interval(lambda: slow_iqm([rng.choice(values) for _ in values]))
    assert (found.low[5], found.high[5]) == pytest.approx((low, high), abs=1.0)


def test_time_to_a_threshold() -> None:
    assert curves.first_reached([10, 20, 30], [1.0, 5.0, 3.0], 5.0) == 20.0
    assert curves.first_reached([30, 10, 20], [9.0, 1.0, 7.0], 5.0) == 20.0
    assert curves.first_reached([10, 20], [1.0, 2.0], 5.0) == math.inf
    assert curves.first_reached([], [], 5.0) == math.inf
    assert curves.typical_time([10.0, math.inf, 30.0]) == 30.0
    assert curves.typical_time([10.0, math.inf, math.inf]) is None
    assert curves.typical_time([10.0, math.inf]) is None
    assert curves.typical_time([]) is None


# Significance


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=5), st.lists(st.integers(0, 20), min_size=1, max_size=5)
)
def test_exact_p_value_equals_enumeration(first: list[int], second: list[int]) -> None:
    pooled = first + second

    def behind(chosen: tuple[int, ...]) -> float:
        two = [pooled[i] for i in chosen]
        one = [pooled[i] for i in range(len(pooled)) if i not in chosen]
        return plain.fmean(two) - plain.fmean(one)

    divisions = [behind(c) for c in combinations(range(len(pooled)), len(second))]
    seen = plain.fmean(second) - plain.fmean(first)
    expected = sum(d <= seen + 1e-9 for d in divisions) / len(divisions)
    assert significance.p_worse(first, second) == pytest.approx(expected)


def test_p_values_of_clear_cases() -> None:
    assert significance.p_worse([5, 6, 7, 8, 9], [0, 1, 2, 3, 4]) == pytest.approx(1 / 252)
    assert significance.p_worse([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]) == 1.0
    assert significance.p_worse([500] * 5, [500] * 5) == 1.0
    assert significance.smallest_p(5, 5) == pytest.approx(1 / 252)
    assert significance.smallest_p(1, 1) == 0.5


def test_sampled_p_value_is_close_to_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(10, 2, 7), rng.normal(9, 2, 7)
    exact = significance.p_worse(one, two)
    monkeypatch.setattr(significance, "EXACT_LIMIT", 0)
    assert significance.p_worse(one, two) == pytest.approx(exact, abs=0.02)


def test_tasks_together_show_what_each_alone_does_not() -> None:
    one = [[10.0, 11.0, 12.0], [100.0, 110.0, 120.0], [1.0, 1.1, 1.2]]
    two = [[9.0, 9.5, 10.0], [90.0, 95.0, 100.0], [0.9, 0.95, 1.0]]
    assert min(significance.p_worse(a, b) for a, b in zip(one, two, strict=True)) >= 0.05
    assert significance.p_worse_overall(one, two) < 0.01
    assert significance.p_worse_overall(two, one) > 0.99


@pytest.mark.parametrize(("runs", "covered"), [(3, 0.74), (5, 0.89), (10, 0.94)])
def test_how_often_an_interval_holds_the_truth_is_as_the_docs_say(runs: int, covered: float) -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        found = ours.estimate([rng.normal(size=runs)], replicates=300)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.0 <= found.high
    assert hits / 1000 == pytest.approx(covered, abs=0.03)


def slow_corrected(first: list[np.ndarray], second: list[np.ndarray], draws: int) -> list[float]:
    """Step-down max-T by dividing the runs of all tasks at once, many times."""
    rng = np.random.default_rng(1)

    def behind(pooled: np.ndarray, ones: int) -> np.ndarray:
        a, b = pooled[..., :ones], pooled[..., ones:]
        twos = pooled.shape[-1] - ones
        within = np.sqrt((ones * a.var(-1) + twos * b.var(-1)) / (ones + twos - 2))
        floor = 0.001 * np.abs(pooled).max(-1)
        return (b.mean(-1) - a.mean(-1)) / ((within + floor) * np.sqrt(1 / ones + 1 / twos))

    pooled = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    seen = np.array([behind(p, len(a)) for p, a in zip(pooled, first, strict=True)])
    shuffled = [rng.permuted(np.broadcast_to(p, (draws, len(p))), axis=1) for p in pooled]
    drawn = np.array([behind(p, len(a)) for p, a in zip(shuffled, first, strict=True)])
    order, found, highest = np.argsort(seen), [0.0] * len(seen), 0.0
    for rank, task in enumerate(order):
        share = np.mean(drawn[order[rank:]].min(0) <= seen[task] + 1e-9)
        highest = max(highest, float(share))
        found[task] = highest
    return found


def test_corrected_p_values_equal_dividing_all_tasks_at_once() -> None:
    rng = np.random.default_rng(8)
    first = [rng.normal(10, 2, 5), rng.normal(100, 2, 7), rng.normal(-10, 1, 4)]
    second = [rng.normal(8, 2, 5), rng.normal(98, 2, 6), rng.normal(-10.5, 1, 4)]
    found = significance.p_worse_each(first, second)
    assert found == pytest.approx(slow_corrected(first, second, 40_000), abs=0.01)
    alone = [significance.p_worse(a, b) for a, b in zip(first, second, strict=True)]
    assert all(own <= p + 1e-9 for own, p in zip(alone, found, strict=True))
    assert significance.p_worse_each(first[:1], second[:1]) == pytest.approx(alone[:1])


def test_corrected_p_values_where_divisions_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    first, second = [rng.normal(10, 2, 6) for _ in range(3)], [rng.normal(8, 2, 6) for _ in range(3)]
    exact = significance.p_worse_each(first, second)
    monkeypatch.setattr(significance, "EXACT_LIMIT", 0)
    assert significance.p_worse_each(first, second) == pytest.approx(exact, abs=0.02)
    assert significance.p_worse_each(first, second) == significance.p_worse_each(first, second)


@pytest.mark.parametrize("fallen", [1, 2, 10, 39])
def test_equal_collapses_do_not_stand_in_each_others_way(fallen: int) -> None:
    """Nor do tasks whose runs are all the same: they cannot fall behind by any division."""
    before, after = [[500.0] * 5] * 39, [[10.0] * 5] * fallen + [[500.0] * 5] * (39 - fallen)
    found = significance.p_worse_each(before, after)
    assert found[:fallen] == pytest.approx([1 / 252] * fallen)
    assert found[fallen:] == [1.0] * (39 - fallen)
    assert significance.p_worse_each(after, before) == [1.0] * 39
    assert significance.p_worse_each([[0.0] * 5] * 2, [[0.0] * 5] * 2) == [1.0, 1.0]
