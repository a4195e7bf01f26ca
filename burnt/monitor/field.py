"""`Field`: a line to type a filter or a search into, there only while it is used."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

__all__ = ["Field"]


class Field(Input):
    """An input that is hidden until `open` is called, and gone again with escape.

    Args:
        placeholder: what can be typed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    DEFAULT_CSS = """
    Field { dock: bottom; height: 1; background: $surface; display: none; }
    Field.open { display: block; }
    Field.wrong { color: $error; }
    """

    class Closed(Message):
        """Typing is over: by enter, then `kept` is true, or by escape, and the text is gone."""

        def __init__(self, field: Field, kept: bool) -> None:
            self.field, self.kept = field, kept
            super().__init__()

        @property
        def control(self) -> Field:
            """The field."""
            return self.field

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, compact=True)

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
