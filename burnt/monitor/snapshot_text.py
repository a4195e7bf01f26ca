"""A snapshot of runs as plain text or as JSON data, without Textual."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

from burnt.errors import BurntError, clean
from burnt.monitor.data.event_text import event_text
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.data.series_order import series_in_order
from burnt.monitor.format import age_text, clock_text, progress_text, series_label
from burnt.train.format import duration_text, value_text

_COLUMNS = (
    *("run", "state", "progress", "eta", "metric", "last", "best", "at step", "age", "took", "tags"),
    "note",
)
_EVENTS, _LOG_LINES = 5, 5


def snapshot_lines(folders: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return one line per run; for a single run also its metrics, last events and last log lines.

    >>> import tempfile
    >>> snapshot_lines([tempfile.mkdtemp(prefix="runs-")])  # doctest: +ELLIPSIS
    ['no runs in ...runs-...']
    """
    views = _read_views(folders)
    if not views:
        return [clean(f"no runs in {', '.join(map(str, folders))}")]
    table = _align_columns(
        [_COLUMNS, *map(_row, views)], right=("eta", "last", "best", "at step", "age", "took")
    )
    if len(views) == 1 and views[0].error is None:
        try:
            table += _detail_lines(views[0])
        except BurntError as error:
            table += ["", clean(f"{error.what}: {error.found}" if error.found else error.what)]
    return table


def snapshot_data(folders: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Return JSON data of the runs: what `snapshot_lines` shows, and the last value of every metric."""
    return [_view_data(view) for view in _read_views(folders)]


def _read_views(folders: Sequence[str | os.PathLike[str]]) -> list[RunView]:
    library = RunLibrary(folders)
    library.refresh(rescan=True)
    if len(library.views) == 1:
        library.views[0].follow()
        library.refresh()
    library.close()
    return sorted(library.views, key=lambda view: (math.isnan(view.created), -view.created))


def _row(view: RunView) -> tuple[str, ...]:
    metric, best, eta = view.metric, view.metric_best, view.eta
    activity = f" ({view.activity})" if view.activity not in ("", "training") else ""
    return (
        view.label + (f"  {view.parentage}" if view.parentage else ""),
        view.state + activity,
        progress_text(view.progress),
        "" if eta is None else duration_text(eta),
        "" if metric is None else series_label(metric),
        "" if metric is None else value_text(view.heads[metric].point.value),
        "" if best is None else value_text(best.value),
        "" if best is None else str(best.step),
        "" if math.isnan(view.created) else age_text(time.time() - view.created),
        duration_text(view.active_seconds) if view.attempts else "",
        " ".join(view.tags),
        view.problem,
    )


def _detail_lines(view: RunView) -> list[str]:
    rows = [("metric", "last", "at step", "best", "at step")]
    for series in series_in_order(view.heads):
        head, best = view.heads[series], view.best(series)
        ends = ("", "") if best is None else (value_text(best.value), str(best.step))
        rows.append((series_label(series), value_text(head.point.value), str(head.point.step), *ends))
    lines = ["", *_align_columns(rows, right=("last", "best", "at step"))]
    # Early stopping logs an event after each validation; leave those out.
    if events := [event for event in view.events if event.kind != "stopping"]:
        lines += ["", "last events"]
        lines += _align_columns(
            [
                (
                    clock_text(event.time),
                    "" if event.step is None else str(event.step),
                    event.kind.replace("_", " "),
                    event_text(event.kind, event.data),
                )
                for event in events[-_EVENTS:]
            ]
        )
    if log_lines := view.log_lines()[-_LOG_LINES:]:
        lines += ["", "last log lines"]
        lines += _align_columns([(clock_text(line.time), line.level, line.text) for line in log_lines])
    view.close()
    return lines


def _view_data(view: RunView) -> dict[str, Any]:
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
        "seconds": view.active_seconds,
        "attempts": len(view.attempts),
        "host": newest.host,
        "pid": newest.pid,
        "heartbeat": newest.heartbeat,
        "dropped": sum(attempt.dropped for attempt in view.attempts),
        "tags": view.tags,
        "parent": view.parent and view.parent._asdict(),
        "progress": view.progress and {**view.progress._asdict(), "fraction": view.fraction, "eta": view.eta},
        "metric": view.metric and view.metric._asdict(),
        "best": view.metric_best and view.metric_best._asdict(),
        "last": [{**series._asdict(), **head.point._asdict()} for series, head in view.heads.items()],
    }


def _align_columns(rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Align columns two spaces apart; an empty cell is ``-``, so that programs can split the columns."""
    from rich.cells import cell_len

    cells = [[clean(text) or "-" for text in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        parts = []
        for name, text, width in zip(rows[0], row, widths, strict=True):
            pad = " " * (width - cell_len(text))
            parts.append(pad + text if name in right else text + pad)
        lines.append("  ".join(parts).rstrip())
    return lines
