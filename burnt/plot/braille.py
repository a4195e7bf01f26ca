"""Draw lines in braille characters, each of which holds 2 x 4 dots.

A canvas has one integer per column of dots, whose bits are the dots from top to bottom. A line takes one
shift and one "or" per column, so that its cost depends on the width of the plot, not on its height.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Unicode braille bits of bits 0 to 3 (left column of dots, top to bottom) and 4 to 7 (right column).
_DOTS = (0x01, 0x02, 0x04, 0x40, 0x08, 0x10, 0x20, 0x80)
CHARACTERS = "".join(
    chr(0x2800 + sum(dot for bit, dot in enumerate(_DOTS) if bits >> bit & 1)) for bits in range(256)
)


def dash_bits(lengths: Sequence[int], height: int) -> tuple[int, int]:
    """Return a dash pattern as bits, and its period; (0, 0) for a solid line."""
    if not lengths:
        return 0, 0
    period, bits, at = sum(lengths), 0, 0
    for i, length in enumerate(lengths):
        if i % 2 == 0:
            bits |= ((1 << length) - 1) << at
        at += length
    repeated = 0
    for i in range(height // period + 2):
        repeated |= bits << i * period
    return repeated, period


def line_masks(
    xs: Sequence[float], ys: Sequence[float], width: int, height: int, dashes: Sequence[int] = ()
) -> list[int]:
    """Draw a line through points; return for each column its dots as bits, the lowest bit at the top.

    Coordinates are in dots from the centre of the top left one; `xs` ascend, a NaN in `ys` breaks the line,
    and what is outside is clipped. `dashes` are alternating numbers of dots on and off, if any. An
    isolated point is a square of four dots, as a single dot is easily overlooked.
    """
    masks = [0] * width
    pattern, period = dash_bits(dashes, height)
    bottom = height - 1
    length = 0  # dots drawn so far, for the dash pattern

    def span(column: int, start: float, end: float, is_last: bool) -> None:
        nonlocal length
        first, last = math.floor(start + 0.5), math.floor(end + 0.5)
        # The next column starts at this one's last row, so that slopes are one dot thick.
        if not is_last and last != first:
            last += 1 if last < first else -1
        top, low = (first, last) if first <= last else (last, first)
        count = low - top + 1
        if low >= 0 and top <= bottom:
            top, low = max(top, 0), min(low, bottom)
            bits = (1 << (low - top + 1)) - 1
            if period:
                bits &= pattern >> length % period
            masks[column] |= bits << top
        length += count

    def dot(x: float, y: float) -> None:
        column, row = math.floor(x + 0.5), math.floor(y + 0.5)
        if -1 <= row <= bottom + 1:
            row = min(max(row, 0), max(bottom - 1, 0))
            for c in (column, column + 1) if column < width - 1 else (column - 1, column):
                if 0 <= c < width and -1 <= column <= width:
                    masks[c] |= (0b11 << row) & ((1 << height) - 1)

    in_line = False  # whether the previous point belongs to the line
    for i in range(len(xs)):
        x1, y1 = xs[i], ys[i]
        if y1 != y1:
            in_line = False
            continue
        has_next = i + 1 < len(xs) and ys[i + 1] == ys[i + 1]
        if not in_line:
            in_line = True
            if not has_next:
                dot(x1, y1)
            x0, y0 = x1, y1
            continue
        column, end = math.floor(x0 + 0.5), math.floor(x1 + 0.5)
        if column == end:
            if 0 <= column < width:
                span(column, y0, y1, True)
        elif end >= 0 and column < width:
            slope = (y1 - y0) / (x1 - x0)
            at = y0
            if column < 0:
                column = 0
                at = y0 + slope * (-0.5 - x0)
            for c in range(column, min(end, width - 1) + 1):
                next_y = y1 if c == end else y0 + slope * (c + 0.5 - x0)
                span(c, at, next_y, c == end)
                at = next_y
        x0, y0 = x1, y1
    return masks


def line_sample(dashes: Sequence[int], cells: int) -> str:
    """Return a sample of a line for legends."""
    masks = line_masks([0, 2 * cells - 1], [1, 1], 2 * cells, 4, dashes)
    return "".join(CHARACTERS[masks[2 * c] | masks[2 * c + 1] << 4] for c in range(cells))


# Paul Tol's bright and vibrant schemes, ordered so that neighbours also differ for colour-blind readers. All
# have medium lightness; the monitor's chart blends them towards black or white for contrast with the
# background.
PALETTE = ("#4477aa", "#ee7733", "#228833", "#cc3377", "#66ccee", "#aa4499", "#ccbb44", "#999999")

# Dash patterns, as alternating numbers of dots on and off.
DASH_PATTERNS: dict[str, tuple[int, ...]] = {
    "solid": (),
    "dashed": (2, 2),
    "dotted": (1, 3),
    "dashdot": (5, 2, 1, 2),
}
