"""`Table`: a table of lines with a cursor, which repaints only the lines that changed."""

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

from burnt.monitor.format import clean
from burnt.monitor.ui.keymap import LIST, bindings

__all__ = ["Cell", "Column", "Table", "cell"]

Cell = tuple[tuple[str, str], ...]
"""Texts with their styles, as Textual writes them, side by side."""

_GAP = 2
_NARROW = 18  # what a column that gives way keeps


def cell(text: str, style: str = "") -> Cell:
    """A text in one style, with what a terminal would obey escaped."""
    return ((clean(text), style),)


class Column(NamedTuple):
    """A column.

    Args:
        name: its heading.
        right: whether its cells are set to the right.
        grows: whether it is as wide as there is room for, while others have the width that they need.
        spare: columns of higher numbers are left out first where there is no room; 0 stays.
    """

    name: str
    right: bool = False
    grows: bool = False
    spare: int = 0


class _OfRows(Message):
    """What a table tells."""

    def __init__(self, rows: Table) -> None:
        super().__init__()
        self.rows = rows

    @property
    def control(self) -> Table:
        """The table."""
        return self.rows


class _OfLine(_OfRows):
    """What it tells of a line."""

    def __init__(self, rows: Table, key: object) -> None:
        super().__init__(rows)
        self.key = key


