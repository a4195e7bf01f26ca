"""Charts of the metrics, one per metric with all its splits, as many as fit on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import metrics_in_order
from burnt.monitor.plotting.chart_widget import ChartGrid, CurveKeys
from burnt.monitor.plotting.curves import Curve
from burnt.monitor.plotting.run_curves import curves_of
from burnt.monitor.plotting.text_chart import ChartView, XAxis
from burnt.monitor.screens.panes.pane import FilterPane
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.keymap import PLOTS, bindings

_CHART_WIDTH, _CHART_HEIGHT = 56, 8  # cells that a chart should have


class PlotsPane(FilterPane, CurveKeys):
    """A grid of charts that share zoom and crosshair."""

    TITLE = "Plots"
    KEYS = PLOTS
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(PLOTS),
        Binding("escape", "drop_filter", "Drop filter", show=False),
    ]

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._single_metric: str | None = None
        self._first_index = 0
        self._grid_shape = (1, 1)
        self._shown_metrics: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        yield ChartGrid()
        yield Static(classes="facts")
        yield FilterInput(self.FILTER_HINT)

    # --- which charts are shown

    def on_resize(self, event: events.Resize) -> None:
        # A screen for two charts side by side has two next to the panel, too.
        num_columns = max(event.size.width // _CHART_WIDTH, min(self.screen.size.width // _CHART_WIDTH, 2), 1)
        num_rows = max((event.size.height - 1) // _CHART_HEIGHT, 1)
        if (num_columns, num_rows) != self._grid_shape:
            self._grid_shape = num_columns, num_rows
            self.request_read()

    def token(self) -> object:
        counts = tuple((series, head.written, head.point.attempt) for series, head in self.view.heads.items())
        return counts, len(self.view.attempts), self._num_requests

    def _visible_metrics(self) -> tuple[list[str], int]:
        """Return the metrics of this page, and the total number of matching metrics."""
        names = [name for name in metrics_in_order(self.view.series()) if self.matches(name)]
        if self._single_metric is not None and self._single_metric in names:
            return [self._single_metric], len(names)
        page_size = self._grid_shape[0] * self._grid_shape[1]
        self._first_index = max(min(self._first_index, (len(names) - 1) // page_size * page_size), 0)
        return names[self._first_index : self._first_index + page_size], len(names)

    # --- in the reader thread

    def read(self) -> Callable[[], Any]:
        names, total = self._visible_metrics()
        axis, x_range, with_means = self.axis, self.x_range, self.smoothing > 0
        curves = {name: curves_of(self.view, name, axis, x_range, with_means=with_means) for name in names}
        return partial(self._show, curves, total, axis)

    # --- in the app's thread

    async def _show(self, curves: Mapping[str, Sequence[Curve]], total: int, axis: XAxis) -> None:
        grid = self.query_one(ChartGrid)
        focused_index = next((i for i, chart in enumerate(grid.charts) if chart.has_focus), None)
        views = [
            ChartView(lines, axis, self.log_y, self.smoothing, clean(name)) for name, lines in curves.items()
        ]
        await grid.show(views, self._grid_shape[0], self.x_range)
        self._shown_metrics = list(curves)
        if curves and (focused_index is None or focused_index >= len(curves)) and self.app.focused is None:
            grid.charts[0].focus()
        has_parent = any(curve.faint for lines in curves.values() for curve in lines)
        update_if_changed(self.query_one(Static), self._status(len(curves), total, has_parent))

    def _status(self, count: int, total: int, has_parent: bool) -> Content:
        filter_text = self.query_one(FilterInput).value
        if not total:
            text = (
                "No metric matches the filter. Press / to change it."
                if filter_text
                else self.unreadable_text() or "No metric has been logged yet."
            )
            return Content.assemble((f" {text}", "$dim"))
        facts = self.axes_text()
        if has_parent:
            facts.append(f"dimmed: the parent ({self.view.parentage})")
        elif self.view.parentage:
            facts.append(self.view.parentage)
        if self.smoothing:
            facts.append(f"smoothed {self.smoothing}")
        if self.x_range is not None:
            facts.append("zoomed (0 resets)")
        if filter_text:
            facts.append(f"filter {filter_text}")
        if count < total and self._single_metric is None:
            first, last = self._first_index + 1, self._first_index + count
            facts.append(f"charts {first} to {last} of {total}, page down for more")
        return Content.assemble((" " + clean("   ".join(facts)), "$dim"))

    def has_epochs(self) -> bool:
        return bool(self.view.epoch_ends)

    # --- keys

    def action_focus_one(self) -> None:
        if self._single_metric is not None:
            self._single_metric = None
        else:
            charts = self.query_one(ChartGrid).charts
            focused = next((i for i, chart in enumerate(charts) if chart.has_focus), 0)
            if focused >= len(self._shown_metrics):
                return
            self._single_metric = self._shown_metrics[focused]
        self.request_read()

    def action_next_chart(self, direction: int) -> None:
        """Focus the next (1) or previous (-1) chart, changing the page at its end."""
        charts = self.query_one(ChartGrid).charts
        focused = next((i for i, chart in enumerate(charts) if chart.has_focus), None)
        if focused is not None and not 0 <= focused + direction < len(charts):
            self.action_page(direction)
            return
        if charts:
            charts[0 if focused is None else focused + direction].focus()

    def action_page(self, direction: int) -> None:
        self._first_index = max(self._first_index + direction * self._grid_shape[0] * self._grid_shape[1], 0)
        self.request_read()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let escape clear the filter; without a filter, the screen handles escape."""
        return action != "drop_filter" or bool(self.query_one(FilterInput).value)

    def action_drop_filter(self) -> None:
        self.query_one(FilterInput).close()
