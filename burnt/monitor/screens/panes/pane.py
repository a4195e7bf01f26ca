"""`Pane`: what the panes of a run's screen share. It reads in the reading thread and shows in the app's."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.containers import Vertical

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clean
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.keymap import Key
from burnt.monitor.ui.table import Table

__all__ = ["Pane"]

_LOG = logging.getLogger(__name__)


class Pane(Vertical):
    """A part of what is known of a run.

    Args:
        view: the run, which the screen follows.
    """

    TITLE: ClassVar[str]
    SHORT: ClassVar[str] = ""  # the title where there is little room, if it is another
    KEYS: ClassVar[Sequence[Key]] = ()

    def __init__(self, view: RunView) -> None:
        super().__init__(classes="pane")
        self.view = view
        self._asked = 0
        self._seen: object = None

    @abstractmethod
    def read(self) -> Callable[[], Any] | None:
        """In the reading thread: read what is shown; returns what shows it in the app's thread.

        Raises:
            BurntError: it cannot be read, which the pane then says.
        """

    def token(self) -> object:
        """What is shown depends on this alone: as long as it is the same, nothing is read."""
        return self.view.version, self._asked

    def again(self) -> None:
        """Something else is asked for, by a key."""
        self._asked += 1
        app_of(self).refresher.wake()

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reading thread: what shows the news, if there are any."""
        unreadable = self.view.error is not None
        token = self.token(), unreadable
        if token == self._seen:
            return None
        self._seen = token
        try:
            show = self.read()
        except BurntError as error:
            show = partial(self.fail, error)
        except Exception as error:  # anybody may write into a run's file
            _LOG.exception("%s: the pane %s cannot be read", self.view.label, self.TITLE)
            show = partial(self.fail, error)
        return None if show is None and not unreadable else partial(self._show_read, show)

    async def _show_read(self, show: Callable[[], Any] | None) -> None:
        """Show what was read; tables without rows say that the run cannot be read, if it cannot."""
        for rows in self.query(Table):
            fault = self.unreadable()
            if fault != rows.fault:
                rows.fault = fault
                rows.refresh()
        if show is not None and (showing := show()) is not None:
            await showing

    def unreadable(self) -> str:
        """What is said instead of what the run has, if it cannot be read; empty if it can."""
        if self.view.error is None:
            return ""
        return "the run was deleted" if self.view.state == "deleted" else "the run cannot be read"

    def fail(self, error: Exception) -> None:
        """Say why there is nothing to show, unless the run's head says so already."""
        if self.view.error is None:
            what = error.what if isinstance(error, BurntError) else f"cannot be read: {error!r}"
            self.app.notify(clean(what), severity="error", title=self.TITLE, markup=False)

    def enter(self) -> None:
        """The pane is shown: the keys go to its main part."""
        parts = self.query("Table, Chart")
        self.screen.set_focus(parts.first() if parts else None)
