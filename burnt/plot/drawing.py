"""Plot: a drawing of a few curves, as text for a terminal and as SVG."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from burnt.plot.braille import CHARACTERS, line_masks, line_sample
from burnt.plot.styles import DASH_PATTERNS, PALETTE
from burnt.plot.ticks import Tick, linear_ticks, log_ticks

_LEGEND_HEIGHT, _TOP, _RIGHT, _BOTTOM = 20, 14, 18, 42  # pixels
_DIGIT_WIDTH, _LETTER_WIDTH = 7, 7.2  # pixels in 12 px sans-serif, wide fonts included
# The colours of the text suit a light and a dark page; browsers and GitHub apply the second one.
_STYLE = (
    "text{font:12px sans-serif;fill:#57606a}.grid{stroke:#8886;stroke-width:.5}.axis{stroke:#888}"
    "polyline{fill:none;stroke-width:2;stroke-linejoin:round}"
    "@media(prefers-color-scheme:dark){text{fill:#9da7b3}}"
)


class Line(NamedTuple):
    """A curve: its name, and its points by ascending x. A y that is not finite is a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Plot:
    """A drawing of curves over a common x axis; the y axis includes 0 and is linear.

    Its `repr` is the drawing as text; a notebook shows it as SVG.

    Args:
        lines: the curves.
        x: the name of the x axis.
        log_x: whether the x axis is logarithmic; then every x must be above 0.

    >>> line = Line("a line", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    >>> print(Plot([line], x="steps").text(width=24, height=7))
      ⠒⠒⠒ a line
    4┤                 ⣀⡠⠤⠒⠊
     │           ⢀⡠⠤⠒⠊⠉
    2┤     ⢀⣀⠤⠔⠒⠉⠁
    0┤⣀⠤⠔⠒⠉⠁
     └┬──────────┬─────────┬
      0          2     steps
    """

    lines: Sequence[Line]
    x: str = "step"
    log_x: bool = False

    def __repr__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str:
        return self.svg()

    def text(self, width: int = 76, height: int = 18) -> str:
        """Draw in braille characters.

        Args:
            width: the width in characters.
            height: the height in lines, with axis and legend.
        """
        dashes = list(DASH_PATTERNS.values())
        rows = max(height - 2 - len(self.lines), 3)
        (left, right), (low, high) = self._x_range(), self._y_range()
        y_ticks = linear_ticks(low, high, rows // 3 + 2)
        margin = max(len(tick.text) for tick in y_ticks)
        columns = max(width - margin - 1, 10)
        dots = [[0] * columns for _ in range(rows)]
        for number, line in enumerate(self.lines):
            xs = [(self._x_at(x) - left) / (right - left) * (2 * columns - 1) for x in line.xs]
            ys = [_gap(y, (high - y) / (high - low) * (4 * rows - 1)) for y in line.ys]
            masks = line_masks(xs, ys, 2 * columns, 4 * rows, dashes[number % len(dashes)])
            for row in range(rows):
                for column in range(columns):
                    first, second = (masks[2 * column + i] >> 4 * row & 15 for i in (0, 1))
                    dots[row][column] |= first | second << 4
        labels = {round((high - tick.at) / (high - low) * (4 * rows - 1)) // 4: tick.text for tick in y_ticks}
        text = [
            f"{'':{margin}} {line_sample(dashes[number % len(dashes)], 3)} {_shorten(line.name, columns - 4)}"
            for number, line in enumerate(self.lines)
        ]
        for row in range(rows):
            edge = "┤" if row in labels else "│"
            cells = "".join(CHARACTERS[bits] if bits else " " for bits in dots[row])
            text.append(f"{labels.get(row, ''):>{margin}}{edge}{cells}")
        x_ticks = {
            round((at - left) / (right - left) * (2 * columns - 1)) // 2: text
            for at, text in self._x_ticks(max(columns // 8, 3))
        }
        axis = "".join("┬" if column in x_ticks else "─" for column in range(columns))
        names = list(" " * columns)
        for column, name in x_ticks.items():
            start = max(column - len(name) // 2, 0)
            if start + len(name) <= columns - len(self.x) - 1:
                names[start : start + len(name)] = name
        names[columns - len(self.x) :] = self.x
        text += [f"{'':{margin}}└{axis}", f"{'':{margin}} {''.join(names)}"]
        return "\n".join(line.rstrip() for line in text)

    def svg(self, width: int = 640, height: int = 320) -> str:
        """Draw as an SVG document.

        Args:
            width: the width in pixels.
            height: the height in pixels.
        """
        (left, right), (low, high) = self._x_range(), self._y_range()
        y_ticks = linear_ticks(low, high, max(height // 50, 2))
        margin = 16 + _DIGIT_WIDTH * max(len(tick.text) for tick in y_ticks)
        top = _TOP + _LEGEND_HEIGHT * len(self.lines)
        bottom = height - _BOTTOM

        def x_at(x: float) -> float:
            return margin + (self._x_at(x) - left) / (right - left) * (width - margin - _RIGHT)

        def y_at(y: float) -> float:
            return bottom - (y - low) / (high - low) * (bottom - top)

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>'
        ]
        for tick in y_ticks:
            parts.append(_rule(margin, y_at(tick.at), width - _RIGHT, y_at(tick.at), "grid"))
            parts.append(_label(margin - 8, y_at(tick.at) + 4, tick.text, "end"))
        parts.append(_rule(margin, bottom, width - _RIGHT, bottom, "axis"))
        for position, text in self._x_ticks(max(width // 80, 2)):
            x = margin + (position - left) / (right - left) * (width - margin - _RIGHT)
            parts.append(_rule(x, bottom, x, bottom + 4, "axis"))
            parts.append(_label(x, bottom + 17, text, "middle"))
        parts.append(_label((margin + width - _RIGHT) / 2, height - 8, self.x, "middle"))
        for number, line in enumerate(self.lines):
            color = PALETTE[number % len(PALETTE)]
            for segment in _segments(line):
                points = _without_collinear([(x_at(x), y_at(y)) for x, y in segment])
                text = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
                parts.append(f'<polyline stroke="{color}" points="{text}"/>')
            at = _TOP + _LEGEND_HEIGHT * number
            parts.append(f'<polyline stroke="{color}" points="{margin},{at} {margin + 22},{at}"/>')
            name = _shorten(line.name, int((width - margin - 28) / _LETTER_WIDTH))
            parts.append(_label(margin + 28, at + 4, name, "start"))
        return "\n".join([*parts, "</svg>\n"])

    def _x_range(self) -> tuple[float, float]:
        """Return the ends of the x axis, as `_x_at` returns positions."""
        xs = [self._x_at(x) for line in self.lines for x in (line.xs[0], line.xs[-1])]
        return min(xs), max(max(xs), min(xs) + 1)

    def _x_at(self, x: float) -> float:
        return math.log10(x) if self.log_x else x

    def _x_ticks(self, count: int) -> list[Tick]:
        left, right = self._x_range()
        if not self.log_x:
            return linear_ticks(left, right, count, whole=True)
        return [Tick(self._x_at(at), text) for at, text in log_ticks(10**left, 10**right, count)]

    def _y_range(self) -> tuple[float, float]:
        ys = [y for line in self.lines for y in line.ys if math.isfinite(y)]
        low, high = min([0.0, *ys]), max([0.0, *ys])
        return low, high if high > low else low + 1


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _gap(value: float, shown: float) -> float:
    return shown if math.isfinite(value) else math.nan


def _segments(line: Line) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of a curve between its gaps."""
    segment: list[tuple[float, float]] = []
    for x, y in zip(line.xs, line.ys, strict=True):
        if math.isfinite(y):
            segment.append((x, y))
        elif segment:
            yield segment
            segment = []
    if segment:
        yield segment


def _without_collinear(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Omit points that lie on the line between those kept around them, to a tenth of a pixel."""
    kept = list(points[:1])
    skipped: list[tuple[float, float]] = []
    for point in points[1:]:
        (x0, y0), (x1, y1) = kept[-1], point
        if any(abs(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y) > 0.1 for x, y in skipped):
            kept.append(skipped[-1])
            skipped = []
        skipped.append(point)
    return kept + skipped[-1:]


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.5g}" y1="{y1:.5g}" x2="{x2:.5g}" y2="{y2:.5g}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.5g}" y="{y:.5g}" text-anchor="{anchor}">{html.escape(text)}</text>'
