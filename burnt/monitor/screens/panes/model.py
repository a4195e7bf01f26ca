"""The model's layers, output shapes and parameters, as the run recorded them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.screens.panes.tables import table_rows
from burnt.monitor.ui.status_line import update_if_changed
from burnt.monitor.ui.table import Cell, Column, Table

_SHOWN_SETTINGS = ("model", "parameters", "optimizer", "schedule", "precision", "device", "duration")


class ModelPane(Pane):
    """Shows the table artefact ``model``, below the model's settings in the configuration."""

    TITLE = "Model"

    def compose(self) -> ComposeResult:
        yield Static(classes="facts")
        yield Table([Column("")], empty_text="The run has not recorded a model summary.")

    def token(self) -> object:
        """Return the newest artefact and the attempts, as a resumed run may have another model."""
        return self.view.newest.artefact, len(self.view.attempts)

    def read(self) -> Callable[[], Any]:
        with self.view.reading() as reader:
            tables = reader.artefacts("table", "model")
        return partial(self._show, table_rows(tables[-1].data) if tables else None)

    def _show(self, table: tuple[Sequence[Column], Sequence[tuple[object, Sequence[Cell]]]] | None) -> None:
        config = self.view.config or {}
        facts = [(name, config[name]) for name in _SHOWN_SETTINGS if config.get(name) is not None]
        parts: list[tuple[str, str]] = []
        for name, value in facts:
            text = f"{value:,}" if isinstance(value, int) else str(value)
            parts += [(f" {name} ", "$dim"), (f"{clean(text)} ", "")]
        update_if_changed(self.query_one(Static), Content.assemble(*parts))
        if table is not None:
            columns, rows = table
            self.query_one(Table).show(rows, columns=columns)
