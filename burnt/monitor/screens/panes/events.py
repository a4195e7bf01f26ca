"""A run's events, newest first, after the commands that the training has not answered yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.data.event_text import command_text, early_stopping_text, event_text, note_events
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clock_text
from burnt.monitor.screens.panes.pane import FilterPane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.status_line import update_if_changed
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.store import Event
from burnt.store.control import Command, waiting
from burnt.store.search import setting_text

_COLUMNS = (
    Column("time"),
    Column("step", align_right=True),
    Column("event"),
    Column("", expands=True),
)
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
_MAX_TEXT_LENGTH = 1_000  # characters of an event in its row; enter shows the full text
_HIDDEN_KINDS = ("stopping",)  # logged after each validation; the line above the table shows the newest


class EventsPane(FilterPane):
    """The table of events."""

    TITLE = "Events"

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._row_cache: dict[int, tuple[str, Sequence[Cell]]] = {}  # (filtered text, cells) by event id

    def compose(self) -> ComposeResult:
        yield Static(classes="facts")
        yield Table(_COLUMNS, empty_text="reading ...")
        yield FilterInput(self.FILTER_HINT)

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

    def read(self) -> Callable[[], Any]:
        """Build the rows; events are read with the run, waiting commands are files in its folder."""
        events = self._events()
        countdown_text = early_stopping_text(events) if self.view.is_live else ""
        return partial(
            self._show, self._build_rows(events, self._waiting_commands()), bool(events), countdown_text
        )

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

    def _build_rows(
        self, events: Sequence[Event], waiting: Sequence[Command]
    ) -> list[tuple[object, Sequence[Cell]]]:
        rows: list[tuple[object, Sequence[Cell]]] = [
            (
                command.id,
                (
                    cell(_date_time_text(command.time), "$dim"),
                    cell(""),
                    cell("command", "$primary"),
                    cell(f"{asked}: sent by {command.sender}, waiting for an answer"),
                ),
            )
            for command, asked in ((one, command_text(one.kind, one.value)) for one in reversed(waiting))
        ]
        if (crash_row := self._crash_row()) is not None and self.matches(f"crashed {self.view.problem}"):
            rows.append((None, crash_row))
        cached, self._row_cache = self._row_cache, {}
        for event in reversed(events[-_MAX_EVENTS:]):
            if event.kind in _HIDDEN_KINDS:
                continue
            # Cells are built for new events only, of which there are few.
            text, cells = self._row_cache[event.id] = cached.get(event.id) or _event_row(event)
            if self.matches(text):
                rows.append((event.id, cells))
        return rows

    def _crash_row(self) -> Sequence[Cell] | None:
        """Return the row of a training that was killed and could not log its end; None otherwise."""
        if self.view.state != "crashed" or self.view.attempts[-1].ended is not None:
            return None
        return (
            cell(_date_time_text(self.view.attempts[-1].heartbeat), "$dim"),
            cell(""),
            cell("crashed", _STYLES["error"]),
            cell(self.view.problem, _STYLES["error"]),
        )

    def _show(
        self, rows: Sequence[tuple[object, Sequence[Cell]]], has_events: bool, countdown_text: str
    ) -> None:
        table = self.query_one(Table)
        is_on_newest = table.cursor == 0
        table.empty_text = (
            "No events have been logged yet." if not has_events else "No event matches the filter."
        )
        table.show(rows)
        if is_on_newest:  # keep following the newest event
            table.action_first()
        facts = self.query_one(Static)
        update_if_changed(
            facts, Content.assemble((f" {countdown_text}", "$dim")) if countdown_text else Content("")
        )
        facts.display = bool(countdown_text)


def _event_row(event: Event) -> tuple[str, Sequence[Cell]]:
    """Return the text that filters search, and the cells."""
    text, kind = event_text(event.kind, event.data), event.kind.replace("_", " ")
    style = _STYLES.get(event.kind, "")
    return f"{kind} {text}", (
        cell(_date_time_text(event.time), "$dim"),
        cell("" if event.step is None else f"{event.step:,}", "$dim"),
        cell(kind, style),
        cell(text[:_MAX_TEXT_LENGTH], style if event.kind == "error" else ""),
    )


def _date_time_text(seconds: float) -> str:
    return clock_text(seconds, "%m-%d %H:%M:%S")
