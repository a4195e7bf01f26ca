"""Output in Jupyter notebooks: is this one, and a display that is updated in place."""

from __future__ import annotations

import html
import sys
from typing import Any

__all__ = ["NotebookDisplay", "bar_html", "in_notebook"]


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


def bar_html(done: int, total: int | None, text: str) -> str:
    """Return a progress bar with a text to its right; without a total, the text alone."""
    bar = "" if not total else f'<progress value="{min(done, total)}" max="{total}"></progress> '
    return f"<div>{bar}{html.escape(text)}</div>"
