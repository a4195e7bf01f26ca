"""`FilterInput`: an input line for filters and searches, and what its text matches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

from rich.segment import Segment
from textual import on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from burnt.errors import QueryError
from burnt.store.search import Query, RunFacts, parse_query

T = TypeVar("T")

_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL


def matcher(text: str) -> Callable[[str], bool]:
    """Return a case-insensitive test of whether a text matches a filter; raises `re.error` if it is invalid.

    The filter is words that must all occur, or ``/expression`` with an optional closing ``/``, in which ``^``
    and ``$`` match at line ends.

    >>> matcher("cnn 3")("runs/cnn-03"), matcher("/cnn-[12]/")("runs/cnn-03"), matcher("")("all")
    (True, False, True)
    """
    if text.startswith("/"):
        pattern = re.compile(text.removeprefix("/").removesuffix("/"), _FLAGS)
        return lambda name: pattern.search(name) is not None
    words = text.lower().split()
    return lambda name: all(word in name.lower() for word in words)


def run_matcher(text: str) -> tuple[Callable[[RunFacts], bool], Query | None]:
    """Return a test of whether a run matches a filter, and the query if the filter is one.

    The filter is a query of `burnt.store.search`, or ``/expression`` as in `matcher`, which is searched for
    in the run's names and state. Raises `re.error` or `QueryError` if it is invalid.
    """
    if text.startswith("/"):
        matches = matcher(text)
        return lambda facts: matches("\n".join((*facts.names[:2], facts.state))), None
    query = parse_query(text)
    return query.matches, query


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


class Filtered(Widget):
    """A screen or pane with a `FilterInput`, whose text selects what is shown."""

    matches: Callable[[str], bool] = staticmethod(matcher(""))

    def on_filter(self) -> None:
        """Show what the new filter matches."""

    def focus_filtered(self) -> None:
        """Focus what is filtered, after the filter was edited."""
        self.query("Table, Chart").first().focus()

    def action_filter(self) -> None:
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def filter_changed(self, message: FilterInput.Changed) -> None:
        message.stop()
        if (matches := self.query_one(FilterInput).parsed(matcher)) is not None:
            self.matches = matches
            self.on_filter()

    @on(FilterInput.Closed)
    def filter_closed(self, message: FilterInput.Closed) -> None:
        message.stop()
        self.focus_filtered()
