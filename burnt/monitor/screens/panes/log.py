"""The newest lines of the log, with follow mode and search; the run's events, newest first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.data.event_text import command_text, early_stopping_text, event_text, note_events
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clock_text
from burnt.monitor.screens.panes.pane import Pane, TablePane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.keymap import LOG, bindings
from burnt.monitor.ui.table import Cell, Column, Row, Table, cell
from burnt.store import Event, LogLine
from burnt.store.control import Command, waiting
from burnt.store.search import setting_text

_COLUMNS = (Column("time"), Column("level", drop_priority=1), Column("text", expands=True))
_MAX_TEXT_LENGTH = 1_000  # characters of a line in its row, wider than any terminal; enter shows all
_LEVEL_STYLES = {"error": "$error", "critical": "bold $error", "warning": "$warning", "debug": "$dim"}


class LogPane(Pane):
    """The table of log lines."""

    TITLE = "Log"
    KEYS = LOG
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(LOG)]

    def __init__(self, view: Any) -> None:
        super().__init__(view)
        self._is_following = True
        self._search_text = ""
        self._lines: Sequence[LogLine] = ()
        self._row_cache: dict[
            int, tuple[str, Sequence[Cell], bool]
        ] = {}  # (search text, cells, is a match) by line id
        self._match_rows: Sequence[int] = ()  # row numbers of matches

    def compose(self) -> ComposeResult:
        yield Table(_COLUMNS, empty_text="Nothing has been logged yet.", header=False)
        yield FilterInput("search the log")

    def token(self) -> object:
        return self.view.newest.log_line, self._num_requests

    def read(self) -> Callable[[], Any]:
        lines = self.view.log_lines()
        return partial(self._show, lines, *self._build_rows(lines))

    def _build_rows(self, lines: Sequence[LogLine]) -> tuple[list[tuple[object, Sequence[Cell]]], list[int]]:
        """Return the lines as table rows, and the row numbers of matches; only new rows are built."""
        search_text, cached, rows = self._search_text, self._row_cache, {}
        for line in lines:
            cached_row = cached.get(line.id)
            if cached_row and cached_row[0] == search_text:
                rows[line.id] = cached_row
            else:
                # Search the whole line; its row may show only the beginning.
                is_match = bool(search_text) and search_text in clean(line.text).lower()
                rows[line.id] = search_text, _line_cells(line, search_text), is_match
        self._row_cache = rows
        match_rows = [number for number, (_, _, is_match) in enumerate(rows.values()) if is_match]
        return [(id, cells) for id, (_, cells, _) in rows.items()], match_rows

    def _show(
        self, lines: Sequence[LogLine], shown: Sequence[tuple[object, Sequence[Cell]]], hits: Sequence[int]
    ) -> None:
        self._lines, self._match_rows = lines, hits
        rows = self.query_one(Table)
        rows.show(shown)
        if self._is_following:
            rows.action_last()
        self._show_match_count()

    def _show_match_count(self) -> None:
        """Show next to the search text the number of matches and which one the cursor is on."""
        text, table = "", self.query_one(Table)
        if self._search_text:
            total = f"{len(self._match_rows):,}"
            at = bisect_left(self._match_rows, table.cursor)
            on_match = at < len(self._match_rows) and self._match_rows[at] == table.cursor
            matches = "match" if len(self._match_rows) == 1 else "matches"
            text = f"match {at + 1:,} of {total}" if on_match else f"{total} {matches}"
        self.query_one(FilterInput).show_remark(text)

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        line = next((line for line in self._lines if line.id == message.key), None)
        if line is not None:
            title = f"{clock_text(line.time, '%Y-%m-%d %H:%M:%S')} {line.level}"
            self.app.push_screen(TextScreen(title, line.text))

    @on(Table.CursorMoved)
    def cursor_moved(self) -> None:
        """Stop following when the cursor moves up; follow again when it reaches the last line."""
        table = self.query_one(Table)
        self._is_following = table.cursor >= len(table.row_keys) - 1
        self._show_match_count()

    def action_follow(self) -> None:
        self._is_following = not self._is_following
        if self._is_following:
            self.query_one(Table).action_last()
        self.notify(
            "Following new log lines." if self._is_following else "No longer following new log lines."
        )

    def action_search(self) -> None:
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def search_changed(self, message: FilterInput.Changed) -> None:
        """Hide the match count until the new text is searched."""
        message.stop()
        if message.value.lower() != self._search_text:
            self.query_one(FilterInput).show_remark("")

    @on(FilterInput.Closed)
    def search_closed(self, message: FilterInput.Closed) -> None:
        message.stop()
        self._search_text = self.query_one(FilterInput).value.lower()
        rows = self.query_one(Table)
        rows.focus()
        self._show(self._lines, *self._build_rows(self._lines))
        if self._search_text:
            self._is_following = False
            rows.cursor = len(rows.row_keys)
            self.action_match(-1, here=True)

    def action_match(self, direction: int, here: bool = False) -> None:
        """Go to the next (1) or previous (-1) match."""
        if not self._search_text:
            self.action_search()
            return
        rows = self.query_one(Table)
        if direction < 0:
            at = bisect_right(self._match_rows, rows.cursor if here else rows.cursor - 1) - 1
        else:
            at = bisect_right(self._match_rows, rows.cursor)
        if 0 <= at < len(self._match_rows):
            self._is_following = False
            rows.cursor = self._match_rows[at]
            return
        where = ("earlier" if direction < 0 else "later") if self._match_rows else "in the log"
        self.notify(f"{self._search_text!r} not found {where}.", markup=False)


def _line_cells(line: LogLine, search_text: str) -> Sequence[Cell]:
    text = clean(line.text[:_MAX_TEXT_LENGTH])
    style = _LEVEL_STYLES.get(line.level.lower(), "")
    start = text.lower().find(search_text) if search_text else -1
    parts: Cell = ((text, style),)
    if start >= 0:
        end = start + len(search_text)
        parts = ((text[:start], style), (text[start:end], "reverse"), (text[end:], style))
    return cell(clock_text(line.time), "$dim"), cell(line.level, style or "$dim"), parts


_STYLES = {
    "error": "bold $error",
    "signal": "$warning",
    "write_error": "$warning",
    "early_stopping": "$warning",
    "checkpoint": "$success",
    "command": "$primary",
    "note": "$accent",
    "resume": "$primary",
    "start": "$primary",
    "paused": "$warning",
    "resumed": "$primary",
}
_MAX_EVENTS = 5_000  # the newest are shown
_HIDDEN_KINDS = ("stopping",)  # logged after each validation; the line above the table shows the newest


class EventsPane(TablePane):
    """The table of events."""

    TITLE = "Events"
    COLUMNS = (Column("time"), Column("step", align_right=True), Column("event"), Column("", expands=True))
    EMPTY = "No events have been logged yet."
    NO_MATCH = "No event matches the filter."

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._row_cache: dict[int, tuple[str, Row]] = {}  # by event id

    def compose(self) -> ComposeResult:
        yield Static(classes="facts")
        yield from super().compose()

    def token(self) -> object:
        events = self.view.events
        newest = events[-1].id if events else 0
        waiting = tuple(command.id for command in self._waiting_commands())
        return newest, len(events), self.view.file_notes, self.view.state, waiting, self._num_requests

    def _events(self) -> Sequence[Event]:
        """Return the events, with the notes that were added to the folder, oldest first."""
        if not self.view.file_notes:
            return self.view.events
        return sorted([*self.view.events, *note_events(self.view.file_notes)], key=lambda event: event.time)

    def _waiting_commands(self) -> Sequence[Command]:
        return waiting(self.view.folder) if self.view.is_live else []

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        event = next((event for event in self._events() if event.id == message.key), None)
        if event is not None:
            data = dict(event.data)
            trace = data.pop("traceback", None)
            lines = [f"{key}: {setting_text(value)}" for key, value in data.items()]
            if trace:
                lines += ["", str(trace)]
            at = "" if event.step is None else f" at step {event.step:,}"
            self.app.push_screen(
                TextScreen(f"{event.kind}{at}, {_date_time_text(event.time)}", "\n".join(lines))
            )

    def rows(self) -> Sequence[tuple[str, Row]]:
        """Return commands that wait for an answer, and events; cells are built for new events only."""
        rows: list[tuple[str, Row]] = []
        for command in reversed(self._waiting_commands()):
            text = command_text(command.kind, command.value)
            text += f": sent by {command.sender}, waiting for an answer"
            rows.append((text, _row(command.id, command.time, None, "command", text, _STYLES["command"])))
        if (crash := self._crash_row()) is not None:
            rows.append((f"crashed {self.view.problem}", crash))
        cached, self._row_cache = self._row_cache, {}
        for event in reversed(self._events()[-_MAX_EVENTS:]):
            if event.kind not in _HIDDEN_KINDS:
                self._row_cache[event.id] = cached.get(event.id) or _event_row(event)
        return [*rows, *self._row_cache.values()]

    def _crash_row(self) -> Row | None:
        """Return the row of a training that was killed and could not log its end; None otherwise."""
        if self.view.state != "crashed" or self.view.attempts[-1].ended is not None:
            return None
        style = _STYLES["error"]
        return _row(None, self.view.attempts[-1].heartbeat, None, "crashed", self.view.problem, style, style)

    def show_rows(self, rows: Sequence[Row], has_any: bool) -> None:
        table = self.query_one(Table)
        is_on_newest = table.cursor == 0
        super().show_rows(rows, has_any)
        if is_on_newest:  # keep following the newest event
            table.action_first()
        countdown = early_stopping_text(self.view.events) if self.view.is_live else ""
        facts = self.query_one(Static)
        update_if_changed(facts, Content.assemble((f" {countdown}", "$dim")))
        facts.display = bool(countdown)


def _event_row(event: Event) -> tuple[str, Row]:
    """Return the text that filters search, and the row."""
    text, kind = event_text(event.kind, event.data), event.kind.replace("_", " ")
    style = _STYLES.get(event.kind, "")
    text_style = style if event.kind == "error" else ""
    return f"{kind} {text}", _row(event.id, event.time, event.step, kind, text, style, text_style)


def _row(
    key: object, time: float, step: int | None, kind: str, text: str, style: str, text_style: str = ""
) -> Row:
    return key, (
        cell(_date_time_text(time), "$dim"),
        cell("" if step is None else f"{step:,}", "$dim"),
        cell(kind, style),
        cell(text[:_MAX_TEXT_LENGTH], text_style),
    )


def _date_time_text(seconds: float) -> str:
    return clock_text(seconds, "%m-%d %H:%M:%S")
