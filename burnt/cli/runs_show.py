"""`burnt runs show`: print one run in detail."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from burnt.cli.output import Cell, Page, UsageError, closest_path, print_json
from burnt.cli.runs_list import STATE_STYLES, active_seconds, best_value, progress_json
from burnt.errors import RunError, quantity
from burnt.monitor.data.series_order import series_in_order
from burnt.monitor.format import (
    age_text,
    problem_text,
    progress_text,
    series_label,
    size_text,
    split_tuning_keys,
)
from burnt.store import Artefact, Attempt, Parent, Points, RunReader, Series, find_runs
from burnt.store.reader import text_of
from burnt.store.schema import DATABASE
from burnt.store.search import flatten, settings_of
from burnt.store.tags import all_notes, read_tags
from burnt.train.format import duration_text, value_text

_EVENTS, _LOG_LINES = 8, 10
_SPARKLINE_CELLS = 20
_STAMP_PATTERN = r"-[0-9][0-9T_.:-]*Z?"  # a date, time or counter; a word would be another run's name
_BARS = "▁▂▃▄▅▆▇█"


class _Checkpoint(NamedTuple):
    name: str
    bytes: int
    written: float
    values: dict[str, Any]


def run(args: argparse.Namespace) -> int:
    """Print one run; return the exit code 0."""
    with open_run(run_folder(args.run)) as reader:
        if args.json:
            print_json(_run_json(reader))
        else:
            _print_run(reader)
    return 0


def open_run(folder: str) -> RunReader:
    """Open the reader of a run's folder; a UsageError with the closest run if there is none in it."""
    if Path(folder, DATABASE).is_file():
        return RunReader(folder)
    parent = os.path.dirname(folder.rstrip("/")) or "runs"
    is_folder = os.path.isdir(folder)
    runs = [str(run) for run in find_runs(folder if is_folder else parent)]
    guess = closest_path(folder, runs, "/")
    listed_folder = folder if is_folder and runs else parent
    hint = f"`burnt runs list {listed_folder}` lists the runs"
    if not os.path.isdir(listed_folder):
        hint = f"there is no folder {listed_folder!r}"
    raise UsageError(
        f"{folder} contains no run" if is_folder else f"there is no folder {folder!r}",
        expected=os.path.join(folder, DATABASE),
        hint=f"did you mean {guess}?" if guess else hint,
    )


def find_run(name: str) -> str:
    """Return the folder of the run that `run_folder` finds; a mistyped name raises as in `open_run`."""
    folder = run_folder(name)
    open_run(folder).close()
    return folder


def run_folder(name: str) -> str:
    """Return a run's folder: `name` itself, ``runs/name``, or the run below ``runs`` of that name, with or
    without a date.
    """
    if Path(name, DATABASE).is_file() or os.path.isabs(name):
        return name
    below = os.path.join("runs", name)
    if os.path.dirname(name):
        return below if Path(below, DATABASE).is_file() else name
    if not os.path.isdir("runs"):
        return name
    stamped = re.compile(re.escape(name) + _STAMP_PATTERN)
    all_runs = find_runs("runs")
    named = [run for run in all_runs if run.name == name] or [
        run for run in all_runs if stamped.fullmatch(run.name)
    ]
    active = [run for run in named if _is_active(run)]
    if len(active) > 1:
        raise UsageError(
            f"{len(active)} trainings named {name!r} are running",
            expected="the folder of one of them",
            found=", ".join(sorted(map(os.fspath, active))),
        )
    found = next(iter(active or named), None)
    if found is None and Path(below, DATABASE).is_file():
        return below  # a link, which `find_runs` does not follow
    return name if found is None else os.fspath(found)


def _is_active(folder: Path) -> bool:
    try:
        with RunReader(folder) as reader:
            return reader.state() in ("running", "stale")
    except RunError:  # damaged, just deleted or not started: it accepts no commands
        return False


