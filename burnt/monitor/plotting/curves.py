"""Curves as numbers, before drawing: downsampling, smoothing, axis units and styles. No Textual, no numpy.

Values may be NaN, which is a gap, or infinite, which lies above or below all other values.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from burnt.plot.braille import DASH_PATTERNS, PALETTE

# (colour, dash pattern) of runs by index: when the colours repeat, the pattern changes.
RUN_STYLES = tuple((color, style) for style in DASH_PATTERNS for color in PALETTE)


class Curve(NamedTuple):
    """A curve of a chart."""

    label: str
    color: str  # of Textual, such as "#4477aa"
    xs: Sequence[float]  # ascending and finite
    ys: Sequence[float]  # NaN is a gap
    style: str | None = None  # "points", or a key of `DASH_PATTERNS`, through which a chart cycles by default
    tag: str = ""  # one or two characters next to the curve's end
    means: tuple[Sequence[float], Sequence[float]] | None = None  # x and y to smooth, if xs, ys are extremes
    faint: bool = False  # drawn dimmed and without markers, as context for the others


def reduce_points(
    xs: Sequence[float],
    ys: Sequence[float],
    columns: int,
    low: float | None = None,
    high: float | None = None,
) -> tuple[list[float], list[float]]:
    """Downsample to at most five points per column of a plot, such that the plot looks the same.

    Each column keeps, in order, its first and last point (so that lines between columns do not change), its
    lowest and highest finite value, and its first non-finite value. The nearest points outside of the range
    are kept too.

    >>> reduce_points([0, 1, 2, 3, 4, 5], [3.0, 1.0, 9.0, 2.0, 5.0, 4.0], columns=1)
    ([0, 1, 2, 5], [3.0, 1.0, 9.0, 4.0])
    """
    if not xs:
        return [], []
    low = xs[0] if low is None else low
    high = xs[-1] if high is None else high
    start, stop = max(bisect_left(xs, low) - 1, 0), min(bisect_right(xs, high) + 1, len(xs))
    if stop - start <= 2 * columns:
        return list(xs[start:stop]), list(ys[start:stop])
    first, last = bisect_left(xs, low, start, stop), bisect_right(xs, high, start, stop)
    scale = columns / (high - low) if high > low else 0.0
    columns_of_points = [int((x - low) * scale) for x in xs[first:last]]
    at_the_edge = bisect_left(columns_of_points, columns)
    columns_of_points[at_the_edge:] = [columns - 1] * (len(columns_of_points) - at_the_edge)
    indices = list(range(start, first))  # the nearest point left of the range
    at = 0
    while at < len(columns_of_points):
        end = bisect_right(columns_of_points, columns_of_points[at], at)
        indices += _column_points(ys, first + at, first + end)
        at = end
    indices += range(last, stop)
    return [xs[i] for i in indices], [ys[i] for i in indices]


def _column_points(ys: Sequence[float], start: int, stop: int) -> list[int]:
    """Return the indices of a column's points that a plot needs."""
    if stop - start < 3:
        return list(range(start, stop))
    indices = {start, stop - 1}
    part = ys[start:stop]
    if math.isfinite(sum(part)):
        return sorted(indices | {start + part.index(min(part)), start + part.index(max(part))})
    finite = [i for i in range(start, stop) if math.isfinite(ys[i])]
    if finite:
        indices.add(min(finite, key=ys.__getitem__))
        indices.add(max(finite, key=ys.__getitem__))
    if len(finite) < stop - start:
        indices.add(next(i for i in range(start, stop) if not math.isfinite(ys[i])))
    return sorted(indices)


def smooth(ys: Sequence[float], weight: float) -> list[float]:
    """Return the debiased exponential moving average, as TensorBoard computes it.

    `weight` is the weight of the past, from 0 (no smoothing) to less than 1. Values that are not finite are
    returned unchanged and do not enter the average.

    >>> smooth([1.0, 2.0, float("nan"), 3.0], 0.5)
    [1.0, 1.6666666666666667, nan, 2.4285714285714284]
    """
    smoothed: list[float] = []
    mean, bias = 0.0, 1.0
    for y in ys:
        if math.isfinite(y):
            mean = weight * mean + (1 - weight) * y
            bias *= weight
            y = mean / (1 - bias)
        smoothed.append(y)
    return smoothed


def extreme_indices(ys: Sequence[float]) -> tuple[int, int] | None:
    """Return the indices of the lowest and highest finite value (the first of equals); None if there is none.

    >>> extreme_indices([2.0, float("inf"), 1.0, 5.0]), extreme_indices([float("nan")])
    ((2, 3), None)
    """
    finite = [i for i, y in enumerate(ys) if math.isfinite(y)]
    if not finite:
        return None
    return min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)


def nearest_index(xs: Sequence[float], x: float) -> int | None:
    """Return the index of the value nearest to `x` in an ascending sequence (first of equals); None if empty.

    >>> nearest_index([1, 4, 9], 6), nearest_index([1, 4, 9], 100), nearest_index([], 1)
    (1, 2, None)
    """
    if not xs:
        return None
    right = bisect_left(xs, x)
    if right == 0:
        return 0
    if right == len(xs) or x - xs[right - 1] <= xs[right] - x:
        return bisect_left(xs, xs[right - 1])
    return right


def steps_to_epochs(steps: Sequence[float], ends: Sequence[tuple[float, float]]) -> list[float]:
    """Convert steps to fractional epochs; to themselves if no epoch was completed.

    `ends` are the (step, epoch) pairs at which epochs were completed, ascending. Steps in between are
    interpolated, steps after the last extrapolated by the length of the last epoch.

    >>> steps_to_epochs([0, 50, 100, 300, 400], [(100, 1), (300, 2)])
    [0.0, 0.5, 1.0, 2.0, 2.5]
    """
    if not ends:
        return [float(step) for step in steps]
    marks = [(0.0, 0.0), *((float(s), float(e)) for s, e in ends if s > 0)]
    mark_steps = [step for step, _ in marks]
    epochs = []
    for step in steps:
        i = min(max(bisect_left(mark_steps, step), 1), len(marks) - 1)
        (left, before), (right, after) = marks[i - 1], marks[i]
        epochs.append(before + (after - before) * (step - left) / (right - left))
    return epochs


def times_to_active_seconds(times: Sequence[float], attempts: Sequence[tuple[float, float]]) -> list[float]:
    """Convert Unix times to seconds of training, without the gaps between attempts, (start, end) pairs.

    >>> times_to_active_seconds([10, 12, 105, 120], [(10, 15), (105, 110)])
    [0.0, 2.0, 5.0, 20.0]
    """
    result = []
    for time in times:
        active = 0.0
        for i, (began, ended) in enumerate(attempts):
            last = i == len(attempts) - 1
            active += max((time if last else min(time, ended)) - began, 0.0)
        result.append(active)
    return result
