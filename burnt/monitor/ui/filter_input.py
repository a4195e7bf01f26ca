"""`FilterInput`: a line to type a filter or a search into, there only while it is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input

from burnt.monitor.ui.filter_match import matcher

__all__ = ["FilterInput"]


class FilterInput(Input):
    """An input that is hidden until `open` is called, and gone again with escape.

    Args:
        placeholder: what can be typed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    DEFAULT_CSS = """
    FilterInput { height: 1; background: $surface; display: none; }
    FilterInput.open { display: block; }
    FilterInput.wrong { color: $error; }
    """

    class Closed(Message):
        """Typing is over: by enter, then `kept` is true, or by escape, and the text is gone."""

        def __init__(self, field: FilterInput, kept: bool) -> None:
            self.field, self.kept = field, kept
            super().__init__()

        @property
        def control(self) -> FilterInput:
            """The field."""
            return self.field

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, compact=True)
        self._fault = self._remark = ""

    def matches(self) -> Callable[[str], bool] | None:
        """The test that is typed; None while it is no expression, and the line says why."""
        try:
            test = matcher(self.value)
        except re.error as error:
            self.blame(f"no expression: {error}")
            return None
        self.blame("")
        return test

    def blame(self, fault: str) -> None:
        """Say at the end of the line what is wrong with the text; nothing, if that is empty."""
        self._fault = fault
        self.set_class(bool(fault), "wrong")
        self.refresh()

    def remark(self, text: str) -> None:
        """Say something of the text at the end of the line; nothing, if that is empty."""
        if text != self._remark:
            self._remark = text
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """What is typed, and what is to be said of it."""
        strip = super().render_line(y)
        said = self._fault or self._remark
        # What is typed comes first: the rest is cut where there is little room.
        room = self.size.width - min(len(self.value) + 1, self.size.width)
        said = f"  {said} "[:room] if said else ""
        if not said:
            return strip
        width = self.size.width - len(said)
        return Strip([*strip.crop(0, width), Segment(said, self.rich_style)])

    def open(self) -> None:
        """Show it, with the keys."""
        self.add_class("open")
        self.focus()

    def close(self) -> None:
        """Hide it and forget what was typed."""
        self.remove_class("open")
        self.value = ""

    def action_cancel(self) -> None:
        """Escape."""
        self.close()
        self.post_message(self.Closed(self, False))

    async def action_submit(self) -> None:
        """Enter; a text stays in sight."""
        self.set_class(bool(self.value), "open")
        self.post_message(self.Closed(self, True))
