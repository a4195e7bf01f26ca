"""Several runs in charts, one per metric, with their values and the settings in which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import BurntError, clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import main_metric, series_label, truncate
from burnt.monitor.plotting.chart_widget import Chart, ChartGrid, CurveKeys, ensure_contrast
from burnt.monitor.plotting.curves import Curve
from burnt.monitor.plotting.run_curves import (
    MAX_RUNS,
    all_metrics,
    assign_styles,
    best_indices,
    common_direction,
    compared_curves,
    differences,
)
from burnt.monitor.plotting.text_chart import ChartView, XAxis
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.filter_input import FilterInput, matcher
from burnt.monitor.ui.keybar import KeyBar, update_if_changed
from burnt.monitor.ui.keymap import COMPARE, bindings
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.monitor.ui.theme import state_cell
from burnt.plot.braille import DASH_PATTERNS, line_sample
from burnt.store import Extreme, Series
from burnt.store.search import short_names, without_repeats
from burnt.train.format import duration_text, value_text

_MIN_CHART_LINES = 8  # of one of several charts, with its title and axis
_MAX_CHART_ROWS = 3
_TWO_COLUMNS_WIDTH, _CHART_WIDTH = 76, 50  # the width for two charts side by side, and for each of more
_SAMPLE_CELLS = 3  # cells of the line sample next to a run's name
_MIN_VALUE_WIDTH = 12  # minimum width of a shortened setting
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


class _Page(NamedTuple):
    """What was read for the screen."""

    all_series: Sequence[Series]
    selected: Series | None  # whose values the table shows
    curves: Mapping[Series, Sequence[Curve]]  # of each metric that has a chart
    axis: XAxis
    bests: Sequence[Extreme | None]  # of the selected metric in each run
    differing: Mapping[str, Sequence[str | None]]  # settings
    errors: Sequence[str]  # what could not be read


class CompareScreen(Screen[None], CurveKeys):
    """Compares two to eight runs, which it follows while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(COMPARE)]
    KEYS = COMPARE
    DEFAULT_CSS = """
    CompareScreen ChartGrid { height: 1fr; min-height: 6; grid-gutter: 0 1; padding: 0 1; }
    CompareScreen #configs { margin-top: 1; }
    CompareScreen.full Table { display: none; }
    """

    def __init__(self, views: Sequence[RunView]) -> None:
        super().__init__()
        self.views = list(views[:MAX_RUNS])
        self.metric: Series | None = None
        self._run_styles = assign_styles(self.views)
        self._shows_several = True
        self._grid_shape = (1, 1)  # columns and rows of charts
        self._shown_series: Sequence[Series] = ()
        self._num_requests = 0
        self._last_token: object = None
        self._differing: Mapping[str, Sequence[str | None]] = {}
        for view in self.views:
            view.follow()

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with ChartGrid():
            yield Chart()
        yield Table(_VALUE_COLUMNS, id="values")
        yield Table([Column("")], empty_text="All runs have the same configuration.", id="configs")
        yield FilterInput("part of a metric's name, or /regular expression/")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#values").styles.height = len(self.views) + 1
        self.query_one(Chart).focus()
        self._fit_grid()

    def on_unmount(self) -> None:
        for view in self.views:
            view.unfollow()

    def on_resize(self) -> None:
        if self._differing:
            self._show_configs(self._differing)
        self.call_after_refresh(self._fit_grid)

    def _fit_grid(self) -> None:
        width, height = self.query_one(ChartGrid).size
        columns = max(width // _CHART_WIDTH, 2) if width >= _TWO_COLUMNS_WIDTH else 1
        rows = min(max(height // _MIN_CHART_LINES, 1), _MAX_CHART_ROWS)
        if (columns, rows) != self._grid_shape:
            self._grid_shape = columns, rows
            self.request_read()

    def on_screen_resume(self) -> None:
        self.request_read()

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
        selected, axis = self.metric, self.axis
        curves: dict[Series, Sequence[Curve]] = {}
        errors: dict[int, str] = {}
        for series in self._page(all_series):
            curves[series], new_errors = compared_curves(
                self.views, series, axis=axis, x_range=self.x_range, with_means=self.smoothing > 0
            )
            errors |= new_errors
        bests: list[Extreme | None] = []
        for view in self.views:
            try:
                bests.append(view.best(selected) if selected is not None and selected in view.heads else None)
            except BurntError:  # in `errors` already
                bests.append(None)
        differing = differences([view.config for view in self.views])
        page = _Page(all_series, selected, curves, axis, bests, differing, list(errors.values()))
        return partial(self._show, page)

    def _page(self, all_series: Sequence[Series]) -> Sequence[Series]:
        """Return the metrics that have a chart: only the selected one, or the page that it is on."""
        if self.metric is None:
            return ()
        if not self._shows_several or self.has_class("full"):
            return [self.metric]
        size = self._grid_shape[0] * self._grid_shape[1]
        start = all_series.index(self.metric) // size * size
        return all_series[start : start + size]

    # --- in the app's thread

    async def _show(self, page: _Page) -> None:
        await self._show_charts(page)
        facts = ""
        if page.selected is not None:
            number, count = page.all_series.index(page.selected) + 1, len(page.all_series)
            facts = f"   {clean(series_label(page.selected))}, metric {number} of {count}"
        facts += "   " + "   ".join(self.axes_text())
        parents = sorted({curve.label for curves in page.curves.values() for curve in curves if curve.faint})
        if parents:
            facts += f"   dimmed: {', '.join(parents)}, up to the fork"
        parts = [(f" compare {len(self.views)} runs", "bold $primary"), (facts, "$dim")]
        parts += [(f"   {clean(error)}", "$error") for error in page.errors]
        update_if_changed(self.query_one("#title", Static), Content.assemble(*parts))
        self._show_values(page.selected, page.bests)
        self._show_configs(page.differing)
        self.call_after_refresh(self._fit_grid)

    async def _show_charts(self, page: _Page) -> None:
        grid = self.query_one(ChartGrid)
        takes_focus = isinstance(self.focused, Chart) or self.focused is None
        charts = {series_label(series): curves for series, curves in page.curves.items()}
        views = [
            ChartView(curves, page.axis, self.log_y, self.smoothing, title, short_legend=len(charts) > 1)
            for title, curves in (charts or {"no metric has been logged yet": ()}).items()
        ]
        await grid.show(views, self._grid_shape[0], self.x_range)
        self._shown_series = list(page.curves)
        if takes_focus:
            self.selected_chart.focus()

    @property
    def selected_chart(self) -> Chart:
        charts = self.query_one(ChartGrid).charts
        index = self._shown_series.index(self.metric) if self.metric in self._shown_series else 0
        return charts[min(index, len(charts) - 1)]

    def on_click(self, event: events.Click) -> None:
        if isinstance(event.widget, Chart):
            self._select_chart(event.widget)

    def _select_chart(self, chart: Chart) -> None:
        charts = self.query_one(ChartGrid).charts
        if chart in charts and (index := charts.index(chart)) < len(self._shown_series):
            self._select_metric(self._shown_series[index])

    def _show_values(self, selected: Series | None, bests: Sequence[Extreme | None]) -> None:
        direction = None if selected is None else common_direction(self.views, selected)
        best_runs = best_indices([None if best is None else best.value for best in bests], direction)
        cells: list[tuple[object, Sequence[Cell]]] = []
        for number, (view, best) in enumerate(zip(self.views, bests, strict=True)):
            head = None if selected is None else view.heads.get(selected)
            is_best = number in best_runs
            name = cell(view.label) + (cell(f"  {view.parentage}", "$dim") if view.parentage else ())
            cells.append(
                (
                    view,
                    (
                        self._tag_cell(number),
                        name,
                        (state_cell(view),),
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
        differing = without_repeats(differing)
        names = short_names(differing)
        columns = [Column("differs in", expands=True)]
        columns += [Column(str(number + 1), align_right=True) for number in range(len(self.views))]
        rows: list[tuple[object, Sequence[Cell]]] = []
        self._differing = differing
        key_width = min(max(map(cell_len, names.values()), default=0), self.size.width // 2)
        value_width = max((self.size.width - key_width) // len(self.views) - 3, _MIN_VALUE_WIDTH)
        for key, values in differing.items():
            most_common = Counter(values).most_common(1)[0]
            cells = [cell(names[key], "$dim")]
            for value in values:
                # Values that most runs share are dimmed, so that the exceptions stand out.
                is_dim = value is None or (most_common[1] > len(values) / 2 and value == most_common[0])
                text = "-" if value is None else truncate(value, value_width)
                cells.append(cell(text, "$dim" if is_dim else ""))
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

    def request_read(self) -> None:
        self._num_requests += 1
        app_of(self).read_for(self)

    def action_back(self) -> None:
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
            self.request_read()

    def action_choose(self) -> None:
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self, message: FilterInput.Changed) -> None:
        message.stop()
        field = self.query_one(FilterInput)
        matches = field.parsed(matcher)
        if matches is None:
            return
        match = next((metric for metric in all_metrics(self.views) if matches(series_label(metric))), None)
        field.show_error("no metric matches" if match is None else "")
        if match is not None and message.value:
            self._select_metric(match)

    @on(FilterInput.Closed)
    def filter_closed(self, message: FilterInput.Closed) -> None:
        message.stop()
        self.query_one(FilterInput).close()
        self.selected_chart.focus()

    def has_epochs(self) -> bool:
        return all(view.epoch_ends for view in self.views)

    def action_full(self) -> None:
        self.toggle_class("full")
        self.selected_chart.focus()
        self.request_read()

    def action_focus_next(self) -> None:
        """Move the focus to the next chart or table; a chart's metric is then selected."""
        if isinstance(chart := self.focus_next(), Chart):
            self._select_chart(chart)

    def action_focus_previous(self) -> None:
        if isinstance(chart := self.focus_previous(), Chart):
            self._select_chart(chart)

    def action_several(self) -> None:
        self._shows_several = not self._shows_several
        self.request_read()

    def action_page(self, direction: int) -> None:
        """Select the first metric of the next (1) or previous (-1) page of charts."""
        all_series = all_metrics(self.views)
        if self.metric in all_series:
            page = self._page(all_series)
            start = all_series.index(page[0]) + (len(page) if direction > 0 else -len(page))
            start = max(start, 0)
            if start < len(all_series):
                self._select_metric(all_series[start])
