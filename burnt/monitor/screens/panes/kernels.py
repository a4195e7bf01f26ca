"""The kernels and plans in use, and which fell back to PyTorch, as the training recorded them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import split_tuning_keys
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.screens.panes.tables import table_rows
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.status_line import update_if_changed
from burnt.monitor.ui.table import Cell, Column, Table
from burnt.store import Artefact

TABLES = ("kernels", "plans")
_FALLBACK_COLUMN = "fell back"


class KernelsPane(Pane):
    """Shows the table artefacts ``kernels`` and ``plans``."""

    TITLE = "Kernels"
    SHORT = "Kern"
    DEFAULT_CSS = """
    KernelsPane .table-title { height: 1; padding: 0 1; }
    KernelsPane #kernels-title { margin-top: 1; }
    """

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._tables: dict[str, Artefact | None] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="plans-title", classes="table-title")
        yield Table([Column("")], empty_text="No function has been traced.", id="plans")
        yield Static(id="kernels-title", classes="table-title")
        yield Table([Column("")], empty_text="No kernel has been chosen.", id="kernels")

    def token(self) -> object:
        return self.view.newest.artefact, len(self.view.attempts)

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        """Show a row in full, as recorded."""
        artefact = self._tables.get(str(message.table.id))
        if artefact is not None and isinstance(message.key, int):
            row = zip(artefact.data["columns"], artefact.data["rows"][message.key], strict=False)
            lines = [f"{name}: {value}" for name, value in row if value is not None]
            self.app.push_screen(TextScreen(str(message.table.id), "\n".join(lines)))

    def read(self) -> Callable[[], Any]:
        with self.view.reading() as reader:
            ids = {one.name: one.id for one in reader.artefact_names() if one.kind == "table"}
            tables = {name: reader.artefact(ids[name]) for name in TABLES if name in ids}
        return partial(self._show, tables)

    def on_resize(self) -> None:
        self._set_heights()

    def _set_heights(self) -> None:
        """Give the plans, which are fewer, the height they need, up to half of the pane."""
        plans = self.query_one("#plans", Table)
        plans.styles.height = min(len(plans.row_keys) + 1, max(self.size.height // 2 - 2, 3))

    def _show(self, tables: dict[str, Artefact | None]) -> None:
        self._tables = tables
        for name in TABLES:
            artefact = tables.get(name)
            facts = f"{name}: none recorded"
            if artefact is not None:
                data, machine = split_tuning_keys(artefact.data)
                columns, rows = table_rows(data)
                facts = f"{name}: {len(rows):,}" + (f", on {clean(machine)}" if machine else "")
                if _FALLBACK_COLUMN in artefact.data["columns"]:
                    rows, num_fallbacks = _mark_fallbacks(
                        rows, artefact.data["columns"].index(_FALLBACK_COLUMN)
                    )
                    facts += (
                        f", {num_fallbacks:,} of them fell back to PyTorch"
                        if num_fallbacks
                        else ", none fell back"
                    )
                table = self.query_one(f"#{name}", Table)
                table.show(rows, columns=columns)
            title, _, rest = facts.partition(":")
            update_if_changed(
                self.query_one(f"#{name}-title", Static),
                Content.assemble((title, "bold"), (f" {rest}", "$dim")),
            )
        self._set_heights()


def _mark_fallbacks(
    rows: Sequence[tuple[object, Sequence[Cell]]], column: int
) -> tuple[list[tuple[object, Sequence[Cell]]], int]:
    """Colour the rows of functions that fell back; return the rows and the number of those."""
    marked: list[tuple[object, Sequence[Cell]]] = []
    num_fallbacks = 0
    for key, cells in rows:
        fell_back = cells[column] != (("-", ""),)
        num_fallbacks += fell_back
        marked.append((key, [((cell[0][0], "$warning"),) for cell in cells] if fell_back else cells))
    return marked, num_fallbacks
