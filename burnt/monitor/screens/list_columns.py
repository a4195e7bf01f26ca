"""The columns of the list of runs: their headings, a run's cells, their orders, and how to choose them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import age_text, better_direction, count_text, natural_key, series_label, truncate
from burnt.monitor.plotting.curves import RUN_STYLES
from burnt.monitor.plotting.run_curves import all_metrics
from burnt.monitor.ui.filter_input import Filtered, FilterInput
from burnt.monitor.ui.keymap import CHOOSE_COLUMNS, bindings
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.monitor.ui.theme import progress_bar, state_cell
from burnt.plot.braille import DASH_PATTERNS
from burnt.store import Series
from burnt.store.search import setting_text, short_names
from burnt.train.format import duration_text, value_text

FIRST_COLUMNS = (Column(""), Column("run", expands=True))
# The usual columns by key; settings and metrics are added, as below.
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
    for text in filter(None, (view.parentage, view.sweep_text)):
        parts += cell(f"  {text}", "$dim")
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
        "epoch": cell(count_text(progress and progress.epoch, progress and progress.total_epochs)),
        "step": cell(count_text(progress and progress.step, progress and progress.total_steps)),
        "eta": cell("" if eta is None else duration_text(eta)),
        "metric": cell("" if metric is None else series_label(metric), "$dim"),
        "last": cell(
            "" if last is None else value_text(last), "" if last is None or math.isfinite(last) else "$error"
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


# --- columns that are settings or metrics

_SETTING, _METRIC = "setting:", "metric:"
_MAX_AUTOMATIC = 4
_MAX_AUTOMATIC_LENGTH = 16  # characters of a value in a column that nobody has chosen
_MAX_LENGTH = 28
_OWN_PREFIX = "config."  # of the user's own settings; the others describe the training


class Candidate(NamedTuple):
    """A column that can be shown: its key, and what it is for people."""

    key: str
    name: str
    kind: str
    example: str


def is_column(key: str) -> bool:
    """Whether a column shows a setting or a metric."""
    return key.startswith((_SETTING, _METRIC))


def candidates(views: Sequence[RunView]) -> list[Candidate]:
    """Return the columns that can be added: settings that differ, metrics, settings that are all the same."""
    values = _values_by_setting(views)
    differing = [key for key in values if len(values[key]) > 1]
    found = [Candidate(_SETTING + key, key, "differs", _examples(values[key])) for key in differing]
    found += [
        Candidate(_METRIC + series_label(series), series_label(series), "metric", "")
        for series in all_metrics(views)
    ]
    found += [
        Candidate(_SETTING + key, key, "same in all", _examples(values[key]))
        for key in values
        if key not in differing
    ]
    return found


def automatic_columns(views: Sequence[RunView]) -> list[str]:
    """Return the keys of a few settings that differ and have short values, the user's own settings first."""
    differing = [
        key
        for key, values in _values_by_setting(views).items()
        if len(values) > 1 and max(map(len, values)) <= _MAX_AUTOMATIC_LENGTH
    ]
    # `seed` and the like differ in nearly all runs and rarely matter; those below config. come first.
    differing.sort(key=lambda key: not key.startswith(_OWN_PREFIX))
    return [_SETTING + key for key in differing[:_MAX_AUTOMATIC]]


def headings(keys: Sequence[str], views: Iterable[RunView]) -> list[str]:
    """Return a short heading for each column.

    >>> headings(["setting:config.model.hidden", "setting:config.lr", "metric:valid/loss"], [])
    ['hidden', 'lr', 'valid/loss']
    """
    settings = [key.removeprefix(_SETTING) for key in keys if key.startswith(_SETTING)]
    names = short_names(settings, {key for view in views for key in view.settings})
    return [names.get(key.removeprefix(_SETTING), key.removeprefix(_METRIC)) for key in keys]


def column_text(view: RunView, key: str) -> str:
    """Return a run's value in a column; empty if it has none."""
    value = _value(view, key)
    if value is None:
        return ""
    return _text(value) if key.startswith(_SETTING) else value_text(value)


def sort_value(view: RunView, key: str) -> Any:
    """Return what a column is sorted by: numbers before texts; NaN for a run without a value."""
    value = _value(view, key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, value) if is_number else (1, natural_key(_text(value)))


