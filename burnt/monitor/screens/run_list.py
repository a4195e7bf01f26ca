"""The list of runs: filter, sort, mark runs to compare, open one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.format import (
    age_text,
    better_direction,
    clean,
    clock_text,
    duration_text,
    natural_key,
    series_label,
    value_text,
)
from burnt.monitor.plotting.curves import DASH_PATTERNS, RUN_STYLES, Curve
from burnt.monitor.plotting.run_curves import curves_of
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.filter_match import matcher
from burnt.monitor.ui.keybar import KeyBar
from burnt.monitor.ui.keymap import RUNS, bindings
from burnt.monitor.ui.status_line import Part, facts_line, two_sided_line, update_if_changed
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.monitor.ui.theme import progress_bar, state_cell

__all__ = ["RunsScreen"]

_COLUMNS = (
    Column(""),
    Column("run", expands=True),
    Column("state"),
    Column("progress", drop_priority=1),
    Column("epoch", align_right=True, drop_priority=5),
    Column("step", align_right=True, drop_priority=6),
    Column("eta", align_right=True, drop_priority=3),
    Column("metric", drop_priority=4),
    Column("last", align_right=True),
    Column("best", align_right=True),
    Column("at step", align_right=True, drop_priority=7),
    Column("took", align_right=True, drop_priority=8),
    Column("age", align_right=True, drop_priority=2),
)
_METRIC_COLUMN = 7
_LINE_MARKS = dict(zip(DASH_PATTERNS, "▐┇┊╏", strict=True))  # upright; the dash patterns of compared runs
_NARROW_WIDTH = 100
_MIN_PREVIEW_LINES = 30
_STATE_ORDER = ("running", "stale", "crashed", "stopped", "finished", "unreadable", "deleted")
_AGE_REFRESH_SECONDS = 10.0  # how often ages are updated when nothing else changes

_SORT_KEYS: dict[str, Callable[[RunView], Any]] = {
    "age": lambda view: -view.created,
    "run": lambda view: natural_key(view.label),
    "state": lambda view: _STATE_ORDER.index(view.state),
    "progress": lambda view: view.fraction if view.fraction is not None else math.nan,
    "epoch": lambda view: _or_nan(view.progress and view.progress.epoch),
    "step": lambda view: _or_nan(view.progress and view.progress.step),
    "eta": lambda view: _or_nan(view.eta),
    "metric": lambda view: series_label(view.metric) if view.metric else "",
    "last": lambda view: _sort_value(view, view.heads[view.metric].point.value if view.metric else math.nan),
    "best": lambda view: _sort_value(view, view.metric_best.value if view.metric_best else math.nan),
    "at step": lambda view: _or_nan(view.metric_best and view.metric_best.step),
    "took": lambda view: view.active_seconds,
}


class RunsScreen(Screen[None]):
    """The table of all runs."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(RUNS)]
    KEYS = RUNS

    def __init__(self, library: RunLibrary) -> None:
        super().__init__()
        self.library = library
        self.marked: list[RunView] = []
        self._matches: Callable[[str], bool] = matcher("")
        self._sort_column, self._descending = "age", False
        self._shown_at = -math.inf
        self._has_read = False
        self._has_preview = False
        self._cursor_view: RunView | None = None

    def compose(self) -> ComposeResult:
        """Compose the title, the table, a preview chart, details of the selected run and the key bar."""
        yield Static(id="title")
        yield Table(_COLUMNS, empty_text="reading ...", id="runs")
        yield Container(id="preview")
        yield Static(id="about")
        yield FilterInput("words, or /regular expression/")
        yield KeyBar()

    def on_mount(self) -> None:
        """Focus the table."""
        self.query_one(Table).focus()

    def on_screen_resume(self) -> None:
        """Start reading when the screen becomes visible."""
        self._shown_at = -math.inf
        app_of(self).read_for(self)

    # --- showing

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reader thread: read the preview; everything else is in the library."""
        if not changed and time.monotonic() - self._shown_at < _AGE_REFRESH_SECONDS:
            return None
        self._shown_at = time.monotonic()
        curves = self._curves(self._cursor_view) if self._has_preview else None
        return partial(self._show_all, self._cursor_view, curves)

    def _curves(self, view: RunView | None) -> list[Curve]:
        """Read the curves of a run's main metric."""
        metric = None if view is None else view.metric
        if view is None or metric is None or view.error is not None:
            return []
        try:
            return curves_of(view, metric.name)
        except BurntError:  # the run's row shows the error
            return []

    async def _show_all(self, view: RunView | None, curves: list[Curve] | None) -> None:
        self._show(True)
        if curves is None:
            return
        from burnt.monitor.plotting.chart_widget import Chart  # not needed for the first screen

        container = self.query_one("#preview")
        if not container.query(Chart):
            chart = Chart()
            chart.can_focus = False  # it is display only
            await container.mount(chart)
        container.display = bool(curves)
        metric = None if view is None else view.metric
        container.query_one(Chart).show(curves, title="" if metric is None else clean(metric.name))

    def on_resize(self) -> None:
        """Show the preview only if the screen is high enough."""
        self._has_preview = self.size.height >= _MIN_PREVIEW_LINES
        if not self._has_preview:
            self.query_one("#preview").display = False
        self._shown_at = -math.inf

    def _show(self, read: bool | None = None) -> None:
        self._has_read = self._has_read or bool(read)
        views = [
            view for view in self.library.views if self._matches(f"{view.label}\n{view.name}\n{view.state}")
        ]
        self.marked = [view for view in self.marked if view in self.library.views]
        views = _sort_views(views, self._sort_column, self._descending)
        table = self.query_one(Table)
        table.empty_text = self._empty_text()
        cells = [(view, self._row_cells(view)) for view in views]
        columns = list(_COLUMNS)
        metrics = {view.metric for view in views if view.metric is not None}
        if len(metrics) == 1:
            # Name the common metric in the heading only, to leave room for the runs' names.
            columns[_METRIC_COLUMN : _METRIC_COLUMN + 2] = [
                Column(clean(series_label(*metrics)), align_right=True)
            ]
            cells = [(view, [*line[:_METRIC_COLUMN], *line[_METRIC_COLUMN + 1 :]]) for view, line in cells]
        names = {"last": columns[_METRIC_COLUMN].name} if len(metrics) == 1 else {}
        table.show(
            cells,
            columns=None if columns == table.columns else columns,
            sorted_by=(names.get(self._sort_column, self._sort_column), self._descending),
        )
        self._show_title(len(views))
        self._show_details()
        self._update_preview()

    def _update_preview(self) -> None:
        """Request the preview if the cursor is on another run than before."""
        view = self.query_one(Table).cursor_key
        view = view if isinstance(view, RunView) else None
        if view is not self._cursor_view:
            self._cursor_view = view
            if self._has_preview:
                self._shown_at = -math.inf
                app_of(self).refresher.wake()

    def _empty_text(self) -> str:
        if not self._has_read:
            return "reading ..."
        if self.library.views:
            return "No run matches the filter. Press esc to clear it."
        folders = clean(", ".join(map(str, self.library.folders)))
        return f"No runs in {folders} yet. New runs appear here when they start."

    def _show_title(self, shown: int) -> None:
        views = self.library.views
        running = sum(view.is_live for view in views)
        parts = [
            (" burnt monitor ", "bold $primary"),
            (" " + clean(", ".join(map(str, self.library.folders))), "$foreground"),
        ]
        facts = [f"{len(views)} run{'s' * (len(views) != 1)}"]
        if running:
            facts.append(f"{running} running")
        if shown != len(views):
            facts.append(f"{shown} shown")
        if self.marked:
            facts.append(f"{len(self.marked)} marked")
        text = "  ".join(facts)
        update_if_changed(
            self.query_one("#title", Static), two_sided_line(parts, [[(text, "$dim")]], self.size.width)
        )

    def _show_details(self) -> None:
        view = self.query_one(Table).cursor_key
        about = self.query_one("#about", Static)
        if not isinstance(view, RunView):
            update_if_changed(about, Content(""))
            return
        text, style = state_cell(view)
        parts: list[tuple[str, str]] = [(f" {text}", style), (f"  {clean(str(view.folder))}", "$foreground")]
        if view.attempts:
            newest = view.attempts[-1]
            where = f"  pid {newest.pid} on {clean(newest.host)}"
            if len(view.attempts) > 1:
                where += f", attempt {len(view.attempts)}"
            parts.append((where, "$dim"))
        if view.problem:
            style = "$error" if view.state in ("crashed", "unreadable") else "$warning"
            second = Content.assemble((f" {clean(view.problem)}", style))
        else:
            pairs: list[tuple[str, Part]] = []
            if view.activity not in ("", "paused"):
                pairs.append(("", (clean(view.activity), "")))
            pairs += [("trained for", (duration_text(view.active_seconds), ""))]
            pairs += [("started", (clock_text(view.created, "%Y-%m-%d %H:%M"), ""))]
            second = facts_line(pairs, self.size.width)
        update_if_changed(about, Content("\n").join([Content.assemble(*parts), second]))

    def _row_cells(self, view: RunView) -> Sequence[Cell]:
        color, line = RUN_STYLES[view.style_index % len(RUN_STYLES)]
        mark = _LINE_MARKS[line] if view not in self.marked else "◆"
        text, style = state_cell(view)
        name = clean(view.label)
        if view.name not in (view.folder.name, view.folder.resolve().name):
            name += f" ({clean(view.name)})"
        progress, share = view.progress, view.fraction
        metric = view.metric
        last = view.heads[metric].point.value if metric is not None else None
        best = view.metric_best
        eta = view.eta
        return (
            cell(mark, color),
            cell(name, "bold" if view.is_live else ""),
            ((text, style),),
            _progress_cell(share, 6 if self.size.width < _NARROW_WIDTH else 12),
            cell(_count_of_total(progress and progress.epoch, progress and progress.total_epochs)),
            cell(_count_of_total(progress and progress.step, progress and progress.total_steps)),
            cell("" if eta is None else duration_text(eta)),
            cell("" if metric is None else series_label(metric), "$dim"),
            cell(
                "" if last is None else value_text(last),
                "" if last is None or math.isfinite(last) else "$error",
            ),
            cell("" if best is None else value_text(best.value)),
            cell("" if best is None else f"{best.step:,}", "$dim"),
            cell(duration_text(view.active_seconds) if view.attempts else "", "$dim"),
            cell("" if math.isnan(view.created) else age_text(time.time() - view.created), "$dim"),
        )

    # --- keys

    @on(Table.CursorMoved)
    def cursor_moved(self) -> None:
        """Show details of the run under the cursor."""
        self._show_details()
        self._update_preview()

    @on(Table.RowOpened)
    def row_opened(self) -> None:
        """Open a run with enter or a double click."""
        self.action_open()

    @on(Table.HeadingClicked)
    def heading_clicked(self, message: Table.HeadingClicked) -> None:
        """Sort by the clicked column; a second click reverses the order."""
        # A heading that is a metric's name belongs to the column "last".
        column = message.column if message.column in {column.name for column in _COLUMNS} else "last"
        if column not in _SORT_KEYS:
            return
        self._descending = self._sort_column == column and not self._descending
        self._sort_column = column
        self._show()

    def action_open(self) -> None:
        """Open the run under the cursor."""
        view = self.query_one(Table).cursor_key
        if isinstance(view, RunView):
            app_of(self).open_run(view)

    def action_sort(self) -> None:
        """Sort by the next column."""
        columns = {column.name for column in self.query_one(Table).columns}
        # If all runs share the metric, its column is hidden and sorting by it would change nothing visible.
        names = [
            name for name in _SORT_KEYS if name != "metric" or name in columns or name == self._sort_column
        ]
        self._sort_column = names[(names.index(self._sort_column) + 1) % len(names)]
        self._descending = False
        self._show()

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        self._descending = not self._descending
        self._show()

    def action_mark(self) -> None:
        """Mark or unmark the run under the cursor."""
        view = self.query_one(Table).cursor_key
        if isinstance(view, RunView):
            if view in self.marked:
                self.marked.remove(view)
            else:
                self.marked.append(view)
            self._show()

    def action_compare(self) -> None:
        """Compare the marked runs."""
        readable = [view for view in self.marked if view.error is None]
        if not 2 <= len(readable) <= 8:
            self.notify(f"Mark 2 to 8 readable runs with the space bar. Marked now: {len(readable)}.")
            return
        app_of(self).compare(readable)

    def action_clear(self) -> None:
        """Clear the filter; if there is none, clear the marks."""
        field = self.query_one(FilterInput)
        if field.value:
            field.close()
        else:
            self.marked = []
        self._show()

    def action_filter(self) -> None:
        """Open the filter input."""
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self, message: FilterInput.Changed) -> None:
        """Apply the filter while it is typed."""
        message.stop()
        matches = self.query_one(FilterInput).current_matcher()
        if matches is not None:
            self._matches = matches
            self._show()

    @on(FilterInput.Closed)
    def filter_closed(self) -> None:
        """Return the focus to the table."""
        self.query_one(Table).focus()


def _progress_cell(share: float | None, width: int) -> Cell:
    if share is None:
        return cell("")
    done, left = progress_bar(share, width)
    # Rounded down, so that an unfinished run never shows 100 %.
    return ((done, "$primary"), (left, "$faint"), (f" {math.floor(share * 100):>3} %", ""))


def _count_of_total(number: int | None, total: int | None) -> str:
    if number is None:
        return ""
    return f"{number:,}" if total is None else f"{number:,}/{total:,}"


def _sort_views(views: list[RunView], column: str, descending: bool) -> list[RunView]:
    """Sort by a column; runs without a value come last in either order."""
    key = _SORT_KEYS[column]
    keyed = [(key(view), view) for view in views]
    without_value = [view for value, view in keyed if isinstance(value, float) and math.isnan(value)]
    with_value = [
        (value, view) for value, view in keyed if not (isinstance(value, float) and math.isnan(value))
    ]
    with_value.sort(key=lambda pair: pair[0], reverse=descending)
    return [view for _, view in with_value] + without_value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _sort_value(view: RunView, value: float) -> float:
    """Return a sort key that puts the better value first, if the better direction is known."""
    higher = view.metric is not None and better_direction(view.metric.name, view.config) == "higher"
    return -value if higher else value
