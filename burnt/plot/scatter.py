"""Scatter: a drawing of named points on logarithmic axes, as text for a terminal and as SVG."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from burnt.plot.braille import PALETTE
from burnt.plot.ticks import (
    DIGIT_WIDTH,
    LEGEND_HEIGHT,
    LETTER_WIDTH,
    TOP,
    Range,
    SvgFrame,
    log10_ticks,
    shorten,
    svg_text,
    text_axes,
)

_MARKERS = "●○▲△■□◆◇"
_TITLE_HEIGHT = 18  # pixels above the axes, for the name of the y axis
_LABEL_WIDTH = 6.6  # pixels of a letter of a point's label, in 11 px sans-serif
_STYLE = ".point{font-size:11px}circle{fill-opacity:.75}"


class Points(NamedTuple):
    """A group of points: its name, positions above 0, and a label for each point."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    labels: Sequence[str]


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A drawing of points in groups; both axes are logarithmic.

    Its `repr` is the drawing as text; a notebook shows it as SVG. A y of 0 is drawn at the lower edge, a y
    that is not finite is left out.

    Args:
        groups: the points, by group.
        x: the name of the x axis.
        y: the name of the y axis.
        labelled: how many points have their label in the drawing, by descending y. In SVG every point
            shows its label under the pointer.

    >>> print(Scatter([Points("a", [1, 10, 100], [0.1, 0.01, 0.001], "xyz")], "size", "error").text(28, 10))
      ● a
           error
      0.1┤ ●x
         │
     0.01┤          ●y
         │
         │
    0.001┤                    ●z
         └─┬────────┬─────────┬─
           1       10       size
    """

    groups: Sequence[Points]
    x: str
    y: str
    labelled: int = 6

    def __repr__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str:
        return self.svg()

    def text(self, width: int = 76, height: int = 20) -> str:
        """Draw in characters.

        Args:
            width: the width in characters.
            height: the height in lines, with axis and legend.
        """
        rows = max(height - 3 - len(self.groups), 3)
        x_range, y_range = self._ranges()
        y_ticks = log10_ticks(*y_range, max(rows // 2, 2))
        margin = max(len(tick.text) for tick in y_ticks)
        columns = max(width - margin - 1, 10)
        cells = [list(" " * columns) for _ in range(rows)]
        places = [
            (marker, label, round(x * (columns - 1)), round((1 - y) * (rows - 1)))
            for marker, label, x, y in self._points(x_range, y_range)
        ]
        for marker, _, column, row in places:
            if cells[row][column] == " ":
                cells[row][column] = _MARKERS[marker % len(_MARKERS)]
        for _, label, column, row in places[: self.labelled]:
            free = _place(cells[row], column, label)
            if free is not None:
                cells[row][free : free + len(label)] = label
        names = {round((1 - y_range.share(at)) * (rows - 1)): text for at, text in y_ticks}
        lines = [
            f"  {_MARKERS[i % len(_MARKERS)]} {shorten(group.name, width - 4)}"
            for i, group in enumerate(self.groups)
        ]
        lines.append(f"{'':{margin}}  {self.y}")
        x_ticks = {
            round(x_range.share(at) * (columns - 1)): text
            for at, text in log10_ticks(*x_range, max(columns // 9, 3))
        }
        lines += text_axes(["".join(row) for row in cells], names, x_ticks, self.x, margin)
        return "\n".join(line.rstrip() for line in lines)

    def svg(self, width: int = 720, height: int = 400) -> str:
        """Draw as an SVG document.

        Args:
            width: the width in pixels.
            height: the height in pixels.
        """
        x_range, y_range = self._ranges()
        y_ticks = log10_ticks(*y_range, max(height // 50, 2))
        margin = 16 + DIGIT_WIDTH * max(len(tick.text) for tick in y_ticks)
        top = TOP + LEGEND_HEIGHT * len(self.groups) + _TITLE_HEIGHT
        frame = SvgFrame(width, height, margin, top)
        parts = [frame.start(_STYLE)]
        for number, group in enumerate(self.groups):
            at = TOP + LEGEND_HEIGHT * number
            parts.append(_circle(margin + 6, at, number, group.name))
            name = shorten(group.name, int((width - margin - 18) / LETTER_WIDTH))
            parts.append(svg_text(margin + 18, at + 4, name, "start"))
        parts.append(svg_text(8, top - 12, self.y, "start"))
        parts += frame.axes(
            [(y_range.share(at), text) for at, text in y_ticks],
            [(x_range.share(at), text) for at, text in log10_ticks(*x_range, max(width // 80, 2))],
            self.x,
        )
        points = [
            (number, name, frame.x_at(x), frame.y_at(y))
            for number, name, x, y in self._points(x_range, y_range)
        ]
        taken = [_Box(x - 4, y - 4, x + 4, y + 4) for *_, x, y in points]
        for rank, (group_number, name, x, y) in enumerate(points):
            parts.append(_circle(x, y, group_number, name))
            if rank >= self.labelled:
                continue
            length = _LABEL_WIDTH * len(name)
            # To the right, to the left, above or below: where nothing is yet.
            for start, base in ((x + 7, y + 4), (x - 7 - length, y + 4), (x + 4, y - 7), (x + 4, y + 15)):
                box = _Box(start, base - 10, start + length, base + 3)
                inside = margin <= start and box.right <= width - 2 and top - 8 <= box.top
                if inside and not any(box.overlaps(other) for other in taken):
                    taken.append(box)
                    # What is to the left ends there, however wide its letters are.
                    place = f'x="{start:.5g}"' if start > x else f'x="{box.right:.5g}" text-anchor="end"'
                    parts.append(f'<text class="point" {place} y="{base:.5g}">{html.escape(name)}</text>')
                    break
        return "\n".join([*parts, "</svg>\n"])

    def _points(self, x_range: Range, y_range: Range) -> list[tuple[int, str, float, float]]:
        """Return each point's group, label and position between 0 and 1, the largest y first."""
        found = []
        for number, group in enumerate(self.groups):
            for x, y, label in zip(group.xs, group.ys, group.labels, strict=True):
                if math.isfinite(y):
                    height = 0.0 if y <= 0 else y_range.share(math.log10(y))
                    found.append((number, label, x_range.share(math.log10(x)), height))
        return sorted(found, key=lambda point: -point[3])

    def _ranges(self) -> tuple[Range, Range]:
        """Return the ends of both axes as powers of ten."""
        xs = [x for group in self.groups for x in group.xs]
        ys = [y for group in self.groups for y in group.ys if math.isfinite(y) and y > 0]
        return _range(xs), _range(ys)


def _range(values: Sequence[float]) -> Range:
    """Return the ends of an axis as powers of ten: with some space, and 0.7 decades, which have ticks."""
    low, high = (math.log10(min(values)), math.log10(max(values))) if values else (-1.0, 0.0)
    space = max(0.05 * (high - low), (0.7 - (high - low)) / 2)
    return Range(low - space, high + space)


def _circle(x: float, y: float, number: int, label: str) -> str:
    color = PALETTE[number % len(PALETTE)]
    return (
        f'<circle cx="{x:.5g}" cy="{y:.5g}" r="4" fill="{color}"><title>{html.escape(label)}</title></circle>'
    )


def _place(cells: Sequence[str], column: int, label: str) -> int | None:
    """Return where a label fits next to a marker, in cells that are empty; None if it does not."""
    for start in (column + 1, column - len(label)):
        free = cells[max(start, 0) : start + len(label)]
        if start >= 0 and len(free) == len(label) and all(cell == " " for cell in free):
            return start
    return None
