"""`burnt runs show` and `export`: one run in detail, or as CSV, JSON lines or TensorBoard event files."""

from __future__ import annotations

import argparse
import io
import math
import sys
import time
from pathlib import Path
from typing import Any

from burnt.cli.output import Cell, Page, print_json
from burnt.cli.runs_list import STATE_STYLES, run_json
from burnt.cli.runs_select import find_run, read_view, run_folder
from burnt.errors import clean, quantity
from burnt.monitor.data.event_text import event_text
from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import series_in_order
from burnt.monitor.format import (
    age_text,
    clock_text,
    progress_text,
    rank_table,
    series_label,
    size_text,
    split_tuning_keys,
)
from burnt.store import (
    Artefact,
    Attempt,
    Points,
    RunReader,
    Series,
    export_csv,
    export_jsonl,
    export_tensorboard,
)
from burnt.store.ranks import read_ranks, slowest
from burnt.store.reader import text_of
from burnt.store.search import setting_text
from burnt.train.format import duration_text, value_text

_EVENTS, _LOG_LINES = 8, 10
_SPARKLINE_CELLS = 20
_BARS = "▁▂▃▄▅▆▇█"


def run(args: argparse.Namespace) -> int:
    """Print one run; return the exit code 0."""
    view = read_view(run_folder(args.run))
    if args.json:
        print_json(_json(view))
    else:
        print_run(Page(), view)
    view.close()
    return 0


def print_run(page: Page, view: RunView) -> None:
    """Print a run that is followed, with its newest events and lines of the log."""
    newest, now = view.attempts[-1], time.time()
    progress = progress_text(view.progress, with_share=view.fraction is not None)
    page.line(Cell(str(view.folder), "bold"), "  ", Cell(view.state_text, STATE_STYLES[view.state]))
    if view.progress is not None:
        progress += f", step {view.progress.step}" + (f", {view.activity}" if view.activity else "")
    facts: dict[str, str | Cell] = {
        "name": view.name,
        "reason": view.problem or ("" if newest.end_reason == view.state else newest.end_reason or ""),
        "created": f"{_date(view.created)}, {age_text(now - view.created)} ago",
        "took": duration_text(view.active_seconds),
        "progress": progress,
        "process": f"{newest.pid} on {newest.host}",
        "tags": " ".join(view.tags),
        "fork of": view.parentage.removeprefix("fork of "),
    }
    if dropped := sum(attempt.dropped for attempt in view.attempts):
        facts["dropped"] = Cell(f"{quantity(dropped, 'sample')} lost while writing", "yellow")
    page.pairs({name: value for name, value in facts.items() if value})
    if len(view.attempts) > 1:
        page.heading("attempts")
        page.table(
            ["", "started", "took", "from step", "ended"],
            [_attempt_cells(attempt) for attempt in view.attempts],
            align_right=["took", "from step"],
        )
    if ranks := rank_table(loads := read_ranks(view.folder), slowest(loads)):
        page.heading("ranks")
        numbers = [name for name in ranks[0] if name not in ("state", "host", "")]
        styles = {**STATE_STYLES, "slowest": "bold yellow"}
        cells = [[Cell(text, styles.get(text, "")) for text in row.values()] for row in ranks]
        page.table(list(ranks[0]), cells, align_right=numbers, droppable=["host", "memory", "step"])
    if view.settings:
        page.heading("config")
        page.pairs({key: setting_text(value) for key, value in view.settings.items()})
    with view.reading() as reader:
        if series := series_in_order(view.heads):
            page.heading("metrics")
            page.table(
                ["metric", "last", "at step", "best", "at step ", "trend"],
                [_series_cells(view, reader, one) for one in series],
                align_right=["last", "at step", "best", "at step "],
            )
        tables, lines = _newest_tables(reader), reader.log_lines(newest=_LOG_LINES)
    if view.notes:
        rows = [[_date(note.time), _step_text(note.step), note.text] for note in view.notes]
        _print_entries(page, "notes", ["time", "step", "text"], rows)
    if checkpoints := view.checkpoints():
        page.heading("checkpoints")
        page.table(
            ["checkpoint", "size", "age", "values"],
            [
                [c.name, size_text(c.bytes), age_text(now - c.written), _values_text(c.values)]
                for c in checkpoints
            ],
            align_right=["size", "age"],
        )
    for table in tables:
        data, machine = split_tuning_keys(table.data)
        at = "" if table.step is None else f" at step {table.step}"
        page.heading(f"{table.name}{at}" + (f", on {machine}" if machine else ""))
        if (text := text_of(data)) is not None:
            for line in text.splitlines():
                page.line(line)
        else:
            _print_table(page, data["columns"], data["rows"])
    # Early stopping logs an event after each validation.
    if events := [event for event in view.events if event.kind != "stopping"][-_EVENTS:]:
        rows = [
            [clock_text(e.time), _step_text(e.step), e.kind.replace("_", " "), event_text(e.kind, e.data)]
            for e in events
        ]
        _print_entries(page, "last events", ["time", "step", "event", ""], rows)
    if lines:
        rows = [[clock_text(line.time), line.level, line.text] for line in lines]
        _print_entries(page, "last log lines", ["time", "level", "text"], rows)


