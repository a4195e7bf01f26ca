"""`burnt runs compare`: runs side by side, with the settings and metrics in which they differ."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
from collections.abc import Sequence
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, closest_path, print_json
from burnt.cli.runs_list import STATE_STYLES, run_json
from burnt.cli.runs_select import read_view, select_runs
from burnt.errors import quantity
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import series_label, truncate
from burnt.monitor.plotting.run_curves import (
    all_metrics,
    best_indices,
    best_of,
    common_direction,
    compared_curves,
    differences,
)
from burnt.monitor.plotting.text_chart import ChartView, TextChart
from burnt.store import Series
from burnt.store.search import short_names, without_repeats
from burnt.train.format import duration_text, value_text

_PLOT_LINES = 14
_MIN_COLUMNS, _PIPE_COLUMNS = 60, 100
_NAME_WIDTH, _VALUE_WIDTH = 26, 11  # cells that a metric's name and a value take in a terminal
_MIN_SETTING_WIDTH = 12  # of a shortened value in a terminal
_BEST, _NOT_BEST = "*", " "  # after the best of a row's values, and after the others


def run(args: argparse.Namespace) -> int:
    """Print a comparison of two or more runs; return the exit code 0."""
    folders = select_runs(args.runs)
    if len(folders) < 2:
        raise UsageError(
            "a comparison needs two runs or more",
            found=", ".join(folders),
            hint="burnt runs compare runs/a runs/b, or 'runs/digits-*'",
        )
    views = [read_view(folder, number) for number, folder in enumerate(folders)]
    series = all_metrics(views)
    drawn = _select_metrics(series, args.metric)
    if args.json:
        print_json(_data(views, series, drawn))
    else:
        _print(views, series, drawn)
    for view in views:
        view.close()
    return 0


def _select_metrics(series: Sequence[Series], patterns: Sequence[str]) -> list[Series]:
    labels = [series_label(one) for one in series]
    drawn: dict[Series, None] = {}  # in order, each once
    for pattern in patterns:
        found = [
            one for one, label in zip(series, labels, strict=True) if fnmatch.fnmatchcase(label, pattern)
        ]
        if not found:
            guess = closest_path(pattern, labels[::-1], "/")  # of several ends, that of a validation
            raise UsageError(
                f"no run has the metric {pattern!r}",
                expected=", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "") or "no metric",
                hint=f"did you mean {guess}?" if guess else None,
            )
        drawn |= dict.fromkeys(found)
    return list(drawn)


def _print(views: Sequence[RunView], series: Sequence[Series], drawn: Sequence[Series]) -> None:
    page = Page()
    width = max(_terminal_width(), _MIN_COLUMNS) if page.is_styled else None
    _print_runs(page, views)
    page.heading("settings that differ")
    differing = without_repeats(differences([view.config for view in views]))
    names = short_names(differing)
    rows: list[list[str | Cell]] = [
        [names[key], *(_shorten(value or "", width, len(views)) for value in values)]
        for key, values in differing.items()
    ]
    if rows:
        _print_columns(page, ["setting"], rows, width, right=False)
    else:
        page.line("none" if any(view.config for view in views) else "no run has recorded its settings")
    rows, num_hidden, is_drawn = [], 0, set(drawn)
    for one in series:
        direction = common_direction(views, one)
        if direction is None and one not in is_drawn:
            num_hidden += 1
        else:
            new_rows = _metric_rows(views, one, direction)
            if page.is_styled:  # in a pipe, each line has its name, for grep
                new_rows[1:] = [[" ", *row[1:]] for row in new_rows[1:]]
            rows += new_rows
    if rows:
        page.heading("metrics")
        _print_columns(page, ["metric", ""], rows, width, right=True)
    if num_hidden:
        page.line(
            Cell(f"... {quantity(num_hidden, 'more metric')} without a known better direction: ", "dim"),
            Cell("--metric PATTERN or --json", "dim"),
        )
    for one in drawn:
        page.line("")
        _draw(page, views, one)


def _print_columns(
    page: Page, names: Sequence[str], rows: Sequence[Sequence[str | Cell]], width: int | None, *, right: bool
) -> None:
    """Print a table with a column per run; in a terminal, several tables if the columns do not fit."""
    first, num_runs = len(names), len(rows[0]) - len(names)
    widest = max(len(_text(cell)) for row in rows for cell in row[first:]) + 2
    per_table = num_runs if width is None else max((width - _NAME_WIDTH) // max(widest, _VALUE_WIDTH - 2), 1)
    for start in range(0, num_runs, per_table):
        stop = min(start + per_table, num_runs)
        if start:
            page.line("")
        numbers = [f"{number + 1}{_NOT_BEST * right}" for number in range(start, stop)]
        page.table(
            [*names, *numbers],
            [[*row[:first], *row[first + start : first + stop]] for row in rows],
            align_right=numbers if right else (),
            fold_column=names[0],
        )


def _text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _shorten(value: str, width: int | None, num_runs: int) -> str:
    """Shorten a setting so that the runs fit a terminal; a pipe gets all of it."""
    return (
        value
        if width is None
        else truncate(value, max((width - _NAME_WIDTH) // num_runs - 2, _MIN_SETTING_WIDTH))
    )


def _terminal_width() -> int:
    return shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns


def _print_runs(page: Page, views: Sequence[RunView]) -> None:
    has_tags = any(view.tags for view in views)
    rows: list[list[str | Cell]] = []
    for number, view in enumerate(views):
        name = view.label + (f"  {view.parentage}" if view.parentage else "")
        state = Cell(view.state, STATE_STYLES.get(view.state, ""))
        steps = "" if view.progress is None else str(view.progress.step)
        took = duration_text(view.active_seconds)
        tags = [" ".join(view.tags)] if has_tags else []
        rows.append([str(number + 1), name, state, steps, took, *tags])
    page.table(
        ["", "run", "state", "steps", "took", *["tags"] * has_tags],
        rows,
        align_right=["steps", "took"],
        fold_column="run",
    )


def _metric_rows(views: Sequence[RunView], series: Series, direction: str | None) -> list[list[str | Cell]]:
    heads = [view.heads.get(series) for view in views]
    last = [None if head is None else head.point.value for head in heads]
    rows = [_value_row(series_label(series), "last", last, direction)]
    if direction is not None:
        bests = best_of(views, series)
        values = [None if best is None else best.value for best in bests]
        steps = ["" if best is None else f"{best.step}{_NOT_BEST}" for best in bests]
        rows.append(_value_row(series_label(series), "best", values, direction))
        rows.append([series_label(series), "at step", *steps])
    return rows


def _value_row(
    name: str, what: str, values: Sequence[float | None], direction: str | None
) -> list[str | Cell]:
    best = best_indices(values, direction)
    cells = [
        Cell("", "")
        if value is None
        else Cell(value_text(value) + (_BEST if i in best else _NOT_BEST), "bold green" if i in best else "")
        for i, value in enumerate(values)
    ]
    return [name, what, *cells]


def _draw(page: Page, views: Sequence[RunView], series: Series) -> None:
    curves, _ = compared_curves(views, series)
    width = max(_terminal_width(), _MIN_COLUMNS) if page.is_styled else _PIPE_COLUMNS
    view = ChartView(tuple(curves), title=series_label(series), short_legend=True)
    plot = TextChart(view, width, _PLOT_LINES)
    styles = {"title": "bold", "axis": "dim", "label": "", "note": "italic dim"}
    if not page.is_styled:
        print(plot.text())
    for spans in plot.lines if page.is_styled else ():
        cells = []
        for span in spans:
            style = styles.get(span.style)
            if style is None and (number := span.style.lstrip("-")):
                color = curves[int(number)].color
                style = f"dim {color}" if span.style.startswith("-") else color
            cells.append(Cell(span.text, style or ""))
        page.line(*cells)
    if parents := ", ".join(curve.label for curve in curves if curve.faint):
        page.line(Cell(f"dimmed: {parents}, up to the step of the fork", "dim"))


def _data(views: Sequence[RunView], series: Sequence[Series], drawn: Sequence[Series]) -> dict[str, Any]:
    return {
        "runs": [run_json(view) for view in views],
        "settings": differences([view.config for view in views]),
        "metrics": [_metric_data(views, one) for one in series],
        "curves": [_curve_data(views, one) for one in drawn],
    }


def _metric_data(views: Sequence[RunView], series: Series) -> dict[str, Any]:
    heads = [view.heads.get(series) for view in views]
    return {
        **series._asdict(),
        "better": common_direction(views, series),
        "last": [None if head is None else head.point._asdict() for head in heads],
        "best": [best and best._asdict() for best in best_of(views, series)],
    }


def _curve_data(views: Sequence[RunView], series: Series) -> dict[str, Any]:
    points = [view.points(*series) if series in view.heads else None for view in views]
    return {
        **series._asdict(),
        "runs": [found and {"steps": found.steps, "values": found.values} for found in points],
    }
