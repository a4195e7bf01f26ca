"""Metrics as curves: x values, styles of splits and runs, forks on their parents, several runs."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.errors import BurntError, clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import series_in_order, splits_in_order
from burnt.monitor.format import better_direction
from burnt.monitor.plotting.curves import RUN_STYLES, Curve, steps_to_epochs, times_to_active_seconds
from burnt.plot.braille import DASH_PATTERNS, PALETTE
from burnt.store import Extreme, Points, Series
from burnt.store.search import setting_text, settings_of

if TYPE_CHECKING:
    from burnt.monitor.plotting.text_chart import Range, XAxis


MAX_RUNS = 8  # in one chart: as many as there are distinguishable colours
_DASH_NAMES = tuple(DASH_PATTERNS)


def curves_of(
    view: RunView, name: str, axis: XAxis = "step", x_range: Range | None = None, *, with_means: bool = False
) -> list[Curve]:
    """Read a metric as one curve per split; a fork's parent comes first, dimmed.

    The parent's curves are drawn beyond the step of the fork too, so that what the fork changed can be seen.
    """
    # A split has the same colour and dash pattern in every chart.
    numbers = {split: number for number, split in enumerate(splits_in_order(view.series()))}
    of_parents, curves = [], []
    for split, number in numbers.items():
        series = Series(name, split)
        if series not in view.heads:
            continue
        xs, ys = curve_on_axis(view, series, axis, x_range)
        means = curve_on_axis(view, series, axis, x_range, means=True) if with_means else None
        color, style = PALETTE[number % len(PALETTE)], _DASH_NAMES[number % len(_DASH_NAMES)]
        curves.append(Curve(clean(split), color, xs, ys, style, means=means))
        history = history_curve(view, series, axis, until_fork=False, with_means=with_means)
        if history is not None:
            of_parents.append(history._replace(label="parent", color=color, style=style))
    return [*of_parents, *curves]


def history_curve(
    view: RunView, series: Series, axis: XAxis, *, until_fork: bool = True, with_means: bool = False
) -> Curve | None:
    """Read a metric of the runs that a run was forked from as one dimmed curve; None without one.

    With `until_fork` the parent's curve ends at the step of the fork; its own parents' always do.
    """
    xs: list[float] = []
    ys: list[float] = []
    child, folders, start, end = view, {view.folder}, math.inf, math.inf
    while child.parent is not None and (parent := child.parent_view()) is not None:
        if parent.folder in folders:  # a run that claims to be its own ancestor
            break
        folders.add(parent.folder)
        if until_fork or child is not view:
            end = min(end, child.parent.step)
        if series in parent.heads:
            points = parent.points(*series, means=with_means)
            stop = min(bisect_right(points.steps, end), bisect_left(points.steps, start))
            points = Points(points.steps[:stop], points.times[:stop], points.values[:stop])
            if points.steps:
                xs[:0], ys[:0], start = values_on_axis(parent, points, axis), points.values, points.steps[0]
        child = parent
    return Curve("", PALETTE[0], xs, ys, faint=True) if xs else None


def curve_on_axis(
    view: RunView, series: Series, axis: XAxis, x_range: Range | None, *, means: bool = False
) -> tuple[Sequence[float], Sequence[float]]:
    """Read the x and y values of a series, a zoomed range in more detail."""
    points = view.points(*series, means=means)
    xs = values_on_axis(view, points, axis)
    if x_range is None or not xs:
        return xs, points.values
    left = max(bisect_left(xs, x_range[0]) - 1, 0)
    right = min(bisect_right(xs, x_range[1]), len(xs) - 1)
    detail = view.points(*series, means=means, steps=(points.steps[left], points.steps[right]))
    points = Points(
        [*points.steps[:left], *detail.steps, *points.steps[right + 1 :]],
        [*points.times[:left], *detail.times, *points.times[right + 1 :]],
        [*points.values[:left], *detail.values, *points.values[right + 1 :]],
    )
    return values_on_axis(view, points, axis), points.values


def values_on_axis(view: RunView, points: Points, axis: XAxis) -> Sequence[float]:
    """Return the x values of points: steps, fractional epochs, or seconds of training.

    The seconds of a fork include its parents' until the steps where they part.
    """
    if axis == "epoch":
        return steps_to_epochs(points.steps, view.epoch_ends)
    if axis == "time":
        # If the system clock was set back, the axis must still ascend.
        start = latest = _seconds_before(view)
        xs: list[float] = []
        for x in times_to_active_seconds(points.times, view.attempt_spans):
            latest = max(latest, start + x)
            xs.append(latest)
        return xs
    return points.steps


def _seconds_before(view: RunView, folders: frozenset[Path] = frozenset()) -> float:
    """Return the seconds that a fork's parents had trained when it began; 0 for a run that is not a fork."""
    parent, folders = view.parent_view(), folders | {view.folder}
    if view.parent is None or parent is None or parent.folder in folders:  # no run is its own ancestor
        return 0.0
    before = _seconds_before(parent, folders)
    written = {series: head.written for series, head in parent.heads.items()}
    if not written:
        return before
    points = parent.points(*max(written, key=written.__getitem__))  # of the metric that is written most often
    xs = [0.0, *times_to_active_seconds(points.times, parent.attempt_spans)]
    steps = [0, *points.steps]
    right = min(max(bisect_left(steps, view.parent.step), 1), len(steps) - 1)
    share = (view.parent.step - steps[right - 1]) / max(steps[right] - steps[right - 1], 1)
    return before + xs[right - 1] + (xs[right] - xs[right - 1]) * min(share, 1.0)


