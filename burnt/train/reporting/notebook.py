"""Output in Jupyter notebooks: is this one, a display that is updated in place, and what it shows as HTML."""

from __future__ import annotations

import base64
import html
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