def _value(view: RunView, key: str) -> Any:
    if key.startswith(_SETTING):
        return view.settings.get(key.removeprefix(_SETTING))
    split, _, name = key.removeprefix(_METRIC).partition("/")
    head = view.heads.get(Series(name, split))
    return None if head is None else head.point.value


def _values_by_setting(views: Sequence[RunView]) -> dict[str, set[str]]:
    """Return the texts that each setting has in the runs; a run without it has the empty text."""
    with_settings = [view for view in views if view.settings]
    texts: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for view in with_settings:
        for key, value in view.settings.items():
            texts.setdefault(key, set()).add(_text(value))
            counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        if count < len(with_settings):
            texts[key].add("")
    return texts


def _examples(values: set[str]) -> str:
    return ", ".join(sorted(value or "-" for value in values)[:4])


def _text(value: Any) -> str:
    return truncate(setting_text(value), _MAX_LENGTH)


_MIN_LINES = 12
_COLUMNS = (
    Column(""),
    Column("column", expands=True),
    Column("", drop_priority=1),
    Column("values", expands=True),
)


class ChooseColumnsScreen(ModalScreen[None], Filtered):
    """The columns that the list of runs can have; a change is shown behind the window at once.

    Args:
        chosen: the keys of those that are shown, in order.
        changed: called with the new keys; newly chosen columns come last.
        reset: called to return to the usual columns; returns their keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(CHOOSE_COLUMNS)]
    KEYS = CHOOSE_COLUMNS

    def __init__(
        self,
        candidates: Sequence[Candidate],
        chosen: Sequence[str],
        changed: Callable[[Sequence[str]], None],
        reset: Callable[[], Sequence[str]],
    ) -> None:
        super().__init__()
        self._candidates, self._chosen, self._changed, self._reset = candidates, list(chosen), changed, reset

    def compose(self) -> ComposeResult:
        with Vertical(classes="window"):
            yield Static("Columns", classes="window-title")
            yield Table(_COLUMNS, empty_text="No column matches the filter.")
            yield FilterInput("part of a name, or /regular expression/")

    def on_mount(self) -> None:
        window = self.query_one(".window", Vertical)
        window.border_subtitle = "space shows or hides, < and > move, / filters, r resets, esc closes"
        self._show()
        self.set_focus(self.query_one(Table))

    def on_resize(self, event: events.Resize) -> None:
        lines = min(len(self._candidates) + 1, max(event.size.height // 2, _MIN_LINES))
        self.query_one(Table).styles.height = lines

    def on_filter(self) -> None:
        self._show()

    def _show(self) -> None:
        by_key = {candidate.key: candidate for candidate in self._candidates}
        order = [by_key.get(key, Candidate(key, key.partition(":")[2], "", "")) for key in self._chosen]
        order += [candidate for candidate in self._candidates if candidate.key not in self._chosen]
        self.query_one(Table).show(
            [
                (
                    one.key,
                    (
                        cell("[x]" if one.key in self._chosen else "[ ]", "$primary"),
                        cell(one.name),
                        cell(one.kind, "$dim"),
                        cell(one.example, "$dim"),
                    ),
                )
                for one in order
                if self.matches(one.name)
            ]
        )

    def _change(self) -> None:
        self._changed(self._chosen)
        self._show()

    # --- keys

    def action_toggle_column(self) -> None:
        """Show or hide the column under the cursor; the cursor stays on its line."""
        table = self.query_one(Table)
        key, line = table.cursor_key, table.cursor
        if not isinstance(key, str):
            return
        if key in self._chosen:
            self._chosen.remove(key)
        else:
            self._chosen.append(key)
        self._change()
        table.cursor = line + (key in self._chosen)

    def action_move(self, direction: int) -> None:
        """Move the column under the cursor to the left (-1) or right (1)."""
        key = self.query_one(Table).cursor_key
        if key in self._chosen:
            index = self._chosen.index(str(key))
            other = min(max(index + direction, 0), len(self._chosen) - 1)
            self._chosen.insert(other, self._chosen.pop(index))
            self._change()

    def action_reset(self) -> None:
        self._chosen = list(self._reset())
        self._show()

    def action_close(self) -> None:
        self.dismiss()

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        message.stop()
        self.action_toggle_column()
