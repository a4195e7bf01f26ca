"""The rows of the list of runs: the usual columns, a run's cells, and the orders they can have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from burnt.errors import clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import age_text, better_direction, natural_key, series_label
from burnt.monitor.plotting.curves import RUN_STYLES
from burnt.monitor.screens.list_columns import column_text, sort_value
from burnt.monitor.ui.table import Cell, Column, cell
from burnt.monitor.ui.theme import progress_bar, state_cell
from burnt.plot.styles import DASH_PATTERNS
from burnt.train.format import duration_text, value_text

FIRST_COLUMNS = (Column(""), Column("run", expands=True))
# The usual columns by key; settings and metrics are added from `list_columns`.
USUAL_COLUMNS = {
    "tags": Column("tags", drop_priority=3),
    "state": Column("state"),
    "progress": Column("progress", drop_priority=1),
    "epoch": Column("epoch", align_right=True, drop_priority=5),
    "step": Column("step", align_right=True, drop_priority=6),
    "eta": Column("eta", align_right=True, drop_priority=3),
    "metric": Column("metric", drop_priority=4),
    "last": Column("last", align_right=True),
    "best": Column("best", align_right=True),
    "at step": Column("at step", align_right=True, drop_priority=7),
    "took": Column("took", align_right=True, drop_priority=8),
    "age": Column("age", align_right=True, drop_priority=2),
}
USUAL_HELP = {
    "tags": "added with +",
    "metric": "the name of the run's main metric",
    "last": "last value of the main metric",
    "best": "best value of the main metric",
    "at step": "step of the best value",
    "took": "training time",
    "age": "time since the start",
}

_LINE_MARKS = dict(zip(DASH_PATTERNS, "▐┇┊╏", strict=True))  # upright; the dash patterns of compared runs
_STATE_ORDER = ("running", "stale", "crashed", "stopped", "finished", "unreadable", "deleted")

SORT_KEYS: dict[str, Callable[[RunView], Any]] = {
    "age": lambda view: -view.created,
    "run": lambda view: natural_key(view.label),
    "state": lambda view: _STATE_ORDER.index(view.state),
    "progress": lambda view: view.fraction if view.fraction is not None else math.nan,
    "epoch": lambda view: _or_nan(view.progress and view.progress.epoch),
    "step": lambda view: _or_nan(view.progress and view.progress.step),
    "eta": lambda view: _or_nan(view.eta),
    "metric": lambda view: series_label(view.metric) if view.metric else "",
    "last": lambda view: _sort_value(view, view.heads[view.metric].point.value if view.metric else math.nan),
    "best": lambda view: _sort_value(view, view.metric_best.value if view.metric_best else math.nan),
    "at step": lambda view: _or_nan(view.metric_best and view.metric_best.step),
    "took": lambda view: view.active_seconds,
    "tags": lambda view: " ".join(view.tags) or math.nan,
}


def row_cells(view: RunView, columns: Iterable[str], *, is_marked: bool, is_narrow: bool) -> tuple[Cell, ...]:
    """Return a run's cells."""
    usual = _usual_cells(view, is_narrow)
    first = _first_cells(view, is_marked)
    return (*first, *(usual[key] if key in usual else cell(column_text(view, key)) for key in columns))


def _first_cells(view: RunView, is_marked: bool) -> tuple[Cell, Cell]:
    color, line = RUN_STYLES[view.style_index % len(RUN_STYLES)]
    mark = _LINE_MARKS[line] if not is_marked else "◆"
    name = clean(view.label)
    if view.name not in (view.folder.name, view.folder.resolve().name):
        name += f" ({clean(view.name)})"
    parts = [*cell(name, "bold" if view.is_live else "")]
    if view.parentage:
        parts += cell(f"  {view.parentage}", "$dim")
    return cell(mark, color), tuple(parts)


def _usual_cells(view: RunView, is_narrow: bool) -> dict[str, Cell]:
    progress, share = view.progress, view.fraction
    metric = view.metric
    last = view.heads[metric].point.value if metric is not None else None
    best = view.metric_best
    eta = view.eta
    return {
        "tags": cell(" ".join(view.tags), "$accent"),
        "state": (state_cell(view),),
        "progress": _progress_cell(share, 6 if is_narrow else 12),
        "epoch": cell(_count_of_total(progress and progress.epoch, progress and progress.total_epochs)),
        "step": cell(_count_of_total(progress and progress.step, progress and progress.total_steps)),
        "eta": cell("" if eta is None else duration_text(eta)),
        "metric": cell("" if metric is None else series_label(metric), "$dim"),
        "last": cell(
            "" if last is None else value_text(last),
            "" if last is None or math.isfinite(last) else "$error",
        ),
        "best": cell("" if best is None else value_text(best.value)),
        "at step": cell("" if best is None else f"{best.step:,}", "$dim"),
        "took": cell(duration_text(view.active_seconds) if view.attempts else "", "$dim"),
        "age": cell(age_cell_text(view), "$dim"),
    }


def age_cell_text(view: RunView) -> str:
    """Return a run's age; empty if it is unknown."""
    return "" if math.isnan(view.created) else age_text(time.time() - view.created)


def _progress_cell(share: float | None, width: int) -> Cell:
    if share is None:
        return cell("")
    done, left = progress_bar(share, width)
    # Rounded down, so that an unfinished run never shows 100 %.
    return ((done, "$primary"), (left, "$faint"), (f" {math.floor(share * 100):>3} %", ""))


def _count_of_total(number: int | None, total: int | None) -> str:
    if number is None:
        return ""
    return f"{number:,}" if total is None else f"{number:,}/{total:,}"


def sort_views(views: list[RunView], column: str, descending: bool) -> list[RunView]:
    """Sort by a column; runs without a value come last in either order."""
    key = SORT_KEYS.get(column) or partial(sort_value, key=column)
    keyed = [(key(view), view) for view in views]
    without_value = [view for value, view in keyed if isinstance(value, float) and math.isnan(value)]
    with_value = [
        (value, view) for value, view in keyed if not (isinstance(value, float) and math.isnan(value))
    ]
    with_value.sort(key=lambda pair: pair[0], reverse=descending)
    return [view for _, view in with_value] + without_value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _sort_value(view: RunView, value: float) -> float:
    """Return a sort key that puts the better value first, if the better direction is known."""
    higher = view.metric is not None and better_direction(view.metric.name, view.config) == "higher"
    return -value if higher else value
