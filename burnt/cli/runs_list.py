"""`burnt runs list`: list the runs in a folder, one per line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any

from burnt.cli.output import Cell, Page, print_json, require_folder
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import (
    age_text,
    better_direction,
    fraction,
    progress_text,
    series_label,
)
from burnt.store import Extreme, Point, Progress, RunReader, Series, find_runs
from burnt.store.reader import training_seconds
from burnt.train.format import duration_text, value_text

STATE_STYLES = {
    "running": "bold green",
    "finished": "green",
    "stopped": "yellow",
    "stale": "bold yellow",
    "crashed": "bold red",
    "unreadable": "bold magenta",
}


def run(args: argparse.Namespace) -> int:
    """Print the runs at and below a folder, the most recently written first; return the exit code 0."""
    require_folder(args.folder, "burnt runs list FOLDER lists another folder; `burnt train` creates runs")
    views = [RunView(folder) for folder in find_runs(args.folder)]
    if views or args.json:
        print_runs(views, args.json)
    else:
        page = Page()
        page.line(f"no runs in {args.folder}")
        page.line("Start one with `burnt train module:function`, or list others: burnt runs list FOLDER")
    return 0


def print_runs(views: Iterable[RunView], as_json: bool) -> None:
    """Print a table of runs, one per line, or JSON; a run that cannot be read is a line too."""
    views = list(views)
    for view in views:
        view.refresh()
        view.close()
    if as_json:
        print_json([_run_json(view) for view in views])
    else:
        _print(views)


def _print(views: list[RunView]) -> None:
    page = Page()
    columns = ["run", "state", "progress", "metric", "last", "best", "age", "took", "tags", "note"]
    cells = [_row_cells(view) for view in views]
    if page.is_styled or not any(view.problem for view in views):
        # In a terminal, the reasons are printed below the table, where there is more room.
        _drop_column("note", columns, cells)
    if not any(view.tags for view in views):
        _drop_column("tags", columns, cells)
    last = "last"
    metrics = {view.metric for view in views if view.metric is not None}
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
    for view in views if page.is_styled else ():
        if view.problem:
            page.line(Cell(f"{view.folder}: ", "bold"), view.problem)


def _drop_column(name: str, columns: list[str], rows: Sequence[list[str | Cell]]) -> None:
    i = columns.index(name)
    del columns[i]
    for row in rows:
        del row[i]


def _row_cells(view: RunView) -> list[str | Cell]:
    state = Cell(view.state, STATE_STYLES.get(view.state, ""))
    if view.error is not None:
        return [str(view.folder), state, *[""] * 7, view.problem]
    name = str(view.folder)
    if view.name not in (view.folder.name, view.folder.resolve().name):
        name += f" ({view.name})"
    if view.parentage:
        name += f"  {view.parentage}"
    last = _last(view)
    return [
        name,
        state,
        progress_text(view.progress),
        "" if view.metric is None else series_label(view.metric),
        "" if last is None else value_text(last.value),
        "" if view.metric_best is None else value_text(view.metric_best.value),
        age_text(time.time() - view.created),
        duration_text(view.active_seconds),
        " ".join(view.tags),
        view.problem,
    ]


def _last(view: RunView) -> Point | None:
    return None if view.metric is None else view.heads[view.metric].point


def _run_json(view: RunView) -> dict[str, Any]:
    if view.error is not None:
        return {"folder": view.folder, "state": view.state, "error": str(view.error)}
    last = _last(view)
    return {
        "folder": view.folder,
        "name": view.name,
        "state": view.state,
        "reason": view.attempts[-1].end_reason,
        "created": view.created,
        "seconds": view.active_seconds,
        "attempts": len(view.attempts),
        "progress": progress_json(view.progress),
        "metric": view.metric and view.metric._asdict(),
        "best": view.metric_best and view.metric_best._asdict(),
        "last": last and last._asdict(),
        "tags": view.tags,
        "parent": view.parent and view.parent._asdict(),
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