class Table(ScrollView, can_focus=True):
    """A table with a line of headings that stays.

    Args:
        columns: what it has; may be given anew with `show`.
        empty: what is said instead of rows when there are none.
        head: whether there is a line of headings.
    """

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

    class Opened(_OfLine):
        """A line was chosen by enter or a double click."""

    class Moved(_OfLine):
        """The cursor is on another line."""

    class Headed(_OfRows):
        """A heading was clicked."""

        def __init__(self, rows: Table, column: str) -> None:
            super().__init__(rows)
            self.column = column

    def __init__(
        self, columns: Sequence[Column], *, empty: str = "", head: bool = True, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.columns = list(columns)
        self.empty = empty
        self.fault = ""  # said instead of that when rows could not be read
        self.head = int(head)
        self.keys: list[object] = []
        self._rows: list[Sequence[Cell]] = []
        self._layout: list[tuple[int, int]] = []  # (column, width)
        self._widths: list[int] = []
        self._sizes: dict[object, tuple[Sequence[Cell], tuple[int, ...]]] = {}  # of each row's cells
        self._sorted: tuple[str, bool] | None = None

    def show(
        self,
        rows: Sequence[tuple[object, Sequence[Cell]]],
        *,
        columns: Sequence[Column] | None = None,
        sorted_by: tuple[str, bool] | None = None,
    ) -> None:
        """Show other rows; the cursor stays on the row of its key, and nothing is repainted that is the same.

        Args:
            rows: (key, cells) pairs; keys tell rows apart, and are what messages carry. Cells that are the
                same object as before are not measured again.
            columns: other columns than before.
            sorted_by: the column whose heading says so, and whether it is descending.
        """
        here = self.key
        old, again = self._rows, sorted_by != self._sorted or columns is not None
        self._sorted = sorted_by
        if columns is not None:
            self.columns = list(columns)
        self.keys = [key for key, _ in rows]
        self._rows = [cells for _, cells in rows]
        known, self._sizes = self._sizes, {}
        for key, cells in rows:
            size = known.get(key)
            # Of long tables most rows are those of before.
            self._sizes[key] = size if size and size[0] is cells else (cells, tuple(map(_width, cells)))
        widths = [max(column) for column in zip(*(sizes for _, sizes in self._sizes.values()), strict=False)]
        widths = (widths or [0] * len(self.columns))[: len(self.columns)]
        if again or widths != self._widths or len(old) != len(self._rows):
            self._widths = widths
            self._arrange()
            self.refresh()
        else:
            top = int(self.scroll_offset.y)
            for y, (before, now) in enumerate(zip(old, self._rows, strict=True)):
                if before != now and 0 <= y - top < self.size.height:
                    self.refresh(Region(0, y - top + self.head, self.size.width, 1))
        if here in self.keys:
            self.cursor = self.keys.index(here)
        else:
            self.cursor = min(self.cursor, max(len(self.keys) - 1, 0))

    @property
    def key(self) -> object:
        """The key of the line under the cursor; None when there are no lines."""
        return self.keys[self.cursor] if self.cursor < len(self.keys) else None

    def move_to(self, key: object) -> None:
        """Set the cursor to the line of a key, if there is one."""
        if key in self.keys:
            self.cursor = self.keys.index(key)

    # --- drawing

    def on_resize(self) -> None:
        """Columns fit themselves to the new width."""
        self._arrange()
        self._reveal()

    def _arrange(self) -> None:
        """Which columns are shown, and how wide they are."""
        self.virtual_size = Size(self.size.width, len(self._rows) + self.head)
        available = self.scrollable_content_region.width - 2
        names = [cell_len(column.name) + (self.head and 2 * (not column.grows)) for column in self.columns]
        wide = [
            max(width, self.head * cell_len(column.name) + self._mark_width(column))
            for column, width in zip(self.columns, self._widths or names, strict=True)
        ]
        kept = list(range(len(self.columns)))

        def needed() -> int:
            return sum(
                (min(wide[i], _NARROW) if self.columns[i].grows else wide[i]) + _GAP for i in kept
            ) - _GAP  # fmt: skip

        for i in sorted(kept, key=lambda i: -self.columns[i].spare):
            if needed() <= available or not self.columns[i].spare:
                break
            kept.remove(i)
        growing = [i for i in kept if self.columns[i].grows]
        left = available - sum(wide[i] + _GAP for i in kept if i not in growing) + _GAP
        layout = []
        for i in kept:
            if i in growing:
                # Not wider than what is in it: cells that are read together stay side by side.
                layout.append((i, max(min(left // len(growing) - _GAP, wide[i]), 1)))
            else:
                layout.append((i, wide[i]))
        self._layout = layout

    def _mark_width(self, column: Column) -> int:
        return 2 if self._sorted is not None and self._sorted[0] == column.name else 0

    def render_line(self, y: int) -> Strip:
        """A line of the screen."""
        width = self.size.width
        if y < self.head:
            style = self.get_visual_style("rows--head")
            content = self._heading()
        else:
            i = y - self.head + int(self.scroll_offset.y)
            if i == 0 and not self._rows:
                style = self.visual_style
                content = Content.assemble(" ", (self.fault or self.empty, "$dim"))
            elif i >= len(self._rows):
                return Strip.blank(width, self.rich_style)
            else:
                style = self.visual_style
                if i == self.cursor:
                    style = self.get_visual_style("rows--cursor")
                    if self.app.no_color and self.has_focus:
                        style += Style(reverse=True)
                content = self._line(self._rows[i])
        strip = Visual.to_strips(self, content, width, 1, style)[0]
        return strip.extend_cell_length(width, style.rich_style).crop(0, width)

    def _heading(self) -> Content:
        parts: list[tuple[str, str]] = [(" ", "")]
        for i, width in self._layout:
            column = self.columns[i]
            name, style = column.name, ""
            if self._sorted is not None and self._sorted[0] == name:
                name, style = name + (" ▼" if self._sorted[1] else " ▲"), "$foreground"
            parts += [*_fit(((name, style),), width, column.right), (" " * _GAP, "")]
        return Content.assemble(*parts)

    def _line(self, cells: Sequence[Cell]) -> Content:
        parts: list[tuple[str, str]] = [(" ", "")]
        for i, width in self._layout:
            parts += [*_fit(cells[i], width, self.columns[i].right), (" " * _GAP, "")]
        return Content.assemble(*parts)

    # --- the cursor

    def watch_cursor(self, old: int, new: int) -> None:
        """Repaint the two lines, and tell."""
        top = int(self.scroll_offset.y)
        for line in (old, new):
            self.refresh(Region(0, line - top + self.head, self.size.width, 1))
        self._reveal()
        self.post_message(self.Moved(self, self.key))

    def _reveal(self) -> None:
        rows = max(self.size.height - self.head, 1)
        top = int(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + rows:
            self.scroll_to(y=self.cursor - rows + 1, animate=False, force=True)

    def validate_cursor(self, cursor: int) -> int:
        """Within the lines."""
        return max(0, min(cursor, len(self.keys) - 1))

    def action_cursor_up(self) -> None:
        """Up."""
        self.cursor -= 1

    def action_cursor_down(self) -> None:
        """Down."""
        self.cursor += 1

    def action_page_up(self) -> None:
        """Up by what is shown."""
        self.cursor -= max(self.size.height - self.head - 1, 1)

    def action_page_down(self) -> None:
        """Down by what is shown."""
        self.cursor += max(self.size.height - self.head - 1, 1)

    def action_first(self) -> None:
        """To the first line."""
        self.cursor = 0

    def action_last(self) -> None:
        """To the last line."""
        self.cursor = len(self.keys) - 1

    def action_open_line(self) -> None:
        """Tell that the line was chosen."""
        if self.keys:
            self.post_message(self.Opened(self, self.key))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, a second one opens; one on a heading is told."""
        if event.y < self.head:
            x = 1
            for i, width in self._layout:
                if x <= event.x < x + width + _GAP:
                    self.post_message(self.Headed(self, self.columns[i].name))
                x += width + _GAP
            return
        line = event.y - self.head + int(self.scroll_offset.y)
        if line < len(self.keys):
            self.cursor = line
            if event.chain == 2:
                self.post_message(self.Opened(self, self.key))


def _width(parts: Cell) -> int:
    return sum(cell_len(text) for text, _ in parts)


def _fit(parts: Cell, width: int, right: bool) -> list[tuple[str, str]]:
    """The cell in exactly so many places: padded, or cut with an ellipsis."""
    used = _width(parts)
    if used <= width:
        pad = (" " * (width - used), "")
        return [pad, *parts] if right else [*parts, pad]
    fitted, left = [], width - 1
    for text, style in parts:
        size = cell_len(text)
        if size > left:
            fitted.append((set_cell_size(text, left) + "…", style))
            break
        fitted.append((text, style))
        left -= size
    return fitted
