"""`ChooseColumnsScreen`: choose the columns of the list of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from burnt.monitor.screens.list_columns import Candidate
from burnt.monitor.ui.filter_input import Filtered, FilterInput
from burnt.monitor.ui.keymap import CHOOSE_COLUMNS, bindings
from burnt.monitor.ui.table import Column, Table, cell

_MIN_LINES = 12
_COLUMNS = (
    Column(""),
    Column("column", expands=True),
    Column("", drop_priority=1),
    Column("values", expands=True),
)


class ChooseColumnsScreen(ModalScreen[None], Filtered):
    """The columns that the list of runs can have; a change is shown behind the window at once.

    Args:
        chosen: the keys of those that are shown, in order.
        changed: called with the new keys; newly chosen columns come last.
        reset: called to return to the usual columns; returns their keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(CHOOSE_COLUMNS)]
    KEYS = CHOOSE_COLUMNS

    def __init__(
        self,
        candidates: Sequence[Candidate],
        chosen: Sequence[str],
        changed: Callable[[Sequence[str]], None],
        reset: Callable[[], Sequence[str]],
    ) -> None:
        super().__init__()
        self._candidates, self._chosen, self._changed, self._reset = candidates, list(chosen), changed, reset

    def compose(self) -> ComposeResult:
        with Vertical(classes="window"):
            yield Static("Columns", classes="window-title")
            yield Table(_COLUMNS, empty_text="No column matches the filter.")
            yield FilterInput("part of a name, or /regular expression/")

    def on_mount(self) -> None:
        window = self.query_one(".window", Vertical)
        window.border_subtitle = "space shows or hides, < and > move, / filters, r resets, esc closes"
        self._show()
        self.set_focus(self.query_one(Table))

    def on_resize(self, event: events.Resize) -> None:
        lines = min(len(self._candidates) + 1, max(event.size.height // 2, _MIN_LINES))
        self.query_one(Table).styles.height = lines

    def on_filter(self) -> None:
        self._show()

    def _show(self) -> None:
        by_key = {candidate.key: candidate for candidate in self._candidates}
        order = [by_key.get(key, Candidate(key, key.partition(":")[2], "", "")) for key in self._chosen]
        order += [candidate for candidate in self._candidates if candidate.key not in self._chosen]
        self.query_one(Table).show(
            [
                (
                    one.key,
                    (
                        cell("[x]" if one.key in self._chosen else "[ ]", "$primary"),
                        cell(one.name),
                        cell(one.kind, "$dim"),
                        cell(one.example, "$dim"),
                    ),
                )
                for one in order
                if self.matches(one.name)
            ]
        )

    def _change(self) -> None:
        self._changed(self._chosen)
        self._show()

    # --- keys

    def action_toggle_column(self) -> None:
        """Show or hide the column under the cursor; the cursor stays on its line."""
        table = self.query_one(Table)
        key, line = table.cursor_key, table.cursor
        if not isinstance(key, str):
            return
        if key in self._chosen:
            self._chosen.remove(key)
        else:
            self._chosen.append(key)
        self._change()
        table.cursor = line + (key in self._chosen)

    def action_move(self, direction: int) -> None:
        """Move the column under the cursor to the left (-1) or right (1)."""
        key = self.query_one(Table).cursor_key
        if key in self._chosen:
            index = self._chosen.index(str(key))
            other = min(max(index + direction, 0), len(self._chosen) - 1)
            self._chosen.insert(other, self._chosen.pop(index))
            self._change()

    def action_reset(self) -> None:
        self._chosen = list(self._reset())
        self._show()

    def action_close(self) -> None:
        self.dismiss()

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        message.stop()
        self.action_toggle_column()
