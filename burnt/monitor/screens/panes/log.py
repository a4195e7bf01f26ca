"""The newest lines of the log, with follow mode and search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from burnt.errors import clean
from burnt.monitor.format import clock_text
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keymap import LOG, bindings
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.store import LogLine

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
