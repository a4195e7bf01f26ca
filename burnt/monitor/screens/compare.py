"""Several runs in one chart, with their values side by side and the settings in which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, get_args

from rich.cells import cell_len, set_cell_size
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import better_direction, clean, duration_text, main_metric, series_label, value_text
from burnt.monitor.plotting.chart_widget import Chart, ensure_contrast
from burnt.monitor.plotting.curves import DASH_PATTERNS, RUN_STYLES, Curve
from burnt.monitor.plotting.plot import Range, XAxis
from burnt.monitor.plotting.run_curves import curve_on_axis, metrics_in_order
from burnt.monitor.screens.panes.config import flatten
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keybar import KeyBar
from burnt.monitor.ui.keymap import COMPARE, bindings
from burnt.monitor.ui.status_line import update_if_changed
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.monitor.ui.theme import state_cell
from burnt.plot.braille import line_sample
from burnt.train.store import Extreme, Series

__all__ = ["MAX_RUNS", "CompareScreen", "all_metrics", "assign_styles", "differences"]

MAX_RUNS = 8  # runs in one chart: as many as there are distinguishable colours

_SAMPLE_CELLS = 3  # cells of the line sample beside a run's name
_MIN_VALUE_WIDTH = 12  # minimum width of a shortened setting
_SMOOTHING = (0.0, 0.6, 0.9, 0.97)
_VALUE_COLUMNS = (
    Column(""),
    Column("run", expands=True),
    Column("state", drop_priority=3),
    Column("last", align_right=True),
    Column("at step", align_right=True, drop_priority=2),
    Column("best", align_right=True),
    Column("at step ", align_right=True, drop_priority=1),
    Column("took", align_right=True, drop_priority=4),
)


class CompareScreen(Screen[None]):
    """Compares two to eight runs.

    Args:
        views: the runs; the screen follows them while it is open.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(COMPARE)]
    KEYS = COMPARE
    DEFAULT_CSS = """
    CompareScreen Chart { height: 1fr; margin: 0 1; min-height: 6; }
    CompareScreen #configs { margin-top: 1; }
    CompareScreen.full Table { display: none; }
    """

    def __init__(self, views: Sequence[RunView]) -> None:
        super().__init__()
        self.views = list(views[:MAX_RUNS])
        self.metric: Series | None = None
        self._run_styles = assign_styles(self.views)
        self._axis: XAxis = "step"
        self._log_y = False
        self._smoothing = 0
        self._x_range: Range | None = None
        self._num_requests = 0
        self._last_token: object = None
        self._differing: Mapping[str, Sequence[str | None]] = {}
        for view in self.views:
            view.follow()

    def compose(self) -> ComposeResult:
        """Compose the title, the chart, the tables of values and settings, and the key bar."""
        yield Static(id="title")
        yield Chart()
        yield Table(_VALUE_COLUMNS, id="values")
        yield Table([Column("")], empty_text="All runs have the same configuration.", id="configs")
        yield FilterInput("part of a metric's name, or /regular expression/")
        yield KeyBar()

    def on_mount(self) -> None:
        """Focus the chart."""
        self.query_one("#values").styles.height = len(self.views) + 1
        self.query_one(Chart).focus()

    def on_unmount(self) -> None:
        """Stop following the runs."""
        for view in self.views:
            view.unfollow()

    def on_resize(self) -> None:
        """Fit the settings to the new width."""
        if self._differing:
            self._show_configs(self._differing)

    def on_screen_resume(self) -> None:
        """Start reading when the screen becomes visible."""
        self._request_read()

    # --- in the reader thread

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """Read the curves, values and configurations, if anything changed."""
        token = [view.version for view in self.views], self._num_requests
        if token == self._last_token:
            return None
        self._last_token = token
        all_series = all_metrics(self.views)
        if self.metric not in all_series:
            self.metric = main_metric(all_series, self.views[0].config)
        selected, axis, x_range = self.metric, self._axis, self._x_range
        curves, rows, errors = [], [], []
        for number, view in enumerate(self.views):
            best = None
            color, style = self._run_styles[number]
            curve = Curve(clean(view.label), color, (), (), style, str(number + 1))
            if selected is not None and selected in view.heads:
                try:
                    points = view.points(*selected)
                    xs, ys = curve_on_axis(view, points, view.points_between, selected, axis, x_range)
                    curve = curve._replace(xs=xs, ys=ys)
                    if self._smoothing:
                        means = view.means(*selected)
                        curve = curve._replace(
                            means=curve_on_axis(view, means, view.means_between, selected, axis, x_range)
                        )
                    best = view.best(selected)
                except BurntError as error:
                    errors.append(f"{view.label}: {error.what}")
            curves.append(curve)
            rows.append((view, best))
        differing = differences([view.config or {} for view in self.views])
        return partial(self._show, all_series, selected, axis, curves, rows, differing, errors)

    # --- in the app's thread

    def _show(
        self,
        all_series: Sequence[Series],
        selected: Series | None,
        axis: XAxis,
        curves: Sequence[Curve],
        rows: Sequence[tuple[RunView, Extreme | None]],
        differing: Mapping[str, Sequence[str | None]],
        errors: Sequence[str],
    ) -> None:
        title = "no metric has been logged yet" if selected is None else series_label(selected)
        self.query_one(Chart).show(
            curves, x=axis, log_y=self._log_y, smoothing=_SMOOTHING[self._smoothing], title=title
        )
        position = (
            f"   metric {all_series.index(selected) + 1} of {len(all_series)}" if selected is not None else ""
        )
        axes = {"step": "steps", "epoch": "epochs", "time": "training time"}
        facts = f"{position}   x {axes[axis]}   {'log y' if self._log_y else 'linear y'}"
        parts = [(f" compare {len(self.views)} runs", "bold $primary"), (facts, "$dim")]
        parts += [(f"   {clean(error)}", "$error") for error in errors]
        update_if_changed(self.query_one("#title", Static), Content.assemble(*parts))
        self._show_values(selected, rows)
        self._show_configs(differing)

    def _show_values(self, selected: Series | None, rows: Sequence[tuple[RunView, Extreme | None]]) -> None:
        direction = None if selected is None else better_direction(selected.name, self.views[0].config)
        bests = [best.value for _, best in rows if best is not None]
        best_value = (min(bests) if direction == "lower" else max(bests)) if bests else None
        cells: list[tuple[object, Sequence[Cell]]] = []
        for number, (view, best) in enumerate(rows):
            head = None if selected is None else view.heads.get(selected)
            is_best = best is not None and best.value == best_value
            state, style = state_cell(view)
            cells.append(
                (
                    view,
                    (
                        self._tag_cell(number),
                        cell(view.label),
                        cell(state, style),
                        cell("" if head is None else value_text(head.point.value), "bold"),
                        cell("" if head is None else f"{head.point.step:,}", "$dim"),
                        cell(
                            "" if best is None else f"{'★ ' if is_best else ''}{value_text(best.value)}",
                            "bold $success" if is_best else "",
                        ),
                        cell("" if best is None else f"{best.step:,}", "$dim"),
                        cell(duration_text(view.active_seconds), "$dim"),
                    ),
                )
            )
        self.query_one("#values", Table).show(cells)

    def _show_configs(self, differing: Mapping[str, Sequence[str | None]]) -> None:
        columns = [Column("differs in", expands=True)]
        columns += [Column(str(number + 1), align_right=True) for number in range(len(self.views))]
        rows: list[tuple[object, Sequence[Cell]]] = []
        self._differing = differing
        key_width = min(max(map(cell_len, differing), default=0), self.size.width // 2)
        value_width = (self.size.width - key_width) // len(self.views) - 3
        for key, values in differing.items():
            most_common = Counter(values).most_common(1)[0]
            cells = [cell(key, "$dim")]
            for value in values:
                # Values that most runs share are dimmed, so that the exceptions stand out.
                is_dim = value is None or (most_common[1] > len(values) / 2 and value == most_common[0])
                cells.append(
                    cell("-" if value is None else _shorten(value, value_width), "$dim" if is_dim else "")
                )
            rows.append((key, cells))
        table = self.query_one("#configs", Table)
        if not any(view.config for view in self.views):
            table.empty_text = "No run has recorded a configuration."
        table.show(rows, columns=columns)
        table.styles.height = min(len(rows) + 1, max(self.size.height // 4, 4)) if rows else 2

    def _tag_cell(self, number: int) -> Cell:
        _, background = self.background_colors
        name, style = self._run_styles[number]
        color = ensure_contrast(name, background)
        line = line_sample(DASH_PATTERNS[style], _SAMPLE_CELLS)
        return ((f"{line} ", color.hex if color.ansi is None else ""), (str(number + 1), "bold"))

    # --- keys

    def _request_read(self) -> None:
        self._num_requests += 1
        app_of(self).read_for(self)

    def action_back(self) -> None:
        """Return to the list of runs."""
        self.app.pop_screen()

    def action_metric(self, direction: int) -> None:
        """Show the next (1) or previous (-1) metric."""
        all_series = all_metrics(self.views)
        if all_series:
            index = all_series.index(self.metric) if self.metric in all_series else -1
            self._select_metric(all_series[(index + direction) % len(all_series)])

    def _select_metric(self, metric: Series) -> None:
        if metric != self.metric:
            self.metric = metric
            self._request_read()

    def action_choose(self) -> None:
        """Open the input that selects a metric by name."""
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self, message: FilterInput.Changed) -> None:
        """Select the first matching metric while the name is typed."""
        message.stop()
        field = self.query_one(FilterInput)
        matches = field.current_matcher()
        if matches is None:
            return
        match = next((metric for metric in all_metrics(self.views) if matches(series_label(metric))), None)
        field.show_error("no metric matches" if match is None else "")
        if match is not None and message.value:
            self._select_metric(match)

    @on(FilterInput.Closed)
    def filter_closed(self, message: FilterInput.Closed) -> None:
        """Return the focus to the chart."""
        message.stop()
        self.query_one(FilterInput).close()
        self.query_one(Chart).focus()

    @on(Chart.Zoomed)
    def chart_zoomed(self, message: Chart.Zoomed) -> None:
        """Read the visible range in more detail."""
        message.stop()
        self._x_range = message.range
        self._request_read()

    def action_axis(self) -> None:
        """Switch to the next unit of the x axis."""
        axes = get_args(XAxis)
        self._axis = axes[(axes.index(self._axis) + 1) % len(axes)]
        if self._axis == "epoch" and not all(view.epoch_ends for view in self.views):
            self._axis = axes[(axes.index(self._axis) + 1) % len(axes)]
            self.notify("The x axis cannot show epochs: not every run has finished an epoch.")
        self._x_range = None
        self._request_read()

    def action_log(self) -> None:
        """Switch between a linear and a logarithmic y axis."""
        self._log_y = not self._log_y
        self._request_read()

    def action_smooth(self) -> None:
        """Switch to the next smoothing strength."""
        self._smoothing = (self._smoothing + 1) % len(_SMOOTHING)
        self._request_read()

    def action_full(self) -> None:
        """Show the chart alone, or with the tables."""
        self.toggle_class("full")
        self.query_one(Chart).focus()


def all_metrics(views: Sequence[RunView]) -> list[Series]:
    """Return the metrics that at least one run has, in display order, validation before training."""
    series_set = {series for view in views for series in view.series()}
    names = metrics_in_order(list(series_set))
    return sorted(
        series_set,
        key=lambda series: (
            names.index(series.name),
            ("valid", "train").index(series.split) * 2 if series.split in ("valid", "train") else 1,
            series.split,
        ),
    )


def assign_styles(views: Sequence[RunView]) -> list[tuple[str, str]]:
    """Return colour and dash style of each run: its own, or a free one if an earlier run has the same."""
    styles: list[tuple[str, str]] = []
    for view in views:
        own = RUN_STYLES[view.style_index % len(RUN_STYLES)]
        styles.append(own if own not in styles else next(look for look in RUN_STYLES if look not in styles))
    return styles


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Return the values of the settings that differ, by dotted key; None where a run lacks the setting.

    >>> differences([{"model": {"hidden": 64}, "seed": 1}, {"model": {"hidden": 32}, "seed": 1, "note": "a"}])
    {'model.hidden': ['64', '32'], 'note': [None, 'a']}
    """
    rows = [flatten(dict(config)) for config in configs]
    keys = dict.fromkeys(key for row in rows for key in row)
    values_by_key = {key: [row.get(key) for row in rows] for key in keys}
    return {key: values for key, values in values_by_key.items() if len(set(values)) > 1}


def _shorten(value: str, width: int) -> str:
    width = max(width, _MIN_VALUE_WIDTH)
    return value if cell_len(value) <= width else set_cell_size(value, width - 1) + "…"
