"""Axes around a drawing, as text and as SVG, which `Plot` and `Scatter` share."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEGEND_HEIGHT, TOP = 20, 14  # pixels
DIGIT_WIDTH, LETTER_WIDTH = 7, 7.2  # pixels in 12 px sans-serif, wide fonts included
_RIGHT, _BOTTOM = 18, 42
# The colours of the text suit a light and a dark page; browsers and GitHub apply the second one.
_STYLE = "text{font:12px sans-serif;fill:#57606a}.grid{stroke:#8886;stroke-width:.5}.axis{stroke:#888}"
_DARK_STYLE = "@media(prefers-color-scheme:dark){text{fill:#9da7b3}}"


class Range(NamedTuple):
    """The ends of an axis."""

    low: float
    high: float

    def share(self, at: float) -> float:
        """Return a position as a share of the axis, from 0 to 1."""
        return (at - self.low) / (self.high - self.low)


def text_axes(
    cells: Sequence[str], y_ticks: Mapping[int, str], x_ticks: Mapping[int, str], x: str, margin: int
) -> list[str]:
    """Return lines of cells with axes: texts by row to the left, `margin` wide, and by column below."""
    columns = len(cells[0])
    lines = [
        f"{y_ticks.get(row, ''):>{margin}}{'┤' if row in y_ticks else '│'}{line}"
        for row, line in enumerate(cells)
    ]
    axis = "".join("┬" if column in x_ticks else "─" for column in range(columns))
    names = list(" " * columns)
    for column, name in x_ticks.items():
        start = max(column - len(name) // 2, 0)
        if start + len(name) < columns - len(x):
            names[start : start + len(name)] = name
    names[columns - len(x) :] = x
    return [*lines, f"{'':{margin}}└{axis}", f"{'':{margin}} {''.join(names)}"]


class SvgFrame(NamedTuple):
    """The axes of an SVG document, in pixels; positions are shares of the axes, from 0 to 1."""

    width: int
    height: int
    margin: int
    top: int

    def x_at(self, share: float) -> float:
        """Return the x coordinate of a position."""
        return self.margin + share * (self.width - self.margin - _RIGHT)

    def y_at(self, share: float) -> float:
        """Return the y coordinate of a position."""
        bottom = self.height - _BOTTOM
        return bottom - share * (bottom - self.top)

    def start(self, style: str) -> str:
        """Return the first line of the document."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}"><style>{_STYLE}{style}{_DARK_STYLE}</style>'
        )

    def axes(
        self, y_ticks: Sequence[tuple[float, str]], x_ticks: Sequence[tuple[float, str]], x_name: str
    ) -> list[str]:
        """Return the axes with their ticks, (position, text) pairs, and the name of the x axis."""
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        parts = []
        for share, text in y_ticks:
            y = self.y_at(share)
            parts.append(_rule(self.margin, y, right, y, "grid"))
            parts.append(svg_text(self.margin - 8, y + 4, text, "end"))
        parts.append(_rule(self.margin, bottom, right, bottom, "axis"))
        for share, text in x_ticks:
            x = self.x_at(share)
            parts.append(_rule(x, bottom, x, bottom + 4, "axis"))
            parts.append(svg_text(x, bottom + 17, text, "middle"))
        return [*parts, svg_text((self.margin + right) / 2, self.height - 8, x_name, "middle")]


def shorten(text: str, length: int) -> str:
    """Cut a text to a length, with an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    """Return a text of an SVG document."""
    return f'<text x="{x:.5g}" y="{y:.5g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.5g}" y1="{y1:.5g}" x2="{x2:.5g}" y2="{y2:.5g}"/>'
