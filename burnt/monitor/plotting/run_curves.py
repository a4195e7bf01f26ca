"""The metrics of a run as chart curves: their order, their x values and the styles of the splits."""

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
_DETAIL_BUCKETS = 400  # buckets read for a zoomed range
# Metrics of the training process are listed after metrics of the model.
_TRAINING_METRICS = ("learning_rate", "steps_per_second", "samples_per_second", "data_wait_share")


def curves_of(
    view: RunView,
    name: str,
    axis: XAxis = "step",
    x_range: Range | None = None,
    *,
    with_means: bool = False,
) -> list[Curve]:
    """Read a metric as one curve per split.

    Args:
        view: the run.
        name: the metric.
        axis: the unit of the x axis.
        x_range: a range of the x axis to read in more detail.
        with_means: whether to read the curves' means too, which smoothing needs.

    Raises:
        BurntError: the run cannot be read.
    """
    splits = sorted(
        (series.split for series in view.series() if series.name == name),
        key=lambda split: (_SPLITS.index(split) if split in _SPLITS else len(_SPLITS), split),
    )
    curves = []
    for split in splits:
        # A split has the same colour and dash pattern in every chart.
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
    """Convert points to x and y values, reading a zoomed range in more detail.

    Args:
        view: the run.
        points: the points of the whole series.
        between: reads a step range in more detail, such as `RunView.points_between`.
        series: the series of the points.
        axis: the unit of the x axis.
        x_range: a range of the x axis to read in more detail.

    Raises:
        BurntError: the run cannot be read.
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
    """Return metric names in display order: loss, with a better direction, others, training metrics.

    >>> names = ("learning_rate/*.bias", "learning_rate", "accuracy", "loss")
    >>> metrics_in_order([Series(name, "train") for name in names])
    ['loss', 'accuracy', 'learning_rate', 'learning_rate/*.bias']
    """

    def rank(name: str) -> tuple[int, str]:
        kind, _, _ = name.partition("/")  # learning_rate/<group>
        if kind in _TRAINING_METRICS:
            return 3 + _TRAINING_METRICS.index(kind), name
        return 0 if name == "loss" else 1 if better_direction(name) else 2, name

    return sorted({one.name for one in series}, key=rank)


def values_on_axis(view: RunView, points: Points, axis: XAxis) -> Sequence[float]:
    """Return the x values of points: steps, fractional epochs, or seconds of training."""
    if axis == "epoch":
        return steps_to_epochs(points.steps, view.epoch_ends)
    if axis == "time":
        # If the system clock was set back, the axis must still ascend.
        latest, xs = 0.0, []
        for x in times_to_active_seconds(points.times, view.attempt_spans):
            latest = max(latest, x)
            xs.append(latest)
        return xs
    return points.steps
