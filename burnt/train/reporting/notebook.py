"""Output in Jupyter notebooks: a display updated in place, and its HTML; a progress bar for long work."""

from __future__ import annotations

import base64
import html
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from burnt.plot import Line, Plot


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter, VS Code, Colab or nbclient."""
    # Only a running IPython makes a notebook, so nothing needs to be imported to find out.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """One output of the current cell, which is replaced at each update."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html_text: str, plain_text: str) -> None:
        """Show HTML, or the text where a front end shows no HTML."""
        from IPython.display import display

        data = {"text/html": html_text, "text/plain": plain_text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)

    def clear(self) -> None:
        """Replace what is shown by nothing."""
        if self._handle is not None:
            self._handle.update({"text/html": "", "text/plain": ""}, raw=True)


def bar_html(done: float, total: float | None, text: str, title: str = "") -> str:
    """Return a progress bar with a text to its right, below a title; without a total, only the texts."""
    bar = ""
    if total:
        bar = f'<progress value="{min(done, total):g}" max="{total:g}" style="width:16em"></progress> '
    heading = f"<div><small>{html.escape(title)}</small></div>" if title else ""
    return f"{heading}<div>{bar}{html.escape(text)}</div>"


def table_html(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table of texts, with the names of the rows to the left; empty without columns."""
    if not columns:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows.items()
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def curves_html(curves: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]], x: str) -> str:
    """Return a drawing for each metric, with a curve for each split.

    `curves` maps a metric and a split to x and y of the points; `x` names the x axis.
    """
    images = []
    for name, splits in curves.items():
        plot = Plot([Line(f"{split}/{name}", xs, ys) for split, (xs, ys) in splits.items()], x=x)
        # As an image, since the styles of an inline SVG would apply to the whole page.
        data = base64.b64encode(plot.svg(420, 260).encode()).decode()
        images.append(f'<img alt="{html.escape(name)}" src="data:image/svg+xml;base64,{data}">')
    return f"<div>{''.join(images)}</div>" if images else ""


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
