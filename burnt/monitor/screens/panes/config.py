"""The configuration as a flat table with a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual import on
from textual.app import ComposeResult

from burnt.monitor.screens.panes.pane import FilterPane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.table import Column, Table, cell
from burnt.store.search import flatten, setting_text

_COLUMNS = (Column("key"), Column("value", expands=True))


class ConfigPane(FilterPane):
    """The configuration of the newest attempt."""

    TITLE = "Config"

    def compose(self) -> ComposeResult:
        yield Table(_COLUMNS, empty_text="The run has no configuration.")
        yield FilterInput(self.FILTER_HINT)

    def token(self) -> object:
        """Return the number of attempts, as a resumed run may have another configuration, and the error."""
        return len(self.view.attempts), self.view.error, self._num_requests

    def read(self) -> Callable[[], Any]:
        """Select the settings; the configuration is read with the run."""
        return partial(self._show, [pair for pair in self._settings() if self.matches(" ".join(pair))])

    def _settings(self) -> list[tuple[str, str]]:
        return [(key, setting_text(value)) for key, value in flatten(self.view.config or {}).items()]

    def _show(self, settings: Sequence[tuple[str, str]]) -> None:
        table = self.query_one(Table)
        has_config = bool(self.view.config)
        table.empty_text = "No setting matches the filter." if has_config else "The run has no configuration."
        table.show([(key, (cell(key, "$dim"), cell(value))) for key, value in settings])

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        key = str(message.key)
        self.app.push_screen(TextScreen(key, dict(self._settings()).get(key, "")))
