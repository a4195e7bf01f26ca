"""Tables with a filter: the last and best values of each metric; the configuration."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from textual import on

from burnt.monitor.data.series_order import series_in_order
from burnt.monitor.format import age_text, better_direction, full_number_text, series_label
from burnt.monitor.screens.panes.pane import TablePane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.table import Column, Row, Table, cell
from burnt.store import Series
from burnt.store.search import flatten, setting_text


class NumbersPane(TablePane):
    """The last and best values of every metric."""

    TITLE = "Numbers"
    SHORT = "Nums"
    COLUMNS = (
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
    EMPTY = "No metric has been logged yet."
    NO_MATCH = "No metric matches the filter."

    def rows(self) -> Sequence[tuple[str, Row]]:
        return [(series_label(series), self._row(series)) for series in series_in_order(self.view.heads)]

    def _row(self, series: Series) -> Row:
        best, point = self.view.best(series), self.view.heads[series].point
        return series, (
            cell(series.name),
            cell(series.split, "$dim"),
            cell(full_number_text(point.value), "bold" if math.isfinite(point.value) else "bold $error"),
            cell(f"{point.step:,}", "$dim"),
            cell("" if point.epoch is None else f"{point.epoch:,}", "$dim"),
            cell("" if best is None else full_number_text(best.value), "$success"),
            cell("" if best is None else f"{best.step:,}", "$dim"),
            cell(better_direction(series.name, self.view.config) or "", "$dim"),
            cell(age_text(time.time() - point.time), "$dim"),
        )


class ConfigPane(TablePane):
    """The configuration of the newest attempt."""

    TITLE = "Config"
    COLUMNS = (Column("key"), Column("value", expands=True))
    EMPTY = "The run has no configuration."
    NO_MATCH = "No setting matches the filter."

    def token(self) -> object:
        """Return the number of attempts, as a resumed run may have another configuration, and the error."""
        return len(self.view.attempts), self.view.error, self._num_requests

    def rows(self) -> Sequence[tuple[str, Row]]:
        return [
            (f"{key} {value}", (key, (cell(key, "$dim"), cell(value))))
            for key, value in self._settings().items()
        ]

    def _settings(self) -> dict[str, str]:
        return {key: setting_text(value) for key, value in flatten(self.view.config or {}).items()}

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        key = str(message.key)
        self.app.push_screen(TextScreen(key, self._settings().get(key, "")))
