"""Events: what happened once, newest first, and what was asked of the training and is not answered yet."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.dialogs import TextScreen
from burnt.monitor.field import Field
from burnt.monitor.filters import matcher
from burnt.monitor.keys import FILTER, bindings
from burnt.monitor.line import update
from burnt.monitor.model import RunView
from burnt.monitor.panes.pane import Pane
from burnt.monitor.rows import Cell, Column, Rows, cell
from burnt.monitor.words import clean, one_line, value_text
from burnt.train.store import Event
from burnt.train.store.control import Command, waiting

__all__ = ["EventsPane", "countdown", "event_text"]

_COLUMNS = (
    Column("time"),
    Column("step", right=True),
    Column("event"),
    Column("", grows=True),
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
_QUIET = ("stopping",)  # after each validation; the countdown tells the newest of them


class EventsPane(Pane):
    """What happened."""

    TITLE = "Events"
    KEYS = FILTER
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(FILTER)]

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._matches = matcher("")

    def compose(self) -> ComposeResult:
        """How long early stopping still waits, the table, and a field to filter it."""
        yield Static(classes="facts")
        yield Rows(_COLUMNS, empty="nothing has happened yet")
        yield Field("words, or /regular expression/")

    def token(self) -> object:
        """Waiting commands are files: when one is answered, there is an event too."""
        return self.view.version, self._asked

    def read(self) -> Callable[[], Any]:
        """Events were read with the run; commands that wait are files beside it."""
        return partial(self._show, waiting(self.view.folder) if self.view.live else [])

    def action_filter(self) -> None:
        """Type a filter."""
        self.query_one(Field).open()

    @on(Field.Changed)
    def changed(self, message: Field.Changed) -> None:
        """Filter while it is typed."""
        message.stop()
        matches = self.query_one(Field).matches()
        if matches is not None:
            self._matches = matches
            self.again()

    @on(Field.Closed)
    def closed(self, message: Field.Closed) -> None:
        """Back to the table; the filter stays."""
        message.stop()
        self.query_one(Rows).focus()

    @on(Rows.Opened)
    def opened(self, message: Rows.Opened) -> None:
        """All that an event says, with the traceback of an error."""
        event = next((event for event in self.view.events if event.id == message.key), None)
        if event is not None:
            data = dict(event.data)
            trace = data.pop("traceback", None)
            lines = [
                f"{key}: {value if isinstance(value, str) else json.dumps(value)}"
                for key, value in data.items()
            ]
            if trace:
                lines += ["", str(trace)]
            at = "" if event.step is None else f" at step {event.step:,}"
            self.app.push_screen(TextScreen(f"{event.kind}{at}, {_clock(event.time)}", "\n".join(lines)))

    def _show(self, sent: Sequence[Command]) -> None:
        rows: list[tuple[object, Sequence[Cell]]] = [
            (
                command.id,
                (
                    cell(_clock(command.time), "$dim"),
                    cell(""),
                    cell("command", "$primary"),
                    cell(
                        f"{_command(command.kind, command.value)}: sent by {command.sender}, not answered yet"
                    ),
                ),
            )
            for command in reversed(sent)
        ]
        if (death := self._death()) is not None and self._matches(f"crashed {self.view.note}"):
            rows.append((None, death))
        for event in reversed(self.view.events):
            text, kind = event_text(event), event.kind.replace("_", " ")
            if event.kind in _QUIET or not self._matches(f"{kind} {text}"):
                continue
            style = _STYLES.get(event.kind, "")
            rows.append(
                (
                    event.id,
                    (
                        cell(_clock(event.time), "$dim"),
                        cell("" if event.step is None else f"{event.step:,}", "$dim"),
                        cell(kind, style),
                        cell(text, style if event.kind == "error" else ""),
                    ),
                )
            )
        table = self.query_one(Rows)
        newest = table.cursor == 0
        table.empty = "nothing has happened yet" if not self.view.events else "no event matches"
        table.show(rows)
        if newest:  # who looks at the newest event wants to see the next one
            table.action_first()
        facts = self.query_one(Static)
        text = countdown(self.view.events) if self.view.live else ""
        update(facts, Content.assemble((f" {text}", "$dim")) if text else Content(""))
        facts.display = bool(text)

    def _death(self) -> Sequence[Cell] | None:
        """The line of a training that was killed: it could not write an event of its end."""
        if self.view.state != "crashed" or self.view.attempts[-1].ended is not None:
            return None
        return (
            cell(_clock(self.view.attempts[-1].heartbeat), "$dim"),
            cell(""),
            cell("crashed", _STYLES["error"]),
            cell(self.view.note, _STYLES["error"]),
        )


def countdown(events: Sequence[Event]) -> str:
    """How long early stopping still waits, as the newest validation left it; empty if there is none."""
    newest = next((event for event in reversed(events) if event.kind == "stopping"), None)
    if newest is None:
        return ""
    data = newest.data
    best = data.get("best")
    best_text = value_text(best) if isinstance(best, float | int) else str(best)
    return (
        f"early stopping: {data.get('waited')} of {data.get('patience')} without a better "
        f"{clean(str(data.get('metric')))} than {best_text}"
    )


def event_text(event: Event) -> str:
    """What an event says beside its kind, on one line."""
    data = event.data
    match event.kind:
        case "start" | "resume":
            return f"pid {data.get('pid')} on {data.get('host')}"
        case "end":
            reason = data.get("reason")
            state = str(data.get("state"))
            return one_line(f"{state}: {reason}") if reason and reason != state else state
        case "error":
            return one_line(f"{data.get('error')}: {data.get('message')}")
        case "command":
            text = f"{_command(data.get('command'), data.get('value'))}: {data.get('status')}"
            return text + (f", {data['reason']}" if data.get("reason") else "")
        case "checkpoint":
            return f"{data.get('path')}  {_values(data.get('values'))}"
        case "epoch":
            return f"{data.get('epoch')}  {_values(data.get('values'))}"
        case "note":
            return str(data.get("text"))
        case "signal":
            return str(data.get("signal"))
        case "learning_rate":
            value = data.get("value")
            return "as the schedule says" if value is None else _value(value)
        case _:
            return "  ".join(f"{key} {_value(value)}" for key, value in data.items())


def _command(kind: object, value: object) -> str:
    return f"{kind}" if value is None else f"{kind} {_value(value)}"


def _values(values: object) -> str:
    if not isinstance(values, dict):
        return ""
    return "  ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return value_text(value)
    return value if isinstance(value, str) else json.dumps(value)


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%m-%d %H:%M:%S}"
