"""A snapshot of runs, as lines of plain text or as data for JSON. Without Textual."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from burnt.monitor.model import Library, RunView
from burnt.monitor.words import age_text, clean, duration_text, label, progress_text, size_text, value_text

__all__ = ["event_text", "lines", "state"]

_COLUMNS = ("run", "state", "progress", "eta", "metric", "last", "best", "at step", "age", "took", "note")
_EVENTS, _LOG_LINES = 5, 5


def lines(folders: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The runs below folders, a line each; of a single one its numbers, last events and log lines too.

    >>> import tempfile
    >>> lines([tempfile.mkdtemp(prefix="runs-")])  # doctest: +ELLIPSIS
    ['no runs in ...runs-...']
    """
    views = _read(folders)
    if not views:
        return [f"no runs in {', '.join(map(str, folders))}"]
    table = _aligned([_COLUMNS, *map(_row, views)], right=("eta", "last", "best", "at step", "age", "took"))
    if len(views) == 1 and views[0].error is None:
        table += _details(views[0])
    return table


def state(folders: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """The runs below folders as data: what `lines` shows, and the last value of every metric."""
    return [_document(view) for view in _read(folders)]


def _read(folders: Sequence[str | os.PathLike[str]]) -> list[RunView]:
    library = Library(folders)
    library.refresh(look=True)
    if len(library.views) == 1:
        library.views[0].follow()
        library.refresh()
    library.close()
    return sorted(library.views, key=lambda view: (math.isnan(view.created), -view.created))


def _row(view: RunView) -> tuple[str, ...]:
    metric, best, eta = view.metric, view.metric_best, view.eta
    doing = f" ({view.activity})" if view.activity not in ("", "training") else ""
    return (
        clean(view.label),
        view.state + doing,
        progress_text(view.progress),
        "" if eta is None else duration_text(eta),
        "" if metric is None else label(metric),
        "" if metric is None else value_text(view.heads[metric].point.value),
        "" if best is None else value_text(best.value),
        "" if best is None else str(best.step),
        "" if math.isnan(view.created) else age_text(time.time() - view.created),
        duration_text(view.seconds) if view.attempts else "",
        clean(view.note),
    )


def _details(view: RunView) -> list[str]:
    rows = [("metric", "last", "at step", "best", "at step")]
    for series, head in view.heads.items():
        best = view.best(series)
        ends = ("", "") if best is None else (value_text(best.value), str(best.step))
        rows.append((clean(label(series)), value_text(head.point.value), str(head.point.step), *ends))
    found = ["", *_aligned(rows, right=("last", "best", "at step"))]
    # Early stopping tells its patience after each validation.
    if events := [event for event in view.events if event.kind != "stopping"]:
        found += ["", "last events"]
        found += _aligned(
            [
                (
                    _clock(event.time),
                    "" if event.step is None else str(event.step),
                    event.kind.replace("_", " "),
                    event_text(event.kind, event.data),
                )
                for event in events[-_EVENTS:]
            ]
        )
    if logged := view.log_lines()[-_LOG_LINES:]:
        found += ["", "last log lines"]
        found += _aligned([(_clock(line.time), line.level, clean(line.text)) for line in logged])
    view.close()
    return found


def _document(view: RunView) -> dict[str, Any]:
    if view.error is not None:
        return {"folder": view.folder, "state": view.state, "error": str(view.error)}
    newest = view.attempts[-1]
    return {
        "folder": view.folder,
        "name": view.name,
        "state": view.state,
        "activity": view.activity or None,
        "reason": newest.end_reason,
        "created": view.created,
        "seconds": view.seconds,
        "attempts": len(view.attempts),
        "host": newest.host,
        "pid": newest.pid,
        "heartbeat": newest.heartbeat,
        "dropped": sum(attempt.dropped for attempt in view.attempts),
        "progress": view.progress and {**view.progress._asdict(), "fraction": view.fraction, "eta": view.eta},
        "metric": view.metric and view.metric._asdict(),
        "best": view.metric_best and view.metric_best._asdict(),
        "last": [{**series._asdict(), **head.point._asdict()} for series, head in view.heads.items()],
    }


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Columns two spaces apart; an empty cell is ``-``, so that programs can count them."""
    cells = [[text or "-" for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    found = []
    for row in cells:
        parts = [
            text.rjust(width) if name in right else text.ljust(width)
            for name, text, width in zip(rows[0], row, widths, strict=True)
        ]
        found.append("  ".join(parts).rstrip())
    return found


def event_text(kind: str, data: Mapping[str, Any]) -> str:
    """What an event says beside its kind, on one line, with rounded values.

    >>> event_text("epoch", {"epoch": 3, "values": {"loss": 0.29855883041083864}})
    '3  loss 0.2986'
    >>> event_text("checkpoint", {"path": "step-00000008", "values": {}, "bytes": 1231200})
    'step-00000008  1.2 MiB'
    """
    match kind:
        case "start" | "resume":
            parts = [f"pid {data.get('pid')} on {data.get('host')}"]
        case "end":
            state, reason = data.get("state"), data.get("reason")
            parts = [f"{state}: {reason}" if reason and reason != state else str(state)]
        case "error":
            parts = [f"{data.get('error')}: {data.get('message')}"]
        case "command":
            value, reason = data.get("value"), data.get("reason")
            asked = f"{data.get('command')}" + ("" if value is None else f" {_value(value)}")
            parts = [f"{asked}: {data.get('status')}" + (f", {reason}" if reason else "")]
        case "checkpoint":
            size = data.get("bytes")
            parts = [str(data.get("path")), _value(data.get("values") or {})]
            parts += [size_text(size)] if isinstance(size, int) else []
        case "epoch":
            parts = [str(data.get("epoch")), _value(data.get("values") or {})]
        case "note":
            parts = [str(data.get("text"))]
        case "learning_rate":
            value = data.get("value")
            parts = ["as the schedule says" if value is None else _value(value)]
        case _:
            parts = [f"{key} {_value(value)}" for key, value in data.items()]
    return clean(
        "; ".join(line.strip() for line in "  ".join(filter(None, parts)).splitlines() if line.strip())
    )


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_value(entry)}" for name, entry in value.items())
    if isinstance(value, float):
        return value_text(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}"
