"""The configuration as a flat table with a filter."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on

from burnt.monitor.screens.panes.pane import TablePane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.table import Column, Row, Table, cell
from burnt.store.search import flatten, setting_text


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
