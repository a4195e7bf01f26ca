"""Several runs side by side: their metrics, curves, and the settings that differ. No Textual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnt.errors import BurntError, clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import series_in_order
from burnt.monitor.format import better_direction
from burnt.monitor.plotting.curves import RUN_STYLES, Curve
from burnt.monitor.plotting.run_curves import curve_on_axis, history_curve
from burnt.store import Extreme, Series
from burnt.store.search import setting_text, settings_of

if TYPE_CHECKING:
    from burnt.monitor.plotting.text_chart import Range, XAxis


MAX_RUNS = 8  # in one chart: as many as there are distinguishable colours


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