def _print_entries(page: Page, heading: str, columns: list[str], rows: list[list[str]]) -> None:
    page.heading(heading)
    page.table(columns, rows, align_right=["step"], header=False)


def _attempt_cells(attempt: Attempt) -> list[str]:
    end: str = "not" if attempt.ended is None else attempt.end_state or ""
    if attempt.end_reason and attempt.end_reason != end:
        end += f": {attempt.end_reason}"
    took = duration_text(max((attempt.ended or attempt.heartbeat) - attempt.started, 0.0))
    return [str(attempt.id), _date(attempt.started), took, _step_text(attempt.resumed_from_step), end]


def _series_cells(view: RunView, reader: RunReader, series: Series) -> list[str | Cell]:
    last, best = view.heads[series].point, view.best(series)
    return [
        series_label(series),
        value_text(last.value),
        str(last.step),
        "" if best is None else value_text(best.value),
        "" if best is None else str(best.step),
        Cell(sparkline(reader.points(*series, max_points=8 * _SPARKLINE_CELLS)), "cyan"),
    ]


def sparkline(points: Points, cells: int = _SPARKLINE_CELLS) -> str:
    """Draw a series as a line of bars, each as high as the mean of its chunk of points.

    Returns:
        Bars scaled between the lowest and the highest mean, and ``!`` where values are NaN or infinite.

    >>> sparkline(Points([1, 2, 3, 4], [0.0] * 4, [1.0, 0.5, float("nan"), 0.0]))
    '█▅!▁'
    """
    cells = min(cells, len(points.values))
    chunks: list[list[float]] = [[] for _ in range(cells)]
    for i, value in enumerate(points.values):
        chunks[i * cells // len(points.values)].append(value)
    means = [sum(value / len(chunk) for value in chunk) for chunk in chunks]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    text = ""
    for mean in means:
        if not math.isfinite(mean):
            text += "!"
        elif high == low:
            text += _BARS[3]
        else:
            # Halved, as the difference of two huge numbers may overflow.
            text += _BARS[round((mean / 2 - low / 2) / (high / 2 - low / 2) * (len(_BARS) - 1))]
    return text


def _newest_tables(reader: RunReader) -> list[Artefact]:
    newest = {table.name: table for table in reader.artefacts("table")}
    return list(newest.values())


def _print_table(page: Page, columns: list[str], rows: list[list[Any]]) -> None:
    numeric = [
        name
        for i, name in enumerate(columns)
        if all(isinstance(row[i], int | float) or row[i] == "NaN" for row in rows)
    ]
    page.excerpt(columns, [[_rounded_text(cell) for cell in row] for row in rows], numeric)


def _json(view: RunView) -> dict[str, Any]:
    with view.reading() as reader:
        return {
            **run_json(view),
            "attempts": [attempt._asdict() for attempt in view.attempts],
            "ranks": [load._asdict() for load in read_ranks(view.folder)],
            "config": view.document,
            "notes": [note._asdict() for note in view.notes],
            "series": [_series_json(view, reader, series) for series in view.heads],
            "checkpoints": [checkpoint._asdict() for checkpoint in view.checkpoints()],
            "tables": [
                {"name": table.name, "step": table.step, **table.data} for table in _newest_tables(reader)
            ],
            "events": [event._asdict() for event in view.events[-_EVENTS:]],
            "log": [line._asdict() for line in reader.log_lines(newest=_LOG_LINES)],
        }


def _series_json(view: RunView, reader: RunReader, series: Series) -> dict[str, Any]:
    ends = {
        "last": view.heads[series].point,
        "best": view.best(series),
        "lowest": reader.best(*series),
        "highest": reader.best(*series, higher=True),
    }
    return {**series._asdict(), **{name: end and end._asdict() for name, end in ends.items()}}


def _rounded_text(value: Any) -> str:
    return value_text(value) if isinstance(value, float) else setting_text(value)


def _values_text(values: dict[str, Any]) -> str:
    return "  ".join(f"{name} {_rounded_text(value)}" for name, value in values.items())


def _step_text(step: int | None) -> str:
    return "" if step is None else str(step)


def _date(seconds: float) -> str:
    return clock_text(seconds, "%Y-%m-%d %H:%M:%S")


def export(args: argparse.Namespace) -> int:
    """Export a run."""
    folder = find_run(args.run)
    if args.format == "tensorboard":
        files = export_tensorboard(folder, Path(folder, "tensorboard") if args.out is None else args.out)
        messages = [f"wrote {file}" for file in files] or ["the run has no metrics yet: nothing was written"]
    elif args.format == "csv":  # JSON is ASCII
        file = args.out or (_Terminal() if sys.stdout.isatty() else sys.stdout)
        messages = [f"wrote {quantity(export_csv(folder, file), 'point')} to {args.out}"]
    else:
        num_lines = export_jsonl(folder, args.out or sys.stdout, follow=args.follow)
        messages = [f"wrote {quantity(num_lines, 'line')} to {args.out}"]
    if args.out is not None or args.format == "tensorboard":
        print(*map(clean, messages), sep="\n", file=sys.stderr)
    return 0


class _Terminal(io.StringIO):
    """Standard output, with what would control a terminal escaped."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(map(clean, text.split("\n"))))
