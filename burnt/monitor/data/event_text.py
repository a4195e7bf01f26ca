"""A run's events as text: one line per event, the state of early stopping, why the run ended.

Without Textual. Other programs may write to a run's file, so no function relies on an event having the
documented data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnt.errors import clean
from burnt.monitor.format import one_line, parse_number, size_text
from burnt.store import Event
from burnt.train.format import duration_text, value_text

if TYPE_CHECKING:
    from burnt.monitor.data.runs import RunView
    from burnt.store.tags import Note


def note_events(notes: Sequence[Note]) -> list[Event]:
    """Return notes as events, with negative ids, which no event of the store has."""
    return [
        Event(
            -max(round(note.time * 1e6), 1),
            0,
            note.time,
            note.step,
            "note",
            {"text": note.text, "user": note.user},
        )
        for note in notes
    ]


def event_text(kind: str, data: Mapping[str, Any]) -> str:
    """Format an event's data on one line, without its kind, with rounded values.

    >>> event_text("epoch", {"epoch": 3, "values": {"loss": 0.29855883041083864}})
    '3  loss 0.2986'
    >>> event_text("checkpoint", {"path": "step-00000008", "values": {}, "bytes": 1231200})
    'step-00000008  1.2 MiB'
    >>> event_text("plateau", {"metric": "valid/loss", "best": 0.25, "patience": "3 epochs", "rate": 1e-4})
    'learning rate 0.0001  valid/loss stalled at 0.2500 for 3 epochs'
    >>> data = {"metric": "train/loss", "best": 0.5, "patience": "9 steps", "rate": 0.01, "group": "head"}
    >>> event_text("plateau", data)
    'learning rate of head 0.0100  train/loss stalled at 0.5000 for 9 steps'
    """
    match kind:
        case "start" | "resume":
            parts = [f"pid {data.get('pid')} on {data.get('host')}"]
        case "end":
            state, reason = data.get("state"), data.get("reason")
            parts = [one_line(f"{state}: {reason}") if reason and reason != state else str(state)]
        case "error":
            parts = [one_line(f"{data.get('error')}: {data.get('message')}")]
        case "command":
            reason = data.get("reason")
            command = command_text(data.get("command"), data.get("value"))
            parts = [f"{command}: {data.get('status')}" + (f", {reason}" if reason else "")]
        case "checkpoint":
            size = data.get("bytes")
            parts = [str(data.get("path")), _format_value(data.get("values") or {})]
            parts += [size_text(size)] if isinstance(size, int) else []
        case "epoch":
            parts = [str(data.get("epoch")), _format_value(data.get("values") or {})]
        case "evaluation":
            parts = [
                str(data.get("split")),
                _format_value(data.get("values") or {}),
                str(data.get("checkpoint")),
            ]
        case "note":
            parts = [str(data.get("text"))]
        case "signal":
            parts = [str(data.get("signal"))]
        case "plateau":
            waited = f"{data.get('metric')} stalled at {_format_value(data.get('best'))}"
            whose = f" of {group}" if (group := data.get("group")) else ""
            parts = [
                f"learning rate{whose} {_format_value(data.get('rate'))}",
                f"{waited} for {data.get('patience')}",
            ]
        case "learning_rate":
            value = data.get("value")
            parts = ["follows the schedule" if value is None else _format_value(value)]
        case _:
            parts = [f"{key} {_format_value(value)}" for key, value in data.items()]
    lines = "  ".join(filter(None, parts)).splitlines()
    return clean("; ".join(line.strip() for line in lines if line.strip()))


def command_text(kind: object, value: object) -> str:
    """Format a command with its value, if any.

    >>> command_text("lr", 0.00012345678), command_text("pause", None)
    ('lr 0.000123', 'pause')
    """
    return str(kind) if value is None else f"{kind} {_format_value(value)}"


def early_stopping_text(events: Sequence[Event]) -> str:
    """Return the early-stopping status after the newest validation; empty without early stopping."""
    newest = next((event for event in reversed(events) if event.kind == "stopping"), None)
    if newest is None:
        return ""
    data = newest.data
    best = f"{clean(str(data.get('metric')))} {_format_value(data.get('best'))}"
    if data.get("patience") is None:
        return f"early stopping: best {best}"
    waited = data.get("waited")
    if isinstance(waited, float):  # seconds
        waited = duration_text(waited)
    return f"early stopping: {waited} of {data.get('patience')} without improving on {best}"


def manual_learning_rate(view: RunView) -> float | None:
    """Return the learning rate set by hand, which overrides the schedule; None if there is none."""
    attempt = view.attempts[-1].id if view.attempts else 0
    # An attempt that inherits the previous attempt's rate logs it as its first event.
    rate_events = (e for e in reversed(view.events) if e.kind == "learning_rate" and e.attempt == attempt)
    newest = next(rate_events, None)
    return None if newest is None else parse_number(newest.data.get("value"))


def end_reason_text(view: RunView) -> str:
    """Return why a run ended early, in one sentence; empty if it is live or finished normally."""
    if view.is_live or view.state == "finished":
        return ""
    attempt = view.attempts[-1].id if view.attempts else 0
    cause_event = next(
        (
            event
            for event in reversed(view.events)
            if event.attempt == attempt and event.kind in ("error", "signal")
        ),
        None,
    )
    if cause_event is None:
        return view.problem
    return _cause_text(cause_event) or view.problem


def _cause_text(event: Event) -> str:
    data = event.data
    at = "" if event.step is None else f" at step {event.step:,}"
    if event.kind == "signal":
        return f"stopped by {data.get('signal')}{at}"
    message = one_line(str(data.get("message") or ""))
    cause = {"nan": "not a number", "out of memory": "out of memory"}.get(str(data.get("cause")))
    error = f"{data.get('error')}: {message}" if message else str(data.get("error"))
    return f"{cause}{at}: {error}" if cause else f"{error}{at}"


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_format_value(entry)}" for name, entry in value.items())
    if isinstance(value, float):
        return value_text(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
