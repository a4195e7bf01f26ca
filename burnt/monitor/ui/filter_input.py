"""`FilterInput`: an input line for filters and searches, visible only while it is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input

from burnt.errors import QueryError
from burnt.monitor.ui.filter_match import matcher

T = TypeVar("T")


class FilterInput(Input):
    """An input that is hidden until `open` is called; escape hides it again."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    DEFAULT_CSS = """
    FilterInput { height: 1; background: $surface; display: none; }
    FilterInput.open { display: block; }
    FilterInput.wrong { color: $error; }
    """

    class Closed(Message):
        """Editing has ended: with enter, or with escape, which clears the text."""

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, compact=True)
        self._error = self._remark = ""

    def current_matcher(self) -> Callable[[str], bool] | None:
        """Return the matcher for the current text; None, with an error shown, if the text is invalid."""
        return self.parsed(matcher)

    def parsed(self, parse: Callable[[str], T]) -> T | None:
        """Return the parsed text; None, with an error shown, if the text is invalid."""
        try:
            found = parse(self.value)
        except re.error as error:
            self.show_error(f"invalid regular expression: {error}")
            return None
        except QueryError as error:
            self.show_error(
                f"character {error.position + 1}: {error.what.rpartition(': ')[2]}; expected {error.expected}"
            )
            return None
        self.show_error("")
        return found

    def show_error(self, error: str) -> None:
        """Show an error at the end of the line; an empty text clears it."""
        self._error = error
        self.set_class(bool(error), "wrong")
        self.refresh()

    def show_remark(self, text: str) -> None:
        """Show a remark at the end of the line; an empty text clears it."""
        if text != self._remark:
            self._remark = text
            self.refresh()

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        message = self._error or self._remark
        # The typed text has priority: the message is cut if there is little room.
        room = self.size.width - min(len(self.value) + 1, self.size.width)
        message = f"  {message} "[:room] if message else ""
        if not message:
            return strip
        width = self.size.width - len(message)
        return Strip([*strip.crop(0, width), Segment(message, self.rich_style)])

    def open(self) -> None:
        """Show and focus the input."""
        self.add_class("open")
        self.focus()

    def close(self) -> None:
        self.remove_class("open")
        self.value = ""

    def action_cancel(self) -> None:
        self.close()
        self.post_message(self.Closed())

    async def action_submit(self) -> None:
        """Submit on enter; the input stays visible unless it is empty."""
        self.set_class(bool(self.value), "open")
        self.post_message(self.Closed())
