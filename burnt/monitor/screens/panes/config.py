"""The configuration as a flat table with a filter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keymap import FILTER, bindings
from burnt.monitor.ui.table import Column, Table, cell

_COLUMNS = (Column("key"), Column("value", expands=True))


class ConfigPane(Pane):
    """The configuration of the newest attempt."""

    TITLE = "Config"
    KEYS = FILTER
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(FILTER)]

    def compose(self) -> ComposeResult:
        """Compose the table and its filter input."""
        yield Table(_COLUMNS, empty_text="The run has no configuration.")
        yield FilterInput("words, or /regular expression/")

    def token(self) -> object:
        """Return the number of attempts, as a resumed run may have another configuration, and the error."""
        return len(self.view.attempts), self.view.error

    def read(self) -> Callable[[], Any]:
        """Read nothing: the configuration is read with the run."""
        return self._show

    def _show(self) -> None:
        field = self.query_one(FilterInput)
        filter_text, matches = field.value, field.current_matcher()
        if matches is None:
            return
        table = self.query_one(Table)
        pairs = [
            (key, value)
            for key, value in flatten(self.view.config or {}).items()
            if matches(f"{key} {value}")
        ]
        table.empty_text = (
            "No setting matches the filter." if filter_text else "The run has no configuration."
        )
        table.show([(key, (cell(key, "$dim"), cell(value))) for key, value in pairs])

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        """Show the full value of a setting."""
        key = str(message.key)
        self.app.push_screen(TextScreen(key, flatten(self.view.config or {}).get(key, "")))

    def action_filter(self) -> None:
        """Open the filter input."""
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self) -> None:
        """Apply the filter while it is typed."""
        self._show()

    @on(FilterInput.Closed)
    def filter_closed(self) -> None:
        """Return the focus to the table."""
        self.query_one(Table).focus()


def flatten(data: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to text values by dotted key.

    >>> flatten({"model": {"hidden": 64}, "name": "digits", "sizes": [1, 2]})
    {'model.hidden': '64', 'name': 'digits', 'sizes': '[1, 2]'}
    """
    flat: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat
