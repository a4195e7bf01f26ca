"""The model: its parts, output shapes and parameters, as the run recorded them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.line import update
from burnt.monitor.panes.pane import Pane
from burnt.monitor.rows import Cell, Column, Rows, cell
from burnt.monitor.words import clean

__all__ = ["ModelPane"]

_FACTS = ("model", "parameters", "optimizer", "schedule", "precision", "device", "duration")


class ModelPane(Pane):
    """Table artefact `model`, below what the configuration says of the model."""

    TITLE = "Model"

    def compose(self) -> ComposeResult:
        """Some facts and the table."""
        yield Static(classes="facts")
        yield Rows([Column("")], empty="the run has not recorded a summary of its model")

    def token(self) -> object:
        """A resumed run may have another model."""
        return self.view.newest.artefact, len(self.view.attempts)

    def read(self) -> Callable[[], Any]:
        """The newest table."""
        tables = self.view.artefacts("table", "model")
        return partial(self._show, tables[-1].data if tables else None)

    def _show(self, table: dict[str, Any] | None) -> None:
        config = self.view.config or {}
        facts = [(name, config[name]) for name in _FACTS if config.get(name) is not None]
        parts: list[tuple[str, str]] = []
        for name, value in facts:
            text = f"{value:,}" if isinstance(value, int) else str(value)
            parts += [(f" {name} ", "$dim"), (f"{clean(text)} ", "")]
        update(self.query_one(Static), Content.assemble(*parts))
        if table is None:
            return
        names = [str(name) for name in table["columns"]]
        numbers = [all(isinstance(row[i], int | float) for row in table["rows"]) for i in range(len(names))]
        columns = [
            Column(clean(name), right=right, grows=i == 0)
            for i, (name, right) in enumerate(zip(names, numbers, strict=True))
        ]
        rows: list[tuple[object, Sequence[Cell]]] = [
            (number, [cell(_text(value)) for value in row]) for number, row in enumerate(table["rows"])
        ]
        self.query_one(Rows).show(rows, columns=columns)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
