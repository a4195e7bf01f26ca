"""`burnt runs list`: list the runs in a folder, one per line."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnt.cli.output import Cell, Page, print_json, require_folder
from burnt.errors import RunError
from burnt.monitor.format import (
    age_text,
    better_direction,
    fork_text,
    fraction,
    main_metric,
    problem_text,
    progress_text,
    series_label,
)
from burnt.store import Extreme, Parent, Point, Progress, RunReader, RunSummary, Series, find_runs
from burnt.store.reader import training_seconds
from burnt.store.tags import read_tags
from burnt.train.format import duration_text, value_text

STATE_STYLES = {
    "running": "bold green",
    "finished": "green",
    "stopped": "yellow",
    "stale": "bold yellow",
    "crashed": "bold red",
    "unreadable": "bold magenta",
}


class _Row(NamedTuple):
    folder: Path
    summary: RunSummary | None
    error: RunError | None
    metric: Series | None
    best: Extreme | None
    seconds: float
    tags: Sequence[str] = ()
    parent: Parent | None = None

    @property
    def last(self) -> Point | None:
        return None if self.summary is None or self.metric is None else self.summary.last.get(self.metric)


def run(args: argparse.Namespace) -> int:
    """Print the runs at and below a folder, the most recently written first; return the exit code 0."""
    require_folder(args.folder, "burnt runs list FOLDER lists another folder; `burnt train` creates runs")
    folders = find_runs(args.folder)
    if folders or args.json:
        print_runs(folders, args.json)
    else:
        page = Page()
        page.line(f"no runs in {args.folder}")
        page.line("Start one with `burnt train module:function`, or list others: burnt runs list FOLDER")
    return 0


def print_runs(folders: Iterable[Path], as_json: bool) -> None:
    """Print a table of runs, one per line, or JSON."""
    rows = [_read_run(folder) for folder in folders]
    if as_json:
        print_json([_row_json(row) for row in rows])
    else:
        _print(rows)


def _read_run(folder: Path) -> _Row:
    try:
        with RunReader(folder) as reader:
            summary = reader.summary()
            config = reader.config()
            metric = main_metric(list(summary.last), config)
            best = None if metric is None else best_value(reader, metric, config)
            seconds, tags = active_seconds(reader), read_tags(folder)
            return _Row(folder, summary, None, metric, best, seconds, tags, reader.parent())
    except RunError as error:  # the other runs must still be listed
        return _Row(folder, None, error, None, None, math.nan)


def _print(rows: list[_Row]) -> None:
    page = Page()
    columns = ["run", "state", "progress", "metric", "last", "best", "age", "took", "tags", "note"]
    cells = [_row_cells(row) for row in rows]
    if page.is_styled or not any(_problem(row) for row in rows):
        # In a terminal, the reasons are printed below the table, where there is more room.
        _drop_column("note", columns, cells)
    if not any(row.tags for row in rows):
        _drop_column("tags", columns, cells)
    last = "last"
    metrics = {row.metric for row in rows if row.metric is not None}
    if page.is_styled and len(metrics) == 1:
        # Name the common metric in the heading only, to leave room for the runs' names.
        _drop_column("metric", columns, cells)
        last = series_label(*metrics)
        columns[columns.index("last")] = last
    page.table(
        columns,
        cells,
        align_right=[last, "best", "age", "took"],
        fold_column="run",
        droppable=["took", "age", "tags", "best", "progress", "metric"],
    )
    for row in rows if page.is_styled else ():
        if note := _problem(row):
            page.line(Cell(f"{row.folder}: ", "bold"), note)


def _drop_column(name: str, columns: list[str], rows: Sequence[list[str | Cell]]) -> None:
    i = columns.index(name)
    del columns[i]
    for row in rows:
        del row[i]


def _row_cells(row: _Row) -> list[str | Cell]:
    summary = row.summary
    if summary is None:
        return [str(row.folder), Cell("unreadable", STATE_STYLES["unreadable"]), *[""] * 7, _problem(row)]
    name = str(row.folder)
    if summary.name not in (row.folder.name, row.folder.resolve().name):
        name += f" ({summary.name})"
    if row.parent is not None:
        name += f"  {fork_text(row.parent)}"
    return [
        name,
        Cell(summary.state, STATE_STYLES[summary.state]),
        progress_text(summary.progress),
        "" if row.metric is None else series_label(row.metric),
        "" if row.last is None else value_text(row.last.value),
        "" if row.best is None else value_text(row.best.value),
        age_text(time.time() - summary.created),
        duration_text(row.seconds),
        " ".join(row.tags),
        _problem(row),
    ]


def _problem(row: _Row) -> str:
    if row.error is not None:
        return f"{row.error.what}: {row.error.found}" if row.error.found else row.error.what
    return "" if row.summary is None else problem_text(row.summary.state, row.summary.reason, row.summary)


def _row_json(row: _Row) -> dict[str, Any]:
    summary = row.summary
    if summary is None:
        assert row.error is not None
        return {"folder": row.folder, "state": "unreadable", "error": str(row.error)}
    return {
        "folder": row.folder,
        "name": summary.name,
        "state": summary.state,
        "reason": summary.reason,
        "created": summary.created,
        "seconds": row.seconds,
        "attempts": summary.attempts,
        "progress": progress_json(summary.progress),
        "metric": row.metric and row.metric._asdict(),
        "best": row.best and row.best._asdict(),
        "last": row.last and row.last._asdict(),
        "tags": row.tags,
        "parent": row.parent and row.parent._asdict(),
    }


def best_value(reader: RunReader, series: Series, config: Any) -> Extreme | None:
    """Return the best value of a series; None if the run's config does not say which direction is better."""
    direction = better_direction(series.name, config)
    return None if direction is None else reader.best(*series, higher=direction == "higher")


def active_seconds(reader: RunReader) -> float:
    """Return the training time of a run in seconds, over all its attempts."""
    return training_seconds(reader.attempts(), reader.progress())


def progress_json(progress: Progress | None) -> dict[str, Any] | None:
    """Return a run's progress as JSON data, with the fraction that is done."""
    return progress and {**progress._asdict(), "fraction": fraction(progress)}
