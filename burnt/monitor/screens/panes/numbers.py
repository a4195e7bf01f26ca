"""The table of metrics: the last value of each, and the best with its step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult

from burnt.monitor.format import age_text, better_direction, full_number_text
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.table import Cell, Column, Table, cell

__all__ = ["NumbersPane"]

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


class NumbersPane(Pane):
    """The last and best values of every metric."""

    TITLE = "Numbers"
    SHORT = "Nums"

    def compose(self) -> ComposeResult:
        """Compose the table."""
        yield Table(_COLUMNS, empty_text="No metric has been logged yet.")

    def read(self) -> Callable[[], Any]:
        """Build the rows; only the best values are read from the store."""
        now = time.time()
        rows: list[tuple[object, Sequence[Cell]]] = []
        for series, head in self.view.heads.items():
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
        self.query_one(Table).show(rows)