# --- several runs


def all_metrics(views: Sequence[RunView]) -> list[Series]:
    """Return the metrics that at least one run has, in display order, validation before training."""
    return series_in_order({series for view in views for series in view.heads}, train_last=True)


def assign_styles(views: Sequence[RunView]) -> list[tuple[str, str]]:
    """Return colour and dash style of each run: its own, or a free one if an earlier run has the same."""
    styles: list[tuple[str, str]] = []
    for view in views:
        own = RUN_STYLES[view.style_index % len(RUN_STYLES)]
        free = (look for look in RUN_STYLES if look not in styles)
        styles.append(own if own not in styles else next(free, own))
    return styles


def compared_curves(
    views: Sequence[RunView],
    series: Series,
    *,
    axis: XAxis = "step",
    x_range: Range | None = None,
    with_means: bool = False,
) -> tuple[list[Curve], dict[int, str]]:
    """Read a metric as one curve per run, whose tag is the run's number.

    A fork begins at its step, on top of its parent. If the parent is not one of the runs, its curve up to
    that step is drawn before the fork's, dimmed and in the fork's colour. A run that lacks the metric has a
    curve without points. Also returns, by index, why runs cannot be read.
    """
    styles, folders = assign_styles(views), {view.folder.absolute() for view in views}
    histories, curves, errors = [], [], {}
    for number, view in enumerate(views):
        color, style = styles[number]
        curve = Curve(clean(view.label), color, (), (), style, str(number + 1))
        if series in view.heads:
            try:
                xs, ys = curve_on_axis(view, series, axis, x_range)
                means = curve_on_axis(view, series, axis, x_range, means=True) if with_means else None
                curve = curve._replace(xs=xs, ys=ys, means=means)
                is_overlaid = view.parent is not None and view.parent.folder.absolute() in folders
                if not is_overlaid and (history := history_curve(view, series, axis, with_means=with_means)):
                    label = f"parent of {number + 1}"
                    histories.append(history._replace(label=label, color=color, style=style))
            except BurntError as error:
                errors[number] = f"{view.label}: {error.what}"
        curves.append(curve)
    return [*histories, *curves], errors


def best_indices(values: Sequence[float | None], direction: str | None) -> set[int]:
    """Return the indices of the best of several runs' values; none if there is nothing to compare.

    >>> best_indices([0.5, None, 0.25, 0.25], "lower"), best_indices([0.5, None], "lower")
    ({2, 3}, set())
    """
    known = [value for value in values if value is not None and value == value]
    if direction is None or len(known) < 2 or len(set(known)) < 2:
        return set()
    best = min(known) if direction == "lower" else max(known)
    return {index for index, value in enumerate(values) if value == best}


def best_of(views: Sequence[RunView], series: Series) -> list[Extreme | None]:
    """Return each run's best value of a metric; None where it lacks it or the better direction is unknown."""
    return [view.best(series) if series in view.heads else None for view in views]


def common_direction(views: Sequence[RunView], series: Series) -> str | None:
    """Return the better direction of a metric, which a run's configuration may declare; None if unknown."""
    directions = [better_direction(series.name, view.config) for view in views if series in view.heads]
    return next((direction for direction in directions if direction is not None), None)


def differences(configs: Sequence[Mapping[str, Any] | None]) -> dict[str, list[str | None]]:
    """Return the values of the settings that differ, by dotted key; None where a run lacks the setting.

    >>> differences([{"model": {"hidden": 64}, "seed": 1}, {"model": {"hidden": 32}, "seed": 1, "note": "a"}])
    {'model.hidden': ['64', '32'], 'note': [None, 'a']}
    """
    rows = [
        {key: setting_text(value) for key, value in settings.items()}
        for settings in map(settings_of, configs)
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    values_by_key = {key: [row.get(key) for row in rows] for key in keys}
    return {key: values for key, values in values_by_key.items() if len(set(values)) > 1}
