"""Curves as numbers: what reduction keeps, smoothing, axes of epochs and of time."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from burnt.monitor.plotting.curves import (
    extreme_indices,
    nearest_index,
    reduce_points,
    smooth,
    steps_to_epochs,
    times_to_active_seconds,
)

NAN, INF = math.nan, math.inf

values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([NAN, INF, -INF, 0.0, 1.0, 5e-324])
)


@st.composite
def series(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    steps = sorted(draw(st.lists(st.integers(0, 200), max_size=120)))
    ys = draw(st.lists(values, min_size=len(steps), max_size=len(steps)))
    return [float(step) for step in steps], ys


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


# --- reduction


@given(series(), st.integers(1, 12))
@example(([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, NAN, 5.0, 0.0, 1.0]), 1)
@example(([3.0] * 9, [1.0, 4.0, 2.0, NAN, INF, -INF, 0.0, 3.0, 1.0]), 1)
def test_what_a_plot_shows_stays(found: tuple[list[float], list[float]], columns: int) -> None:
    xs, ys = found
    kept_xs, kept_ys = reduce_points(xs, ys, columns)
    assert len(kept_xs) == len(kept_ys) <= max(5 * columns, 2 * columns)
    # A subsequence, in order.
    points = iter(zip(xs, ys, strict=True))
    for x, y in zip(kept_xs, kept_ys, strict=True):
        assert any(a == x and same(b, y) for a, b in points), "not a point, or out of order"
    if not xs:
        return
    assert kept_xs[0] == xs[0]
    assert same(kept_ys[0], ys[0])
    assert kept_xs[-1] == xs[-1]
    assert same(kept_ys[-1], ys[-1])

    def column(x: float) -> int:
        return 0 if xs[-1] == xs[0] else min(int((x - xs[0]) * (columns / (xs[-1] - xs[0]))), columns - 1)

    for c in range(columns):
        before = [y for x, y in zip(xs, ys, strict=True) if column(x) == c]
        after = [y for x, y in zip(kept_xs, kept_ys, strict=True) if column(x) == c]
        finite, kept = [y for y in before if math.isfinite(y)], [y for y in after if math.isfinite(y)]
        if finite:
            assert min(kept) == min(finite)
            assert max(kept) == max(finite)
        assert bool(before) == bool(after)
        if before:
            assert same(before[0], after[0])
            assert same(before[-1], after[-1])
            assert any(not math.isfinite(y) for y in after) == any(not math.isfinite(y) for y in before)


@given(series(), st.integers(1, 12), st.floats(-10, 210), st.floats(-10, 210))
def test_lines_come_in_and_go_out_of_a_range(
    found: tuple[list[float], list[float]], columns: int, one: float, other: float
) -> None:
    xs, ys = found
    low, high = sorted((one, other))
    kept, _ = reduce_points(xs, ys, columns, low, high)
    left, right = [x for x in xs if x < low], [x for x in xs if x > high]
    assert [x for x in kept if x < low] == left[-1:]
    assert [x for x in kept if x > high] == right[:1]
    inside = {x for x in xs if low <= x <= high}
    if inside:
        assert {min(inside), max(inside)} <= set(kept)


def test_a_short_series_is_left_alone() -> None:
    assert reduce_points([1, 2], [NAN, 3.0], 1)[0] == [1, 2]
    assert reduce_points([], [], 5) == ([], [])


def test_many_points_become_a_few_and_none_of_the_spikes_is_lost() -> None:
    n = 100_000
    ys = [math.sin(i / 9e3) for i in range(n)]
    ys[12_345], ys[77_777], ys[n - 1] = 50.0, -50.0, 7.0
    xs, kept = reduce_points(range(n), ys, 160)
    assert len(xs) <= 800
    assert dict(zip(xs, kept, strict=True)).items() >= {12_345: 50.0, 77_777: -50.0, n - 1: 7.0}.items()


# --- smoothing


def test_smoothing_is_the_debiased_average() -> None:
    ys = [3.0, -1.0, 4.0, 1.0, 5.0]
    weight = 0.7
    for i, value in enumerate(smooth(ys, weight)):
        shares = [weight ** (i - j) for j in range(i + 1)]
        mean = sum(share * y for share, y in zip(shares, ys, strict=False)) / sum(shares)
        assert value == pytest.approx(mean, rel=1e-12)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.floats(0, 0.99))
def test_smoothed_values_lie_between_their_extremes(ys: list[float], weight: float) -> None:
    smoothed = smooth(ys, weight)
    assert len(smoothed) == len(ys)
    for i, value in enumerate(smoothed):
        margin = 1e-9 * max(map(abs, ys[: i + 1]), default=0.0) + 1e-300
        assert min(ys[: i + 1]) - margin <= value <= max(ys[: i + 1]) + margin


def test_gaps_stay_and_do_not_spoil_what_follows() -> None:
    smoothed = smooth([1.0, NAN, INF, 1.0], 0.9)
    assert smoothed[0] == smoothed[3] == 1.0
    assert math.isnan(smoothed[1])
    assert smoothed[2] == INF
    assert smooth([], 0.5) == []
    assert smooth([2.0, 4.0], 0.0) == [2.0, 4.0]


# --- looking things up


@given(st.lists(st.integers(0, 50), max_size=20), st.floats(-10, 60))
def test_the_nearest_is_the_nearest(xs: list[int], x: float) -> None:
    xs = sorted(xs)
    index = nearest_index(xs, x)
    if not xs:
        assert index is None
        return
    assert index is not None
    assert abs(xs[index] - x) == min(abs(other - x) for other in xs)
    assert xs.index(xs[index]) == index


def test_extremes_are_the_first_of_equals() -> None:
    assert extreme_indices([1.0, 3.0, 1.0, 3.0, NAN, -INF]) == (0, 1)
    assert extreme_indices([]) is None


def test_epochs_have_fractions() -> None:
    ends = [(100.0, 1.0), (300.0, 2.0)]
    assert steps_to_epochs([0, 25, 200, 500], ends) == [0.0, 0.25, 1.5, 3.0]
    assert steps_to_epochs([5, 7], []) == [5.0, 7.0]
    # A run resumed after its first epochs were superseded still has its clock run forwards.
    found = steps_to_epochs(range(0, 400, 7), ends)
    assert found == sorted(found)


def test_time_at_work_leaves_out_the_nights() -> None:
    attempts = [(100.0, 110.0), (500.0, 520.0), (900.0, 905.0)]
    assert times_to_active_seconds([100, 105, 110, 500, 515, 900, 1000], attempts) == [
        0,
        5,
        10,
        10,
        25,
        30,
        130,
    ]
    assert times_to_active_seconds([50.0], attempts) == [0.0]
    assert times_to_active_seconds([7.0], []) == [0.0]
