"""The log: its tail, which follows, and a search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from burnt.monitor.format import clean, clock_text
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keymap import LOG, bindings
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.train.store import LogLine

__all__ = ["LogPane"]

_COLUMNS = (Column("time"), Column("level", spare=1), Column("text", grows=True))
_MAX_TEXT_LENGTH = (
    1_000  # characters of a line that its row has, more than any terminal is wide; enter shows all
)
_LEVEL_STYLES = {"error": "$error", "critical": "bold $error", "warning": "$warning", "debug": "$dim"}


class LogPane(Pane):
    """The newest lines of the log."""

    TITLE = "Log"
    KEYS = LOG
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(LOG)]

    def __init__(self, view: Any) -> None:
        super().__init__(view)
        self._following = True
        self._wanted = ""
        self._lines: Sequence[LogLine] = ()
        self._made: dict[int, tuple[str, Sequence[Cell], bool]] = {}  # by line: search, cells, a match
        self._hits: Sequence[int] = ()  # which lines are matches

    def compose(self) -> ComposeResult:
        """The lines, and a field to search in."""
        yield Table(_COLUMNS, empty="nothing has been logged yet", head=False)
        yield FilterInput("search the log")

    def token(self) -> object:
        """Other things than new lines change nothing here."""
        return self.view.newest.log_line, self._asked

    def read(self) -> Callable[[], Any]:
        """New lines."""
        lines = self.view.log_lines()
        return partial(self._show, lines, *self._rows(lines))

    def _rows(self, lines: Sequence[LogLine]) -> tuple[list[tuple[object, Sequence[Cell]]], list[int]]:
        """The lines as rows of the table, and which are matches; made for new lines only, which are few."""
        wanted, known, made = self._wanted, self._made, {}
        for line in lines:
            before = known.get(line.id)
            if before and before[0] == wanted:
                made[line.id] = before
            else:
                # The whole line is searched, of which its row may have the beginning only.
                hit = bool(wanted) and wanted in clean(line.text).lower()
                made[line.id] = wanted, _line_cells(line, wanted), hit
        self._made = made
        hits = [number for number, (_, _, hit) in enumerate(made.values()) if hit]
        return [(id, cells) for id, (_, cells, _) in made.items()], hits

    def _show(
        self, lines: Sequence[LogLine], shown: Sequence[tuple[object, Sequence[Cell]]], hits: Sequence[int]
    ) -> None:
        self._lines, self._hits = lines, hits
        rows = self.query_one(Table)
        rows.show(shown)
        if self._following:
            rows.action_last()
        self._count()

    def _count(self) -> None:
        """Say beside the search which match the cursor is on, of how many."""
        text, rows = "", self.query_one(Table)
        if self._wanted:
            all_of_them = f"{len(self._hits):,}"
            at = bisect_left(self._hits, rows.cursor)
            here = at < len(self._hits) and self._hits[at] == rows.cursor
            matches = "match" if len(self._hits) == 1 else "matches"
            text = f"match {at + 1:,} of {all_of_them}" if here else f"{all_of_them} {matches}"
        self.query_one(FilterInput).remark(text)

    @on(Table.Opened)
    def opened(self, message: Table.Opened) -> None:
        """All of a long line."""
        line = next((line for line in self._lines if line.id == message.key), None)
        if line is not None:
            title = f"{clock_text(line.time, '%Y-%m-%d %H:%M:%S')} {line.level}"
            self.app.push_screen(TextScreen(title, line.text))

    @on(Table.Moved)
    def moved(self) -> None:
        """Who goes up stops following; who comes to the end follows again."""
        rows = self.query_one(Table)
        self._following = rows.cursor >= len(rows.keys) - 1
        self._count()

    def action_follow(self) -> None:
        """Follow, or stay."""
        self._following = not self._following
        if self._following:
            self.query_one(Table).action_last()
        self.notify("following the log" if self._following else "the log stays where it is")

    def action_search(self) -> None:
        """Type what to look for."""
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def changed(self, message: FilterInput.Changed) -> None:
        """What is typed has not been looked for yet."""
        message.stop()
        if message.value.lower() != self._wanted:
            self.query_one(FilterInput).remark("")

    @on(FilterInput.Closed)
    def closed(self, message: FilterInput.Closed) -> None:
        """Mark the matches and go to the last one."""
        message.stop()
        self._wanted = message.field.value.lower()
        rows = self.query_one(Table)
        rows.focus()
        self._show(self._lines, *self._rows(self._lines))
        if self._wanted:
            self._following = False
            rows.cursor = len(rows.keys)
            self.action_match(-1, here=True)

    def action_match(self, direction: int, here: bool = False) -> None:
        """Go to the next line with what was looked for, or the one before."""
        if not self._wanted:
            self.action_search()
            return
        rows = self.query_one(Table)
        if direction < 0:
            at = bisect_right(self._hits, rows.cursor if here else rows.cursor - 1) - 1
        else:
            at = bisect_right(self._hits, rows.cursor)
        if 0 <= at < len(self._hits):
            self._following = False
            rows.cursor = self._hits[at]
            return
        where = ("earlier" if direction < 0 else "later") if self._hits else "in the log"
        self.notify(f"{self._wanted!r} is not found {where}", markup=False)


def _line_cells(line: LogLine, wanted: str) -> Sequence[Cell]:
    text = clean(line.text[:_MAX_TEXT_LENGTH])
    style = _LEVEL_STYLES.get(line.level.lower(), "")
    at = text.lower().find(wanted) if wanted else -1
    parts: Cell = ((text, style),)
    if at >= 0:
        end = at + len(wanted)
        parts = ((text[:at], style), (text[at:end], "reverse"), (text[end:], style))
    return cell(clock_text(line.time), "$dim"), cell(line.level, style or "$dim"), parts
