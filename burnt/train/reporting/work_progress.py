"""WorkProgress: a bar for work that takes long, in a terminal or a notebook."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from burnt.train.reporting.notebook import NotebookDisplay, bar_html, in_notebook

_SECONDS_BEFORE = 2.0  # shorter work shows nothing
_SECONDS_BETWEEN = 0.25


class WorkProgress:
    """Context manager that shows a bar once the work has taken two seconds, and removes it at the end.

    `unit` is what is counted. Without a terminal and a notebook nothing is shown.
    """

    def __init__(self, text: str, total: int | None, unit: str, *, show: bool = True) -> None:
        self._text, self._total, self._unit = text, total, unit
        self._is_in_notebook = show and in_notebook()
        self._is_shown = self._is_in_notebook or (show and sys.stderr.isatty())
        self._done = 0
        self._next = time.monotonic() + _SECONDS_BEFORE
        self._display: NotebookDisplay | None = None
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def advance(self) -> None:
        """Count a step."""
        self._done += 1
        if self._is_shown and (now := time.monotonic()) >= self._next:
            self._next = now + _SECONDS_BETWEEN
            self._draw()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._display is not None:
            self._display.clear()

    def _draw(self) -> None:
        if self._is_in_notebook:
            if self._display is None:
                self._display = NotebookDisplay()
            of = f" of {self._total:,}" if self._total else ""
            text = f"{self._text}: {self._done:,}{of} {self._unit}"
            self._display.show(bar_html(self._done, self._total, text), text)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(
                *columns,
                TextColumn(self._unit),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._text, total=self._total)
        self._bar.update(self._task, completed=self._done)
