"""The list of runs: filter, sort, choose columns; open, mark, compare, tag or remove runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import BurntError, clean, quantity
from burnt.monitor.data.preferences import ListPreferences
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.data.sweeps import SweepView
from burnt.monitor.format import clock_text, error_text, series_label, size_text
from burnt.monitor.plotting.curves import Curve
from burnt.monitor.plotting.run_curves import MAX_RUNS, curves_of
from burnt.monitor.plotting.text_chart import ChartView
from burnt.monitor.screens.list_columns import (
    FIRST_COLUMNS,
    SORT_KEYS,
    USUAL_COLUMNS,
    USUAL_HELP,
    Candidate,
    ChooseColumnsScreen,
    age_cell_text,
    automatic_columns,
    candidates,
    headings,
    is_column,
    row_cells,
    sort_views,
)
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.dialogs import ConfirmScreen, PromptScreen
from burnt.monitor.ui.filter_input import FilterInput, run_matcher
from burnt.monitor.ui.keybar import KeyBar, Part, facts_line, two_sided_line, update_if_changed
from burnt.monitor.ui.keymap import RUNS, bindings
from burnt.monitor.ui.table import Cell, Column, Table
from burnt.monitor.ui.theme import state_cell
from burnt.store.removal import Removable, examine, remove
from burnt.store.sweeps import is_sweep
from burnt.store.tags import change_tags, check_tag
from burnt.train.format import duration_text

_AUTOMATIC_PRIORITY = 4  # of settings that nobody has chosen: dropped after epoch, step and times
_SETTINGS_BEFORE = "took"  # where they are shown
_FILTER_HINT = "words, lr>1e-3, valid/loss<0.3, tag:a, state:crashed, -not, or /regular expression/"
_NARROW_WIDTH = 100
_FORK_WIDTH = 36  # for the name of a fork and of its parent
_MIN_PREVIEW_LINES = 30
_NAMED_RUNS = 4  # in the question whether to remove runs
_AGE_REFRESH_SECONDS = 10.0  # how often ages are updated when nothing else changes


class RunsScreen(Screen[None]):
    """The table of all runs."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(RUNS)]
    KEYS = RUNS

    def __init__(self, library: RunLibrary) -> None:
        super().__init__()
        self.library = library
        self.marked: list[RunView] = []
        self._matches, self._query = run_matcher("")
        self._matching: set[RunView] = set()
        self._unknown_key: tuple[str, str | None] | None = None
        self._columns: Sequence[str] | None = None  # keys after the run's name; None shows the usual ones
        self._automatic: Sequence[str] = ()
        self._automatic_for: object = None
        self._row_cache: dict[RunView, tuple[object, Sequence[Cell]]] = {}  # (state, cells) of ended runs
        self._ordered_keys: Sequence[str] = ()  # keys of the columns in order, with those that are left out
        self._column_keys: dict[str, str] = {}  # keys by heading, as shown
        self._sort_column, self._descending = "age", False
        self._shown_at = -math.inf
        self._has_read = False
        self._has_preview = False
        self._cursor_view: RunView | None = None
        self._sweeps: dict[Path, SweepView] = {}
        self._no_sweeps: set[Path] = set()  # folders of runs that hold none

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Table([*FIRST_COLUMNS, *USUAL_COLUMNS.values()], empty_text="reading ...", id="runs")
        yield Container(id="preview")
        yield Static(id="about")
        yield FilterInput(_FILTER_HINT)
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the list as it was left, and focus the table."""
        remembered = app_of(self).preferences.list_of(self.library.folders)
        self._columns, self._descending = remembered.columns, remembered.descending
        is_known = remembered.sort in SORT_KEYS or is_column(remembered.sort)
        self._sort_column = remembered.sort if is_known else "age"
        self.query_one(Table).focus()

    def on_screen_resume(self) -> None:
        self._shown_at = -math.inf
        app_of(self).read_for(self)

    # --- showing

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reader thread: filter the runs and read the preview; the rest is in the library."""
        if not changed and time.monotonic() - self._shown_at < _AGE_REFRESH_SECONDS:
            return None
        self._shown_at = time.monotonic()
        self._find_automatic_columns()
        facts = {view: view.facts() for view in self.library.views}
        matching = {view for view, one in facts.items() if self._matches(one)}
        self._unknown_key = None
        if self._query is not None and not matching:
            self._unknown_key = self._query.unknown_key(facts.values())
        self._matching = self._with_sweeps_folded(matching)
        curves = self._curves(self._cursor_view) if self._has_preview else None
        return partial(self._show_all, self._cursor_view, curves)

    def _with_sweeps_folded(self, matching: set[RunView]) -> set[RunView]:
        """Return the runs to show: of each sweep only the best trial, unless a filter looks for trials."""
        folders = {view.folder.parent for view in matching if view.folder.parent not in self._no_sweeps}
        self._no_sweeps |= {folder for folder in folders if not is_sweep(folder)}
        for view in matching:
            view.sweep_text = ""
        if self._query is None or self._query.text:
            return matching
        for folder in folders - self._no_sweeps:
            sweep = self._sweeps.setdefault(folder, SweepView(folder))
            sweep.refresh(matching)
            if sweep.best is not None and sweep.sweep is not None:
                sweep.best.sweep_text = f"best of {sweep.num_ended}/{sweep.sweep.trials} trials"
                matching = {view for view in matching if view not in sweep.views.values()} | {sweep.best}
        return matching

    def _find_automatic_columns(self) -> None:
        """Find the settings that differ, if a run was added or has new settings; it compares all of them."""
        views = self.library.views
        settings = [(view, len(view.attempts)) for view in views]
        if settings != self._automatic_for:
            self._automatic_for, self._automatic = settings, automatic_columns(views)

    def _curves(self, view: RunView | None) -> list[Curve]:
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
        container.query_one(Chart).show(ChartView(curves, title="" if metric is None else metric.name))

    def on_resize(self) -> None:
        self._has_preview = self.size.height >= _MIN_PREVIEW_LINES
        if not self._has_preview:
            self.query_one("#preview").display = False
        self._shown_at = -math.inf

    def _show(self, read: bool | None = None) -> None:
        self._has_read = self._has_read or bool(read)
        views = [view for view in self.library.views if view in self._matching]
        self.marked = [view for view in self.marked if view in self.library.views]
        views = sort_views(views, self._sort_column, self._descending)
        table = self.query_one(Table)
        table.empty_text = self._empty_text()
        columns = self._shown_columns(views)
        self._column_keys = {column.name: key for key, column in columns.items()}
        mark, name = FIRST_COLUMNS
        if self.size.width >= _NARROW_WIDTH and any(view.parentage or view.sweep_text for view in views):
            name = name._replace(min_width=_FORK_WIDTH)
        all_columns = [mark, name, *columns.values()]
        sorted_name = columns[self._sort_column].name if self._sort_column in columns else self._sort_column
        table.show(
            [(view, self._cached_cells(view, columns)) for view in views],
            columns=None if all_columns == table.columns else all_columns,
            sorted_by=(sorted_name, self._descending),
        )
        remark = ""
        if self._unknown_key is not None and not views:
            key, guess = self._unknown_key
            remark = f"no run has {key}" + (f": did you mean {guess}?" if guess else "")
        self.query_one(FilterInput).show_remark(clean(remark))
        self._show_title(len(views))
        self._show_details()
        self._update_preview()

    def _shown_columns(self, views: Sequence[RunView]) -> dict[str, Column]:
        columns = dict(USUAL_COLUMNS)
        if self._columns is None:
            if not any(view.tags for view in self.library.views):
                del columns["tags"]
            added = self._automatic
        else:
            added = [key for key in self._columns if key not in USUAL_COLUMNS]
        for key, heading in zip(added, headings(added, self.library.views), strict=True):
            name = heading if heading not in USUAL_COLUMNS else key.partition(":")[2]
            columns[key] = Column(clean(name), align_right=True, drop_priority=_AUTOMATIC_PRIORITY)
        if self._columns is None:
            order = [key for key in columns if key not in added]
            at = order.index(_SETTINGS_BEFORE)
            order[at:at] = added
        else:
            order = [key for key in self._columns if key in columns]
            # What was chosen is dropped after the usual columns, the last one first.
            for key, column in columns.items():
                priority = added.index(key) + 1 if key in added else column.drop_priority * len(columns)
                columns[key] = column._replace(drop_priority=priority)
        self._ordered_keys = order
        metrics = {view.metric for view in views if view.metric is not None}
        if len(metrics) == 1 and "last" in order:
            # Name the common metric in the heading only, to leave room for the runs' names.
            order = [key for key in order if key != "metric"]
            columns["last"] = columns["last"]._replace(name=clean(series_label(*metrics)))
        return {key: columns[key] for key in order}

    def _view_under_cursor(self) -> RunView | None:
        view = self.query_one(Table).cursor_key
        return view if isinstance(view, RunView) else None

    def _update_preview(self) -> None:
        """Request the preview if the cursor is on another run than before."""
        view = self._view_under_cursor()
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
        view, about = self._view_under_cursor(), self.query_one("#about", Static)
        if view is None:
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
        if view.parentage:
            parts.append((f"  {clean(view.parentage)}", "$dim"))
        if view.tags:
            parts.append((f"  {' '.join(view.tags)}", "$accent"))
        if view.problem:
            second = Content.assemble((f" {clean(view.problem)}", style))
        else:
            pairs: list[tuple[str, Part]] = []
            if view.activity not in ("", "paused"):
                pairs.append(("", (clean(view.activity), "")))
            pairs += [("trained for", (duration_text(view.active_seconds), ""))]
            pairs += [("started", (clock_text(view.created, "%Y-%m-%d %H:%M"), ""))]
            second = facts_line(pairs, self.size.width)
        update_if_changed(about, Content("\n").join([Content.assemble(*parts), second]))

    def _cached_cells(self, view: RunView, columns: Iterable[str]) -> Sequence[Cell]:
        """Return a run's cells; an ended run's are the same object until something in them changes."""
        is_marked, is_narrow = view in self.marked, self.size.width < _NARROW_WIDTH
        make = partial(row_cells, view, columns, is_marked=is_marked, is_narrow=is_narrow)
        if view.is_live:
            return make()
        state = view.version, view.sweep_text, is_marked, tuple(columns), is_narrow, age_cell_text(view)
        cached = self._row_cache.get(view)
        if cached is None or cached[0] != state:
            cached = self._row_cache[view] = state, make()
        return cached[1]

    # --- keys

    @on(Table.CursorMoved)
    def cursor_moved(self) -> None:
        self._show_details()
        self._update_preview()

    @on(Table.RowOpened)
    def row_opened(self) -> None:
        self.action_open()

    @on(Table.HeadingClicked)
    def heading_clicked(self, message: Table.HeadingClicked) -> None:
        """Sort by the clicked column; a second click reverses the order."""
        key = "run" if message.column == "run" else self._column_keys.get(message.column)
        if key is not None:
            self._sort_by(key, self._sort_column == key and not self._descending)

    def action_open(self) -> None:
        view = self._view_under_cursor()
        if view is not None and view.sweep_text:
            app_of(self).open_sweep(view.folder.parent)
        elif view is not None:
            app_of(self).open_run(view)

    def action_sort(self) -> None:
        shown = list(self._column_keys.values())
        names = [*(key for key in SORT_KEYS if key in shown or key == "run"), *shown]
        names = list(dict.fromkeys(names))
        following = names.index(self._sort_column) + 1 if self._sort_column in names else 0
        self._sort_by(names[following % len(names)], False)

    def action_reverse(self) -> None:
        self._sort_by(self._sort_column, not self._descending)

    def _sort_by(self, key: str, descending: bool) -> None:
        self._sort_column, self._descending = key, descending
        self._remember()
        self._show()

    def _remember(self) -> None:
        columns = None if self._columns is None else tuple(self._columns)
        shown = ListPreferences(columns, self._sort_column, self._descending)
        try:
            app_of(self).preferences.set_list(self.library.folders, shown)
        except OSError as error:
            self.notify(clean(f"The columns are not remembered: {error}"), severity="warning", markup=False)

    def action_columns(self) -> None:
        shown = self._ordered_keys
        usual = [
            Candidate(key, column.name, "", USUAL_HELP.get(key, "")) for key, column in USUAL_COLUMNS.items()
        ]
        self.app.push_screen(
            ChooseColumnsScreen(
                [*candidates(self.library.views), *usual], shown, self._choose_columns, self._reset_columns
            )
        )

    def _choose_columns(self, keys: Sequence[str]) -> None:
        self._columns = list(keys)
        self._remember()
        self._show()

    def _reset_columns(self) -> Sequence[str]:
        self._columns = None
        self._remember()
        self._show()
        return self._ordered_keys

    def action_mark(self) -> None:
        if (view := self._view_under_cursor()) is not None:
            if view in self.marked:
                self.marked.remove(view)
            else:
                self.marked.append(view)
            self._show()

    def action_compare(self) -> None:
        readable = [view for view in self.marked if view.error is None]
        if not 2 <= len(readable) <= MAX_RUNS:
            self.notify(
                f"Mark 2 to {MAX_RUNS} readable runs with the space bar. Marked now: {len(readable)}."
            )
            return
        app_of(self).compare(readable)

    # --- tags and removal

    def _selected_views(self) -> list[RunView]:
        """Return the marked runs, or else the one under the cursor."""
        view = self._view_under_cursor()
        return list(self.marked) or ([] if view is None else [view])

    async def action_tag(self) -> None:
        await self._ask_for_tags("Add tags to", add=True)

    async def action_untag(self) -> None:
        await self._ask_for_tags("Remove tags from", add=False)

    async def _ask_for_tags(self, question: str, *, add: bool) -> None:
        views = self._selected_views()
        tags = sorted({tag for view in views for tag in view.tags})
        if not views or not (add or tags):
            self.notify("No run is selected." if not views else "There are no tags to remove.")
            return

        def answered(text: str | None) -> None:
            if text is not None:
                self._change_tags(views, text.split(), add)

        of = clean(views[0].label) if len(views) == 1 else f"{len(views)} marked runs"
        detail = f"Tags: {clean(', '.join(tags))}." if tags else "No tags yet."
        await self.app.push_screen(
            PromptScreen(
                f"{question} {of}",
                detail,
                "one or more tags, such as baseline" if add else "one or more of these",
                "Add" if add else "Remove",
                lambda text: [check_tag(tag) for tag in text.split()],
            ),
            answered,
        )

    @work(thread=True)
    def _change_tags(self, views: Sequence[RunView], tags: Sequence[str], add: bool) -> None:
        for view in views:
            try:
                change_tags(view.folder, tags if add else (), () if add else tags)
            except BurntError as error:
                self._notify_error(error)
            view.refresh()
        self._shown_at = -math.inf
        app_of(self).refresher.wake()

    def action_remove(self) -> None:
        if views := self._selected_views():
            self._examine(views)

    @work(thread=True)
    def _examine(self, views: Sequence[RunView]) -> None:
        """Measure what a removal frees, which reads the folders, and ask."""
        try:
            found = [examine(view.folder) for view in views]
        except BurntError as error:
            self._notify_error(error)
        else:
            self.app.call_from_thread(self._ask_to_remove, views, found)

    def _ask_to_remove(self, views: Sequence[RunView], found: Sequence[Removable]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._remove(views)

        size = size_text(sum(one.bytes for one in found))
        names = ", ".join(view.label for view in views[:_NAMED_RUNS])
        if len(views) > _NAMED_RUNS:
            names += f" and {len(views) - _NAMED_RUNS} more"
        detail = f"{names}: {size} with metrics and checkpoints. This cannot be undone."
        if others := sorted({name for one in found for name in one.other_names}):
            detail += f" Also removed: {', '.join(others)}."
        question = f"Remove {quantity(len(views), 'run')}?"
        self.app.push_screen(ConfirmScreen(question, detail, "Remove", dangerous=True), answered)

    @work(thread=True)
    def _remove(self, views: Sequence[RunView]) -> None:
        freed = 0
        for view in views:
            try:
                freed += remove(view.folder).bytes
            except BurntError as error:
                self._notify_error(error)
            view.refresh()
        if freed:
            self.app.call_from_thread(self.notify, f"{size_text(freed)} freed")
        app_of(self).refresher.wake(rescan=True)

    def _notify_error(self, error: BurntError) -> None:
        self.app.call_from_thread(self.notify, error_text(error), severity="error", markup=False)

    def action_clear(self) -> None:
        """Clear the filter; if there is none, clear the marks."""
        field = self.query_one(FilterInput)
        if field.value:
            field.close()
        else:
            self.marked = []
        self._show()

    def action_filter(self) -> None:
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self, message: FilterInput.Changed) -> None:
        message.stop()
        found = self.query_one(FilterInput).parsed(run_matcher)
        if found is not None:
            self._matches, self._query = found
            self._shown_at = -math.inf
            app_of(self).refresher.wake()

    @on(FilterInput.Closed)
    def filter_closed(self) -> None:
        self.query_one(Table).focus()
