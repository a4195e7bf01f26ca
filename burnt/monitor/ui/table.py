"""`Table`: a table with a cursor that repaints only the rows that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual

from burnt.errors import clean
from burnt.monitor.ui.keymap import LIST, bindings

Cell = tuple[tuple[str, str], ...]
"""Styled texts side by side, as (text, Textual style) pairs."""

Row = tuple[object, Sequence[Cell]]
"""A key, which messages carry, and the cells."""

_GAP = 2


def cell(text: str, style: str = "") -> Cell:
    """Return a cell with one style; control sequences are escaped."""
    return ((clean(text), style),)


class Column(NamedTuple):
    """A column of a table: its heading, and how it uses the width."""

    name: str
    align_right: bool = False
    expands: bool = False  # takes the remaining width; other columns are as wide as their content
    drop_priority: int = 0  # the highest, and of equal ones the last, is dropped first; 0 never
    min_width: int = 18  # of an expanding column when the table is too narrow


class _TableMessage(Message):
    """A message of a table."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    @property
    def control(self) -> Table:
        return self.table


class _RowMessage(_TableMessage):
    """A message about one row."""

    def __init__(self, table: Table, key: object) -> None:
        super().__init__(table)
        self.key = key


class Table(ScrollView, can_focus=True):
    """A table with a fixed header line; `empty_text` is shown when there are no rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(LIST),
        Binding("enter", "open_line", "Open", show=False),
    ]
    KEYS = LIST
    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--head", "rows--cursor"}
    DEFAULT_CSS = """
    Table {
        background: $background;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 1;
        overflow-x: hidden;
    }
    Table > .rows--head { color: $dim; }
    Table > .rows--cursor { background: $panel; }
    Table:focus > .rows--cursor { background: $cursor; }
    """

    cursor = reactive(0, repaint=False)

    class RowOpened(_RowMessage):
        """A row was opened with enter or a double click."""

    class CursorMoved(_RowMessage):
        """The cursor moved to another row."""

    class HeadingClicked(_TableMessage):
        """A heading was clicked."""

        def __init__(self, table: Table, column: str) -> None:
            super().__init__(table)
            self.column = column

    def __init__(
        self, columns: Sequence[Column], *, empty_text: str = "", header: bool = True, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.columns = list(columns)
        self.empty_text = empty_text
        self.error_text = ""  # shown instead of `empty_text` if the rows could not be read
        self.header_height = int(header)
        self.row_keys: list[object] = []
        self._rows: list[Sequence[Cell]] = []
        self._layout: list[tuple[int, int]] = []  # (column, width)
        self._widths: list[int] = []
        self._measured_rows: dict[
            object, tuple[Sequence[Cell], tuple[int, ...]]
        ] = {}  # (cells, widths) by row key
        self._sorted_by: tuple[str, bool] | None = None

    def show(
        self,
        rows: Sequence[Row],
        *,
        columns: Sequence[Column] | None = None,
        sorted_by: tuple[str, bool] | None = None,
    ) -> None:
        """Replace the rows; the cursor stays on the row with its key, and only changed rows are repainted.

        Args:
            rows: with unique keys. Cells that are the same object as before are not measured again.
            columns: new columns, if they change.
            sorted_by: the column to mark as sorted, and whether the order is descending.
        """
        cursor_key = self.cursor_key
        old_rows, needs_layout = self._rows, sorted_by != self._sorted_by or columns is not None
        self._sorted_by = sorted_by
        if columns is not None:
            self.columns = list(columns)
        self.row_keys = [key for key, _ in rows]
        self._rows = [cells for _, cells in rows]
        measured, self._measured_rows = self._measured_rows, {}
        for key, cells in rows:
            size = measured.get(key)
            # Most rows of a long table are unchanged.
            self._measured_rows[key] = (
                size if size and size[0] is cells else (cells, tuple(map(_cell_width, cells)))
            )
        widths = [
            max(column) for column in zip(*(sizes for _, sizes in self._measured_rows.values()), strict=False)
        ]
        widths = (widths or [0] * len(self.columns))[: len(self.columns)]
        if needs_layout or widths != self._widths or len(old_rows) != len(self._rows):
            self._widths = widths
            self._lay_out_columns()
            self.refresh()
        else:
            top = int(self.scroll_offset.y)
            for y, (before, now) in enumerate(zip(old_rows, self._rows, strict=True)):
                if before != now and 0 <= y - top < self.size.height:
                    self.refresh(Region(0, y - top + self.header_height, self.size.width, 1))
        if cursor_key in self.row_keys:
            self.cursor = self.row_keys.index(cursor_key)
        else:
            self.cursor = min(self.cursor, max(len(self.row_keys) - 1, 0))

    @property
    def cursor_key(self) -> object:
        """The key of the row under the cursor; None if the table is empty."""
        return self.row_keys[self.cursor] if self.cursor < len(self.row_keys) else None

    def move_to(self, key: object) -> None:
        if key in self.row_keys:
            self.cursor = self.row_keys.index(key)

    # --- drawing

    def on_resize(self) -> None:
        self._lay_out_columns()
        self._scroll_to_cursor()

    def _lay_out_columns(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows) + self.header_height)
        available = self.scrollable_content_region.width - 2
        names = [
            cell_len(column.name) + (self.header_height and 2 * (not column.expands))
            for column in self.columns
        ]
        widths = [
            max(width, self.header_height * cell_len(column.name) + self._sort_mark_width(column))
            for column, width in zip(self.columns, self._widths or names, strict=True)
        ]
        shown = list(range(len(self.columns)))

        def needed() -> int:
            return sum(
                (min(widths[i], self.columns[i].min_width) if self.columns[i].expands else widths[i]) + _GAP
                for i in shown
            ) - _GAP  # fmt: skip

        for i in sorted(shown, key=lambda i: (-self.columns[i].drop_priority, -i)):
            if needed() <= available or not self.columns[i].drop_priority:
                break
            shown.remove(i)
        expanding = [i for i in shown if self.columns[i].expands]
        width_left = available - sum(widths[i] + _GAP for i in shown if i not in expanding) + _GAP
        layout = []
        for i in shown:
            if i in expanding:
                # Not wider than its content, so that related cells stay close together.
                layout.append((i, max(min(width_left // len(expanding) - _GAP, widths[i]), 1)))
            else:
                layout.append((i, widths[i]))
        self._layout = layout

    def _sort_mark_width(self, column: Column) -> int:
        return 2 if self._sorted_by is not None and self._sorted_by[0] == column.name else 0

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y < self.header_height:
            style = self.get_visual_style("rows--head")
            content = self._header_content()
        else:
            i = y - self.header_height + int(self.scroll_offset.y)
            if i == 0 and not self._rows:
                style = self.visual_style
                content = Content.assemble(" ", (self.error_text or self.empty_text, "$dim"))
            elif i >= len(self._rows):
                return Strip.blank(width, self.rich_style)
            else:
                style = self.visual_style
                if i == self.cursor:
                    style = self.get_visual_style("rows--cursor")
                    if self.app.no_color and self.has_focus:
                        style += Style(reverse=True)
                content = self._row_content(self._rows[i])
        strip = Visual.to_strips(self, content, width, 1, style)[0]
        return strip.extend_cell_length(width, style.rich_style).crop(0, width)

    def _header_content(self) -> Content:
        parts: list[tuple[str, str]] = [(" ", "")]
        for i, width in self._layout:
            column = self.columns[i]
            name, style = column.name, ""
            if self._sorted_by is not None and self._sorted_by[0] == name:
                name, style = name + (" ▼" if self._sorted_by[1] else " ▲"), "$foreground"
            parts += [*fit_cell(((name, style),), width, column.align_right), (" " * _GAP, "")]
        return Content.assemble(*parts)

    def _row_content(self, cells: Sequence[Cell]) -> Content:
        parts: list[tuple[str, str]] = [(" ", "")]
        for i, width in self._layout:
            parts += [*fit_cell(cells[i], width, self.columns[i].align_right), (" " * _GAP, "")]
        return Content.assemble(*parts)

    # --- the cursor

    def watch_cursor(self, old: int, new: int) -> None:
        top = int(self.scroll_offset.y)
        for line in (old, new):
            self.refresh(Region(0, line - top + self.header_height, self.size.width, 1))
        self._scroll_to_cursor()
        self.post_message(self.CursorMoved(self, self.cursor_key))

    def _scroll_to_cursor(self) -> None:
        rows = max(self.size.height - self.header_height, 1)
        top = int(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + rows:
            self.scroll_to(y=self.cursor - rows + 1, animate=False, force=True)

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, len(self.row_keys) - 1))

    def action_cursor_up(self) -> None:
        self.cursor -= 1

    def action_cursor_down(self) -> None:
        self.cursor += 1

    def action_page_up(self) -> None:
        self.cursor -= max(self.size.height - self.header_height - 1, 1)

    def action_page_down(self) -> None:
        self.cursor += max(self.size.height - self.header_height - 1, 1)

    def action_first(self) -> None:
        self.cursor = 0

    def action_last(self) -> None:
        self.cursor = len(self.row_keys) - 1

    def action_open_line(self) -> None:
        if self.row_keys:
            self.post_message(self.RowOpened(self, self.cursor_key))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor; open the row on a double click; post `HeadingClicked` for the header."""
        if event.y < self.header_height:
            x = 1
            for i, width in self._layout:
                if x <= event.x < x + width + _GAP:
                    self.post_message(self.HeadingClicked(self, self.columns[i].name))
                x += width + _GAP
            return
        line = event.y - self.header_height + int(self.scroll_offset.y)
        if line < len(self.row_keys):
            self.cursor = line
            if event.chain == 2:
                self.post_message(self.RowOpened(self, self.cursor_key))


def _cell_width(parts: Cell) -> int:
    return sum(cell_len(text) for text, _ in parts)


def fit_cell(parts: Cell, width: int, right: bool) -> list[tuple[str, str]]:
    """Return a cell's parts, padded or cut to a width, aligned to the left or `right`."""
    current_width = _cell_width(parts)
    if current_width <= width:
        pad = (" " * (width - current_width), "")
        return [pad, *parts] if right else [*parts, pad]
    fitted, width_left = [], width - 1
    for text, style in parts:
        size = cell_len(text)
        if size > width_left:
            fitted.append((set_cell_size(text, width_left) + "…", style))
            break
        fitted.append((text, style))
        width_left -= size
    return fitted