def _print_run(reader: RunReader) -> None:
    page = Page()
    summary, attempts, now = reader.summary(), reader.attempts(), time.time()
    page.line(Cell(str(reader.folder), "bold"), "  ", Cell(summary.state, STATE_STYLES[summary.state]))
    progress = progress_text(summary.progress)
    if summary.progress is not None:
        progress += f", step {summary.progress.step}"
        if summary.state in ("running", "stale"):
            progress += f", {summary.progress.activity}"
    facts: dict[str, str | Cell] = {
        "name": summary.name,
        "reason": problem_text(summary.state, summary.reason, summary)
        or ("" if summary.reason == summary.state else summary.reason or ""),
        "created": f"{_date(summary.created)}, {age_text(now - summary.created)} ago",
        "took": duration_text(active_seconds(reader)),
        "progress": progress,
        "process": f"{summary.pid} on {summary.host}",
        "tags": " ".join(read_tags(reader.folder)),
        "fork of": "" if (parent := reader.parent()) is None else _parent_text(parent),
    }
    if summary.dropped:
        facts["dropped"] = Cell(f"{quantity(summary.dropped, 'sample')} lost while writing", "yellow")
    page.pairs({name: value for name, value in facts.items() if value})
    if len(attempts) > 1:
        page.heading("attempts")
        page.table(
            ["", "started", "took", "from step", "ended"],
            [_attempt_cells(attempt) for attempt in attempts],
            align_right=["took", "from step"],
        )
    config = reader.config()
    if settings := settings_of(config):
        page.heading("config")
        page.pairs({key: _exact_text(value) for key, value in settings.items()})
    if series := series_in_order(reader.series()):
        page.heading("metrics")
        page.table(
            ["metric", "last", "at step", "best", "at step ", "trend"],
            [_series_cells(reader, one, config) for one in series],
            align_right=["last", "at step", "best", "at step "],
        )
    if notes := all_notes(reader):
        page.heading("notes")
        page.table(
            ["time", "step", "text"],
            [[_date(n.time), "" if n.step is None else str(n.step), n.text] for n in notes],
            align_right=["step"],
            header=False,
        )
    if checkpoints := _checkpoints(reader):
        page.heading("checkpoints")
        page.table(
            ["checkpoint", "size", "age", "values"],
            [
                [c.name, size_text(c.bytes), age_text(now - c.written), _data_text(c.values)]
                for c in checkpoints
            ],
            align_right=["size", "age"],
        )
    for table in _newest_tables(reader):
        at = "" if table.step is None else f" at step {table.step}"
        data, machine = split_tuning_keys(table.data)
        page.heading(f"{table.name}{at}" + (f", on {machine}" if machine else ""))
        if (text := text_of(data)) is not None:
            for line in text.splitlines():
                page.line(line)
        else:
            _print_table(page, data["columns"], data["rows"])
    if events := reader.events()[-_EVENTS:]:
        page.heading("last events")
        page.table(
            ["time", "step", "event", ""],
            [
                [_clock(e.time), "" if e.step is None else str(e.step), e.kind, _data_text(e.data)]
                for e in events
            ],
            align_right=["step"],
            header=False,
        )
    if lines := reader.log_lines(newest=_LOG_LINES):
        page.heading("last log lines")
        page.table(
            ["time", "level", "text"],
            [[_clock(line.time), line.level, line.text] for line in lines],
            header=False,
        )


def _parent_text(parent: Parent) -> str:
    is_there = Path(parent.folder, DATABASE).is_file()
    return f"{parent.folder} at step {parent.step}" + ("" if is_there else ", which is missing")


def _attempt_cells(attempt: Attempt) -> list[str | Cell]:
    end: str = "not" if attempt.ended is None else attempt.end_state or ""
    if attempt.end_reason and attempt.end_reason != end:
        end += f": {attempt.end_reason}"
    return [
        str(attempt.id),
        _date(attempt.started),
        duration_text(max((attempt.ended or attempt.heartbeat) - attempt.started, 0.0)),
        "" if attempt.resumed_from_step is None else str(attempt.resumed_from_step),
        end,
    ]


def _series_cells(reader: RunReader, series: Series, config: Any) -> list[str | Cell]:
    last, best = reader.last(*series), best_value(reader, series, config)
    return [
        series_label(series),
        "" if last is None else value_text(last.value),
        "" if last is None else str(last.step),
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
    page.table(
        columns, [[_rounded_text(cell) for cell in row] for row in rows], align_right=numeric, show_all=False
    )


def _checkpoints(reader: RunReader) -> list[_Checkpoint]:
    values = {event.data.get("path"): event.data.get("values") for event in reader.events("checkpoint")}
    checkpoints = []
    for folder in sorted((reader.folder / "checkpoints").glob("step-*")):
        try:
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            written = folder.stat().st_mtime
        except FileNotFoundError:  # the training has removed it in the meantime
            continue
        checkpoints.append(_Checkpoint(folder.name, size, written, values.get(folder.name) or {}))
    return checkpoints


def _run_json(reader: RunReader) -> dict[str, Any]:
    summary, config = reader.summary(), reader.config()
    return {
        "folder": reader.folder,
        "name": summary.name,
        "state": summary.state,
        "reason": summary.reason,
        "created": summary.created,
        "seconds": active_seconds(reader),
        "dropped": summary.dropped,
        "progress": progress_json(summary.progress),
        "attempts": [attempt._asdict() for attempt in reader.attempts()],
        "config": config,
        "tags": read_tags(reader.folder),
        "notes": [note._asdict() for note in all_notes(reader)],
        "parent": (parent := reader.parent()) and parent._asdict(),
        "series": [_series_json(reader, series, config) for series in reader.series()],
        "checkpoints": [checkpoint._asdict() for checkpoint in _checkpoints(reader)],
        "tables": [
            {"name": table.name, "step": table.step, **table.data} for table in _newest_tables(reader)
        ],
        "events": [event._asdict() for event in reader.events()[-_EVENTS:]],
        "log": [line._asdict() for line in reader.log_lines(newest=_LOG_LINES)],
    }


def _series_json(reader: RunReader, series: Series, config: Any) -> dict[str, Any]:
    ends = {
        "last": reader.last(*series),
        "best": best_value(reader, series, config),
        "lowest": reader.best(*series),
        "highest": reader.best(*series, higher=True),
    }
    return {**series._asdict(), **{name: end and end._asdict() for name, end in ends.items()}}


def _exact_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rounded_text(value: Any) -> str:
    return value_text(value) if isinstance(value, float) else _exact_text(value)


def _data_text(data: dict[str, Any]) -> str:
    # The metric values of a checkpoint event need no prefix.
    flat = {key.removeprefix("values."): _rounded_text(value) for key, value in flatten(data).items()}
    flat.pop("traceback", None)  # several lines long; --json includes it
    return "  ".join(f"{key} {text}" for key, text in flat.items())


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}"
