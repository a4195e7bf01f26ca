"""Widgets for artefacts: `Picture`, a scrollable drawing, and `Slider`, which selects a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color, ColorParseError
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from burnt.monitor.artefacts.render import Lines, StyledText

DrawFunction = Callable[[int, int, bool], Lines]
"""Draws lines for a width and height in cells, with or without colours."""

_MAX_SHADE = 0.75  # how far the darkest shade is blended towards the theme's primary colour


class Picture(ScrollView, can_focus=False):
    """Shows styled lines that are drawn for the widget's size."""

    DEFAULT_CSS = """
    Picture {
        background: $background;
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
        height: 1fr;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._draw_function: DrawFunction | None = None
        self._drawn_for: object = None
        self._lines: Lines = []
        self._styles: dict[StyledText, Style] = {}

    def show(self, draw: DrawFunction) -> None:
        """Show another drawing; does not redraw if it is the same."""
        if draw is not self._draw_function or self._drawn_for != (self.size, self._colors):
            self._draw_function = draw
            self._redraw()

    def on_resize(self) -> None:
        self._redraw()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles = {}
        if self._draw_function is not None and self._drawn_for != (self.size, self._colors):
            self._redraw()

    @property
    def _colors(self) -> bool:
        return not self.app.no_color and self.background_colors[1].ansi is None

    def _redraw(self) -> None:
        self._styles = {}
        width, height = self.size
        if self._draw_function is not None and width and height:
            self._drawn_for = self.size, self._colors
            # Two columns less: a left margin, and a scrollbar that the drawing may need.
            self._lines = self._draw_function(max(width - 2, 1), height, self._colors)
            self.virtual_size = Size(width, len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        number = y + int(self.scroll_offset.y)
        if number >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        line = [Segment(" ", self.rich_style)]
        line += [Segment(ink.text, self._style(ink)) for ink in self._lines[number]]
        return Strip(line).adjust_cell_length(self.size.width, self.rich_style)

    def _style(self, ink: StyledText) -> Style:
        key = ink._replace(text="")
        style = self._styles.get(key)
        if style is None:
            style = self._styles[key] = self._new_style(key)
        return style

    def _new_style(self, ink: StyledText) -> Style:
        style = self.rich_style + Style(bold=ink.bold)
        if not self._colors:
            return style + Style(dim=ink.color in ("$dim", "$faint"))
        _, background = self.background_colors
        color = self._color(ink.color) if ink.color else None
        if ink.background:
            background = self._color(ink.background) or background
            style += Style(bgcolor=background.rich_color)
        elif ink.shade:
            background = background.blend(self._color("$primary") or background, ink.shade * _MAX_SHADE)
            color = color or background.get_contrast_text(0.95)
            style += Style(bgcolor=background.rich_color)
        return style if color is None else style + Style(color=color.rich_color)

    def _color(self, name: str) -> Color | None:
        """Parse a colour or a theme variable; None if the theme lacks the variable."""
        if name.startswith("$"):
            name = self.app.theme_variables.get(name[1:], "")
        try:
            return Color.parse(name)
        except ColorParseError:
            return None


class Slider(Widget, can_focus=False):
    """A slider that selects one of several positions with the mouse."""

    DEFAULT_CSS = """
    Slider { height: 1; padding: 0 1; }
    """
    ALLOW_SELECT: ClassVar[bool] = False

    class Moved(Message):
        """Another position was selected with the mouse."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position

    def __init__(self) -> None:
        super().__init__()
        self._state = (0, 0, "")
        self._bar = (0, 1)  # start column and length of the line

    def show(self, position: int, count: int, label: str) -> None:
        if (position, count, label) != self._state:
            self._state = position, count, label
            self.refresh()

    def render(self) -> Content:
        position, count, label = self._state
        if count < 2:
            return Content.assemble((label, "$dim"))
        before, after = f"{label}  ", f"  {position + 1} of {count}"
        length = max(self.size.width - len(before) - len(after), 3)
        self._bar = len(before), length
        offset = round(position / (count - 1) * (length - 1))
        return Content.assemble(
            (before, ""),
            ("━" * offset, "$primary"),
            ("●", "bold $primary"),
            ("─" * (length - 1 - offset), "$faint"),
            (after, "$dim"),
        )

    def on_mouse_down(self, event: events.MouseDown) -> None:
        position, count, _ = self._state
        start, length = self._bar
        fraction = (event.x - self.gutter.left - start) / max(length - 1, 1)
        new_position = round(min(max(fraction, 0.0), 1.0) * (count - 1))
        if count > 1 and new_position != position:
            self.post_message(self.Moved(new_position))
