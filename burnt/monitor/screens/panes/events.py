"""A run's events, newest first, after the commands that the training has not answered yet."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.data.event_text import command_text, early_stopping_text, event_text, note_events
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clock_text
from burnt.monitor.screens.panes.pane import TablePane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.table import Column, Row, Table, cell
from burnt.store import Event
from burnt.store.control import Command, waiting
from burnt.store.search import setting_text

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
