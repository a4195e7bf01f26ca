"""The table of metrics with a filter: the last value of each, and the best with its step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult

from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import series_in_order
from burnt.monitor.format import age_text, better_direction, full_number_text, series_label
from burnt.monitor.screens.panes.pane import FilterPane
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.table import Cell, Column, Table, cell

_COLUMNS = (
    Column("metric", expands=True),
    Column("split"),
    Column("last", align_right=True),
    Column("at step", align_right=True),
    Column("epoch", align_right=True, drop_priority=2),
    Column("best", align_right=True),
    Column("at step ", align_right=True),
    Column("better", drop_priority=3),
    Column("age", align_right=True, drop_priority=1),
)


class NumbersPane(FilterPane):
    """The last and best values of every metric."""

    TITLE = "Numbers"
    SHORT = "Nums"

    def __init__(self, view: RunView) -> None:
        super().__init__(view)

    def compose(self) -> ComposeResult:
        yield Table(_COLUMNS, empty_text="No metric has been logged yet.")
        yield FilterInput(self.FILTER_HINT)

    def read(self) -> Callable[[], Any]:
        """Build the rows; only the best values are read from the store."""
        now = time.time()
        rows: list[tuple[object, Sequence[Cell]]] = []
        heads = self.view.heads
        matches = self.matches
        for series in series_in_order(heads):
            if not matches(series_label(series)):
                continue
            head = heads[series]
            best, point = self.view.best(series), head.point
            rows.append(
                (
                    series,
                    (
                        cell(series.name),
                        cell(series.split, "$dim"),
                        cell(
                            full_number_text(point.value),
                            "bold" if math.isfinite(point.value) else "bold $error",
                        ),
                        cell(f"{point.step:,}", "$dim"),
                        cell("" if point.epoch is None else f"{point.epoch:,}", "$dim"),
                        cell("" if best is None else full_number_text(best.value), "$success"),
                        cell("" if best is None else f"{best.step:,}", "$dim"),
                        cell(better_direction(series.name, self.view.config) or "", "$dim"),
                        cell(age_text(now - point.time), "$dim"),
                    ),
                )
            )
        return partial(self._show, rows)

    def _show(self, rows: Sequence[tuple[object, Sequence[Cell]]]) -> None:
        table = self.query_one(Table)
        is_empty = not self.view.heads
        table.empty_text = "No metric has been logged yet." if is_empty else "No metric matches the filter."
        table.show(rows)
