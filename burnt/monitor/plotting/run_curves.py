"""The metrics of a run as curves of a chart: in which order, on which axis, how the splits look."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from burnt.monitor.data.runs import RunView
from burnt.monitor.format import better_direction, clean
from burnt.monitor.plotting.curves import (
    DASH_PATTERNS,
    PALETTE,
    Curve,
    steps_to_epochs,
    times_to_active_seconds,
)
from burnt.train.store import Points, Series

if TYPE_CHECKING:
    from burnt.monitor.plotting.plot import Range, XAxis

__all__ = ["curve_on_axis", "curves_of", "metrics_in_order", "values_on_axis"]

_SPLITS = ("train", "valid")
_DASH_NAMES = tuple(DASH_PATTERNS)
_DETAIL_BUCKETS = 400  # buckets of a part that was zoomed into
# What the training tells of itself comes after what is measured of the model.
_TRAINING_METRICS = ("learning_rate", "steps_per_second", "samples_per_second", "data_wait_share")


def curves_of(
    view: RunView,
    name: str,
    axis: XAxis = "step",
    x_range: Range | None = None,
    *,
    with_means: bool = False,
) -> list[Curve]:
    """A metric on every split it was computed on.

    Args:
        view: the run.
        name: the metric.
        axis: the unit of the horizontal axis.
        zoomed: the part of that axis to be read in more detail.
        smoothed: whether the curves' means are read too, from which smoothing starts.

    Raises:
        BurntError: it cannot be read.
    """
    splits = sorted(
        (series.split for series in view.series() if series.name == name),
        key=lambda split: (_SPLITS.index(split) if split in _SPLITS else len(_SPLITS), split),
    )
    curves = []
    for split in splits:
        # A split has the same colour and kind of line in every chart.
        number = _SPLITS.index(split) if split in _SPLITS else len(_SPLITS) + splits.index(split)
        series = Series(name, split)
        xs, ys = curve_on_axis(view, view.points(*series), view.points_between, series, axis, x_range)
        means = None
        if with_means:
            means = curve_on_axis(view, view.means(*series), view.means_between, series, axis, x_range)
        color, style = PALETTE[number % len(PALETTE)], _DASH_NAMES[number % len(_DASH_NAMES)]
        curves.append(Curve(clean(split), color, xs, ys, style, means=means))
    return curves


def curve_on_axis(
    view: RunView,
    points: Points,
    between: Callable[[Series, int, int, int], Points],
    series: Series,
    axis: XAxis,
    x_range: Range | None,
) -> tuple[Sequence[float], Sequence[float]]:
    """Points on the horizontal axis, in more detail where it was zoomed into.

    Args:
        view: the run.
        points: of the whole course.
        between: reads a part in more detail, as `RunView.points_between` does.
        series: whose points they are.
        axis: the unit of the horizontal axis.
        zoomed: the part of that axis to be read in more detail.

    Raises:
        BurntError: it cannot be read.
    """
    xs = values_on_axis(view, points, axis)
    if x_range is None or not xs:
        return xs, points.values
    left = max(bisect_left(xs, x_range[0]) - 1, 0)
    right = min(bisect_right(xs, x_range[1]), len(xs) - 1)
    detail = between(series, points.steps[left], points.steps[right], _DETAIL_BUCKETS)
    points = Points(
        [*points.steps[:left], *detail.steps, *points.steps[right + 1 :]],
        [*points.times[:left], *detail.times, *points.times[right + 1 :]],
        [*points.values[:left], *detail.values, *points.values[right + 1 :]],
    )
    return values_on_axis(view, points, axis), points.values


def metrics_in_order(series: Sequence[Series]) -> list[str]:
    """The names of metrics: loss, others that have a better end, the rest, what the training tells of itself.

    >>> metrics_in_order([Series(name, "train") for name in ("learning_rate", "accuracy", "loss")])
    ['loss', 'accuracy', 'learning_rate']
    """

    def rank(name: str) -> tuple[int, str]:
        if name in _TRAINING_METRICS:
            return 3 + _TRAINING_METRICS.index(name), name
        return 0 if name == "loss" else 1 if better_direction(name) else 2, name

    return sorted({one.name for one in series}, key=rank)


def values_on_axis(view: RunView, points: Points, axis: XAxis) -> Sequence[float]:
    """Where points lie on the horizontal axis: steps, epochs with fractions, or seconds at work."""
    if axis == "epoch":
        return steps_to_epochs(points.steps, view.epoch_ends)
    if axis == "time":
        # A clock that was set back must not make the axis run backwards.
        latest, xs = 0.0, []
        for x in times_to_active_seconds(points.times, view.attempt_spans):
            latest = max(latest, x)
            xs.append(latest)
        return xs
    return points.steps
