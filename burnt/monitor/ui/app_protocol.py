"""The part of the app's interface that screens and panes may use; the app itself imports them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from textual.screen import Screen
from textual.widget import Widget

from burnt.monitor.data.preferences import Preferences
from burnt.monitor.data.refresher import Refresher
from burnt.monitor.data.runs import RunView
from burnt.monitor.ui.keymap import Key


class AppProtocol(Protocol):
    """The interface of `burnt.monitor.app.MonitorApp` for its screens."""

    refresher: Refresher
    preferences: Preferences

    def read_for(self, screen: Screen[Any]) -> None:
        """Read the data of this screen from now on."""

    def open_run(self, view: RunView) -> None:
        """Open the screen of a run."""

    def open_sweep(self, folder: Path) -> None:
        """Open the screen of a sweep."""

    def compare(self, views: Sequence[RunView]) -> None:
        """Open the comparison of several runs."""

    def active_keys(self) -> list[tuple[object, Key]]:
        """Return the active keys with the nodes they belong to, innermost node first."""


def app_of(widget: Widget) -> AppProtocol:
    """Return the app of a widget."""
    return cast(AppProtocol, widget.app)
