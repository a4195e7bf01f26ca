"""Which kernels run, which plans are active, and what fell back, as the training recorded it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.line import update
from burnt.monitor.panes.pane import Pane
from burnt.monitor.panes.tables import table_rows
from burnt.monitor.rows import Cell, Column, Rows
from burnt.train.store import Artefact

__all__ = ["TABLES", "KernelsPane"]

TABLES = ("kernels", "plans")
_FELL_BACK = "fell back"


class KernelsPane(Pane):
    """Table artefacts ``kernels`` and ``plans``."""

    TITLE = "Kernels"
    SHORT = "Kern"
    DEFAULT_CSS = """
    KernelsPane .table-title { height: 1; padding: 0 1; }
    KernelsPane #plans { margin-bottom: 1; }
    """

    def compose(self) -> ComposeResult:
        """Two tables with their titles."""
        yield Static(id="plans-title", classes="table-title")
        yield Rows([Column("")], empty="no function was traced", id="plans")
        yield Static(id="kernels-title", classes="table-title")
        yield Rows([Column("")], empty="no kernel was chosen", id="kernels")

    def token(self) -> object:
        """They are artefacts."""
        return self.view.newest.artefact, len(self.view.attempts)

    def read(self) -> Callable[[], Any]:
        """The newest of both tables."""
        newest: dict[str, int] = {}
        for name in self.view.artefact_names():
            if name.kind == "table" and name.name in TABLES:
                newest[name.name] = name.id
        return partial(self._show, {name: self.view.artefact(id) for name, id in newest.items()})

    def _show(self, tables: dict[str, Artefact | None]) -> None:
        for name in TABLES:
            artefact = tables.get(name)
            facts = f"{name}: the training has recorded none"
            if artefact is not None:
                columns, rows = table_rows(artefact.data)
                facts = f"{name}: {len(rows):,}"
                if _FELL_BACK in artefact.data["columns"]:
                    rows, fallen = _marked(rows, artefact.data["columns"].index(_FELL_BACK))
                    facts += (
                        f", {fallen:,} of them fell back to plain torch" if fallen else ", none fell back"
                    )
                shown = self.query_one(f"#{name}", Rows)
                shown.show(rows, columns=columns)
                if name == "plans":
                    shown.styles.height = min(len(rows) + 1, max(self.size.height // 2 - 2, 3))
            title, _, rest = facts.partition(":")
            update(
                self.query_one(f"#{name}-title", Static),
                Content.assemble((title, "bold"), (f" {rest}", "$dim")),
            )


def _marked(
    rows: Sequence[tuple[object, Sequence[Cell]]], column: int
) -> tuple[list[tuple[object, Sequence[Cell]]], int]:
    """The rows of what fell back in another colour, and how many they are."""
    marked: list[tuple[object, Sequence[Cell]]] = []
    fallen = 0
    for key, cells in rows:
        fell = cells[column] != (("-", ""),)
        fallen += fell
        marked.append((key, [((cell[0][0], "$warning"),) for cell in cells] if fell else cells))
    return marked, fallen
