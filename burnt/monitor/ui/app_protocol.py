"""What screens and panes may ask of the app that shows them; the app itself imports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from textual.screen import Screen
from textual.widget import Widget

from burnt.monitor.data.refresher import Refresher
from burnt.monitor.data.runs import RunView
from burnt.monitor.ui.keymap import Key

__all__ = ["AppProtocol", "app_of"]


class AppProtocol(Protocol):
    """`burnt.monitor.app.MonitorApp`, as its screens know it."""

    refresher: Refresher

    def read_for(self, screen: Screen[Any]) -> None:
        """From now on read what this screen needs."""

    def open_run(self, view: RunView) -> None:
        """Show a run."""

    def compare(self, views: Sequence[RunView]) -> None:
        """Show some runs in one chart."""

    def active_keys(self) -> list[tuple[object, Key]]:
        """The keys that do something now, nearest first, with whom they belong to."""


def app_of(widget: Widget) -> AppProtocol:
    """The app that a widget is shown by."""
    return cast(AppProtocol, widget.app)
