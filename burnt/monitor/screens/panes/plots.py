"""The plots: a chart for each metric, train and valid in one, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, get_args

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clean
from burnt.monitor.plotting.chart_widget import Chart
from burnt.monitor.plotting.curves import Curve
from burnt.monitor.plotting.plot import Range, XAxis
from burnt.monitor.plotting.run_curves import curves_of, metrics_in_order
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.filter_match import matcher
from burnt.monitor.ui.keymap import PLOTS, bindings
from burnt.monitor.ui.status_line import update_if_changed

__all__ = ["PlotsPane"]

_CHART_WIDTH, _CHART_HEIGHT = 56, 8  # cells that a chart should have
_SMOOTHING = (0.0, 0.6, 0.9, 0.97)


class PlotsPane(Pane):
    """Charts in a grid, in step with each other."""

    TITLE = "Plots"
    KEYS = PLOTS
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(PLOTS),
        Binding("escape", "drop_filter", "Drop filter", show=False),
    ]

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._axis: XAxis = "step"
        self._log_y = False
        self._smoothing = 0
        self._single_metric: str | None = None
        self._first_index = 0
        self._filter_text = ""
        self._matches = matcher("")
        self._x_range: Range | None = None
        self._grid_shape = (1, 1)
        self._shown_metrics: list[str] = []

    def compose(self) -> ComposeResult:
        """The grid, a line that says what is shown how, and a field to filter."""
        yield Grid()
        yield Static(classes="facts")
        yield FilterInput("words, or /regular expression/")

    # --- what is shown where

    def on_resize(self, event: events.Resize) -> None:
        """As many charts as there is room for."""
        num_columns = max(event.size.width // _CHART_WIDTH, 1)
        num_rows = max((event.size.height - 1) // _CHART_HEIGHT, 1)
        if (num_columns, num_rows) != self._grid_shape:
            self._grid_shape = num_columns, num_rows
            self.request_read()

    def token(self) -> object:
        """Values and what is asked for."""
        counts = tuple((series, head.written, head.point.attempt) for series, head in self.view.heads.items())
        return counts, len(self.view.attempts), self._num_requests

    def _visible_metrics(self) -> tuple[list[str], int]:
        """The metrics of this page, and how many there are in all."""
        names = [name for name in metrics_in_order(self.view.series()) if self._matches(name)]
        if self._single_metric is not None and self._single_metric in names:
            return [self._single_metric], len(names)
        page_size = self._grid_shape[0] * self._grid_shape[1]
        self._first_index = max(min(self._first_index, (len(names) - 1) // page_size * page_size), 0)
        return names[self._first_index : self._first_index + page_size], len(names)

    # --- in the reading thread

    def read(self) -> Callable[[], Any]:
        """The curves of the charts that are shown."""
        names, total = self._visible_metrics()
        axis, x_range, with_means = self._axis, self._x_range, self._smoothing > 0
        curves = {name: curves_of(self.view, name, axis, x_range, with_means=with_means) for name in names}
        return partial(self._show, curves, total, axis)

    # --- in the app's thread

    async def _show(self, curves: dict[str, list[Curve]], total: int, axis: XAxis) -> None:
        grid = self.query_one(Grid)
        charts = list(grid.query(Chart))
        names = list(curves)
        focused_index = next((i for i, chart in enumerate(charts) if chart.has_focus), None)
        for chart in charts[len(names) :]:
            await chart.remove()
        if len(charts) < len(names):
            await grid.mount_all(Chart() for _ in names[len(charts) :])
        charts = list(grid.query(Chart))
        num_columns = min(self._grid_shape[0], len(names)) or 1
        if self._single_metric is not None:
            num_columns = 1
        num_rows = -(-len(names) // num_columns)
        grid.styles.grid_size_columns, grid.styles.grid_size_rows = num_columns, num_rows or None
        for chart, (name, lines) in zip(charts, curves.items(), strict=True):
            chart.show(
                lines,
                x=axis,
                log_y=self._log_y,
                smoothing=_SMOOTHING[self._smoothing],
                title=clean(name),
            )
            chart.zoom(self._x_range)
        self._shown_metrics = names
        if charts and (focused_index is None or focused_index >= len(charts)) and self.app.focused is None:
            charts[0].focus()
        update_if_changed(self.query_one(Static), self._status(len(names), total))

    def _status(self, shown: int, total: int) -> Content:
        if not total:
            text = (
                "no metric matches: / changes the filter"
                if self._filter_text
                else self.unreadable_text() or "no metric has been written yet"
            )
            return Content.assemble((f" {text}", "$dim"))
        axis = {"step": "steps", "epoch": "epochs", "time": "time at work"}[self._axis]
        facts = [f"x {axis}", "log y" if self._log_y else "linear y"]
        if self._smoothing:
            facts.append(f"smoothed {_SMOOTHING[self._smoothing]}")
        if self._x_range is not None:
            facts.append("zoomed, 0 shows all")
        if self._filter_text:
            facts.append(f"filter {self._filter_text}")
        if shown < total and self._single_metric is None:
            facts.append(
                f"charts {self._first_index + 1} to {self._first_index + shown} of {total}, page down for more"
            )
        return Content.assemble((" " + "   ".join(facts), "$dim"))

    # --- charts in step

    @on(Chart.Zoomed)
    def chart_zoomed(self, message: Chart.Zoomed) -> None:
        """All charts show the same part, in more detail when it has been read."""
        message.stop()
        self._x_range = message.range
        for chart in self.query(Chart):
            chart.zoom(message.range)
        self.request_read()

    @on(Chart.CrosshairMoved)
    def crosshair_moved(self, message: Chart.CrosshairMoved) -> None:
        """All charts read at the same place."""
        message.stop()
        for chart in self.query(Chart):
            chart.move_crosshair(message.x)

    # --- keys

    def action_axis(self) -> None:
        """The next unit of the horizontal axis."""
        axes = get_args(XAxis)
        self._axis = axes[(axes.index(self._axis) + 1) % len(axes)]
        if self._axis == "epoch" and not self.view.epoch_ends:
            self._axis = axes[(axes.index(self._axis) + 1) % len(axes)]
            self.notify("no epoch is done yet, so there is no axis of epochs")
        self._x_range = None
        self.request_read()

    def action_log(self) -> None:
        """Linear or logarithmic."""
        self._log_y = not self._log_y
        self.request_read()

    def action_smooth(self) -> None:
        """More smoothing, in turn."""
        self._smoothing = (self._smoothing + 1) % len(_SMOOTHING)
        self.request_read()

    def action_focus_one(self) -> None:
        """One chart, or all again."""
        if self._single_metric is not None:
            self._single_metric = None
        else:
            charts = list(self.query(Chart))
            focused = next((i for i, chart in enumerate(charts) if chart.has_focus), 0)
            if focused >= len(self._shown_metrics):
                return
            self._single_metric = self._shown_metrics[focused]
        self.request_read()

    def action_next_chart(self, direction: int) -> None:
        """To another chart of the page, or of the next one."""
        charts = list(self.query(Chart))
        focused = next((i for i, chart in enumerate(charts) if chart.has_focus), None)
        if focused is not None and not 0 <= focused + direction < len(charts):
            self.action_page(direction)
            return
        if charts:
            charts[0 if focused is None else focused + direction].focus()

    def action_page(self, direction: int) -> None:
        """Other charts."""
        self._first_index = max(self._first_index + direction * self._grid_shape[0] * self._grid_shape[1], 0)
        self.request_read()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape drops the filter; without one it means what it means elsewhere."""
        return action != "drop_filter" or bool(self._filter_text)

    def action_drop_filter(self) -> None:
        """Show all metrics again."""
        self.query_one(FilterInput).close()

    def action_filter(self) -> None:
        """Type a filter."""
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self, message: FilterInput.Changed) -> None:
        """Filter while it is typed."""
        message.stop()
        matches = self.query_one(FilterInput).current_matcher()
        if matches is not None:
            self._matches, self._filter_text, self._first_index = matches, message.value, 0
            self.request_read()

    @on(FilterInput.Closed)
    def filter_closed(self, message: FilterInput.Closed) -> None:
        """Back to the charts."""
        message.stop()
        self.take_focus()
