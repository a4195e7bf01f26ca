"""`Pane`: the base class of a run's panes. It reads in the reader thread and draws in the app's thread."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from burnt.errors import BurntError, clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.filter_input import Filtered, FilterInput
from burnt.monitor.ui.keymap import FILTER, Key, bindings
from burnt.monitor.ui.table import Column, Row, Table

_LOG = logging.getLogger(__name__)


class Pane(Vertical):
    """One pane of a run's screen."""

    TITLE: ClassVar[str]
    SHORT: ClassVar[str] = ""  # a shorter title for narrow screens; empty uses the title
    KEYS: ClassVar[Sequence[Key]] = ()

    def __init__(self, view: RunView) -> None:
        super().__init__(classes="pane")
        self.view = view
        self._num_requests = 0
        self._last_token: object = None

    @abstractmethod
    def read(self) -> Callable[[], Any] | None:
        """In the reader thread: read the data; return a function that shows it in the app's thread."""

    def token(self) -> object:
        """Return a value that changes when the pane's data may have; while it is equal, nothing is read."""
        return self.view.version, self._num_requests

    def request_read(self) -> None:
        self._num_requests += 1
        app_of(self).refresher.wake()

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reader thread: read if the token changed; return what shows the data, or None."""
        is_unreadable = self.view.error is not None
        token = self.token(), is_unreadable
        if token == self._last_token:
            return None
        self._last_token = token
        try:
            show = self.read()
        except BurntError as error:
            show = partial(self.show_error, error)
        except Exception as error:  # other programs may write to a run's file
            _LOG.exception("%s: the pane %s cannot be read", self.view.label, self.TITLE)
            show = partial(self.show_error, error)
        return None if show is None and not is_unreadable else partial(self._show_read, show)

    async def _show_read(self, show: Callable[[], Any] | None) -> None:
        """Show what was read; if the run cannot be read, empty tables say so."""
        for table in self.query(Table):
            error_text = self.unreadable_text()
            if error_text != table.error_text:
                table.error_text = error_text
                table.refresh()
        if show is not None and (awaitable := show()) is not None:
            await awaitable

    def unreadable_text(self) -> str:
        """Return the text for empty tables of a run that cannot be read; empty if it can be read."""
        if self.view.error is None:
            return ""
        return "the run was deleted" if self.view.state == "deleted" else "the run cannot be read"

    def show_error(self, error: Exception) -> None:
        """Notify of a read error, unless the run's header shows it already."""
        if self.view.error is None:
            message = (
                error.what if isinstance(error, BurntError) else f"cannot read this pane's data: {error!r}"
            )
            self.app.notify(clean(message), severity="error", title=self.TITLE, markup=False)

    def take_focus(self) -> None:
        """Move the focus to the pane's first table or chart."""
        parts = self.query("Table, Chart")
        self.screen.set_focus(parts.first() if parts else None)


class FilterPane(Pane, Filtered):
    """A pane with a `FilterInput`, whose text selects what is read."""

    KEYS: ClassVar[Sequence[Key]] = FILTER
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(FILTER)]
    FILTER_HINT = "words, or /regular expression/"

    def on_filter(self) -> None:
        self.request_read()

    def focus_filtered(self) -> None:
        self.take_focus()


class TablePane(FilterPane):
    """A pane with a table whose rows a text filters."""

    COLUMNS: ClassVar[Sequence[Column]]
    EMPTY: ClassVar[str]  # shown if there are no rows at all
    NO_MATCH: ClassVar[str]

    def compose(self) -> ComposeResult:
        yield Table(self.COLUMNS, empty_text=self.EMPTY)
        yield FilterInput(self.FILTER_HINT)

    @abstractmethod
    def rows(self) -> Sequence[tuple[str, Row]]:
        """In the reader thread: return the text that filters match and the table's row, of each entry."""

    def read(self) -> Callable[[], Any]:
        matches, rows = self.matches, self.rows()
        return partial(self.show_rows, [row for text, row in rows if matches(text)], bool(rows))

    def show_rows(self, rows: Sequence[Row], has_any: bool) -> None:
        table = self.query_one(Table)
        table.empty_text = self.NO_MATCH if has_any else self.EMPTY
        table.show(rows)
