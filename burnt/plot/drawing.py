"""Plot: a drawing of a few curves, as text for a terminal and as SVG."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from burnt.plot.braille import CHARACTERS, DASH_PATTERNS, PALETTE, line_masks, line_sample
from burnt.plot.ticks import (
    DIGIT_WIDTH,
    LEGEND_HEIGHT,
    LETTER_WIDTH,
    TOP,
    Range,
    SvgFrame,
    Tick,
    linear_ticks,
    log10_ticks,
    shorten,
    svg_text,
    text_axes,
)

_STYLE = "polyline{fill:none;stroke-width:2;stroke-linejoin:round}"


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
        x_range, y_range = self._x_range(), self._y_range()
        y_ticks = linear_ticks(*y_range, rows // 3 + 2)
        margin = max(len(tick.text) for tick in y_ticks)
        columns = max(width - margin - 1, 10)
        dots = [[0] * columns for _ in range(rows)]
        for number, line in enumerate(self.lines):
            xs = [x_range.share(self._x_at(x)) * (2 * columns - 1) for x in line.xs]
            shares = [y_range.share(y) if math.isfinite(y) else math.nan for y in line.ys]
            ys = [(1 - share) * (4 * rows - 1) for share in shares]
            masks = line_masks(xs, ys, 2 * columns, 4 * rows, dashes[number % len(dashes)])
            for row in range(rows):
                for column in range(columns):
                    first, second = (masks[2 * column + i] >> 4 * row & 15 for i in (0, 1))
                    dots[row][column] |= first | second << 4
        labels = {round((1 - y_range.share(at)) * (4 * rows - 1)) // 4: name for at, name in y_ticks}
        text = [
            f"{'':{margin}} {line_sample(dashes[number % len(dashes)], 3)} {shorten(line.name, columns - 4)}"
            for number, line in enumerate(self.lines)
        ]
        cells = ["".join(CHARACTERS[bits] if bits else " " for bits in row) for row in dots]
        x_ticks = {
            round(x_range.share(at) * (2 * columns - 1)) // 2: name
            for at, name in self._x_ticks(max(columns // 8, 3))
        }
        text += text_axes(cells, labels, x_ticks, self.x, margin)
        return "\n".join(line.rstrip() for line in text)

    def svg(self, width: int = 640, height: int = 320) -> str:
        """Draw as an SVG document.

        Args:
            width: the width in pixels.
            height: the height in pixels.
        """
        x_range, y_range = self._x_range(), self._y_range()
        y_ticks = linear_ticks(*y_range, max(height // 50, 2))
        margin = 16 + DIGIT_WIDTH * max(len(tick.text) for tick in y_ticks)
        frame = SvgFrame(width, height, margin, TOP + LEGEND_HEIGHT * len(self.lines))
        x_ticks = [(x_range.share(at), text) for at, text in self._x_ticks(max(width // 80, 2))]
        parts = [frame.start(_STYLE)]
        parts += frame.axes([(y_range.share(at), text) for at, text in y_ticks], x_ticks, self.x)
        for number, line in enumerate(self.lines):
            color = PALETTE[number % len(PALETTE)]
            for segment in _segments(line):
                points = [
                    (frame.x_at(x_range.share(self._x_at(x))), frame.y_at(y_range.share(y)))
                    for x, y in segment
                ]
                text = " ".join(f"{x:.5g},{y:.5g}" for x, y in _without_collinear(points))
                parts.append(f'<polyline stroke="{color}" points="{text}"/>')
            at = TOP + LEGEND_HEIGHT * number
            parts.append(f'<polyline stroke="{color}" points="{margin},{at} {margin + 22},{at}"/>')
            name = shorten(line.name, int((width - margin - 28) / LETTER_WIDTH))
            parts.append(svg_text(margin + 28, at + 4, name, "start"))
        return "\n".join([*parts, "</svg>\n"])

    def _x_range(self) -> Range:
        """Return the ends of the x axis, as `_x_at` returns positions."""
        xs = [self._x_at(x) for line in self.lines for x in (line.xs[0], line.xs[-1])]
        return Range(min(xs), max(max(xs), min(xs) + 1))

    def _x_at(self, x: float) -> float:
        return math.log10(x) if self.log_x else x

    def _x_ticks(self, count: int) -> list[Tick]:
        if self.log_x:
            return log10_ticks(*self._x_range(), count)
        return linear_ticks(*self._x_range(), count, whole=True)

    def _y_range(self) -> Range:
        ys = [y for line in self.lines for y in line.ys if math.isfinite(y)]
        low, high = min([0.0, *ys]), max([0.0, *ys])
        return Range(low, high if high > low else low + 1)


def _segments(line: Line) -> Iterator[list[tuple[float, float]]]:
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
