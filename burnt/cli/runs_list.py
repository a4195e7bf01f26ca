"""`burnt runs list` and `search`: the runs in a folder, or those that a query matches, one per line."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, print_json, require_folder, usage_errors
from burnt.errors import QueryError, clean
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.format import age_text, fraction, progress_text, series_label
from burnt.store import find_runs
from burnt.store.ranking import better_direction
from burnt.store.search import parse_query, setting_text, values_of
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
    for view in views:
        view.refresh()
        view.close()
    if args.sort is not None:
        views = _sorted(views, args.sort)
    if args.json:
        print_json([run_json(view) for view in views])
    else:
        print_runs(Page(), views, args.folder)
    return 0


def _sorted(views: Sequence[RunView], key: str) -> list[RunView]:
    """Return runs by a key of a search, or by their metric, the better values first; others come last."""
    facts = {view: view.facts() for view in views}
    with usage_errors(QueryError):
        unknown = parse_query("" if key == "metric" else f"{key}>0").unknown_key(facts.values())
    if unknown is not None:
        hint = f"did you mean {unknown[1]}?" if unknown[1] else "metric sorts by the best value of each run"
        raise UsageError(f"no run has a setting or metric {key!r}", where="--sort", hint=hint)

    def place(view: RunView) -> tuple[bool, bool, Any]:
        best = view.metric_best
        values = values_of(facts[view], key) if key != "metric" else [] if best is None else [best.value]
        name = key.removeprefix("best:") if key != "metric" else view.metric and view.metric.name
        value = values[0] if values else None
        if not isinstance(value, int | float) or value != value:
            return True, value is None, "" if value is None else setting_text(value)
        is_higher = name is not None and better_direction(name, view.config) == "higher"
        return False, False, -value if is_higher else value

    return sorted(views, key=place)


def print_runs(page: Page, views: Sequence[RunView], folder: str) -> None:
    """Print a table of runs, one per line; a run that cannot be read is a line too."""
    if not views:
        page.line(f"no runs in {folder}")
        page.line("Start one with `burnt train module:function`, or list others: burnt runs list FOLDER")
        return
    columns = ["run", "state", "progress", "eta", "metric", "last", "best", "age", "took", "tags", "note"]
    cells = [_row_cells(view) for view in views]
    if page.is_styled or not any(view.problem for view in views):
        # In a terminal, the reasons are printed below the table, where there is more room.
        _drop_column("note", columns, cells)
    if not any(view.tags for view in views):
        _drop_column("tags", columns, cells)
    if all(view.eta is None for view in views):
        _drop_column("eta", columns, cells)
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
        align_right=["eta", last, "best", "age", "took"],
        fold_column="run",
        droppable=["took", "age", "eta", "tags", "best", "progress", "metric"],
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
    activity = f" ({view.activity})" if view.activity not in ("", "training", "paused") else ""
    state = Cell(view.state_text + activity, STATE_STYLES.get(view.state, ""))
    if view.error is not None:
        return [str(view.folder), state, *[""] * 8, view.problem]
    name = str(view.folder)
    if view.name not in (view.folder.name, view.folder.resolve().name):
        name += f" ({view.name})"
    if view.parentage:
        name += f"  {view.parentage}"
    return [
        name,
        state,
        progress_text(view.progress, with_share=view.fraction is not None),
        "" if view.eta is None else duration_text(view.eta),
        "" if view.metric is None else series_label(view.metric),
        "" if view.metric is None else value_text(view.heads[view.metric].point.value),
        "" if view.metric_best is None else value_text(view.metric_best.value),
        age_text(time.time() - view.created),
        duration_text(view.active_seconds),
        " ".join(view.tags),
        view.problem,
    ]


def run_json(view: RunView) -> dict[str, Any]:
    """Return a run as JSON data: its state, its newest process and its main metric."""
    if view.error is not None:
        return {"folder": view.folder, "state": view.state, "error": str(view.error)}
    newest, progress, metric = view.attempts[-1], view.progress, view.metric
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
        "progress": progress and {**progress._asdict(), "fraction": fraction(progress), "eta": view.eta},
        "metric": metric and metric._asdict(),
        "best": view.metric_best and view.metric_best._asdict(),
        "last": metric and view.heads[metric].point._asdict(),
        "tags": view.tags,
        "parent": view.parent and view.parent._asdict(),
    }


def search(args: argparse.Namespace) -> int:
    """Print the runs in a folder that match a query, the most recently written first.

    Returns:
        0 if a run matches, otherwise 1, as grep does.
    """
    require_folder(args.folder, "burnt runs search QUERY --in FOLDER searches another folder")
    with usage_errors(QueryError):
        query = parse_query(" ".join(args.query))
    library = RunLibrary([args.folder])
    library.refresh(rescan=True)
    all_facts = [(view, view.facts()) for view in library.views]
    matching = {view.folder: view for view, facts in all_facts if query.matches(facts)}
    library.close()
    # find_runs sorts by the time of the last write; the library sorts by age.
    folders = [found for found in find_runs(args.folder) if found in matching]
    views = [matching[folder] for folder in folders]
    if args.json:
        print_json([run_json(view) for view in views])
    elif views and not args.paths:
        print_runs(Page(), views, args.folder)
    elif args.paths:
        # Other programs take the names as they are.
        names = [clean(str(path)) if sys.stdout.isatty() else str(path) for path in folders]
        print("".join(f"{name}\n" for name in names), end="")
    else:
        Page().line(f"none of the {len(all_facts)} runs in {args.folder} matches")
    unknown = query.unknown_key(facts for _, facts in all_facts)
    if unknown is not None:
        key, guess = unknown
        hint = f": did you mean {guess}?" if guess else ""
        print(clean(f"no run has a setting or metric {key}{hint}"), file=sys.stderr)
    return 0 if folders else 1
