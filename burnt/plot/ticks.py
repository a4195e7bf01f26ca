"""Positions and labels of ticks, and the axes around a drawing, as text and as SVG."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Tick(NamedTuple):
    """A position on an axis and its label."""

    at: float
    text: str


def linear_ticks(low: float, high: float, max_ticks: int, *, whole: bool = False) -> list[Tick]:
    """Return ticks at round numbers from `low` to `high`; `whole`: whole numbers, large ones with k or M.

    >>> [tick.text for tick in linear_ticks(0.0, 1.0, 6)]
    ['0.0', '0.2', '0.4', '0.6', '0.8', '1.0']
    >>> [tick.text for tick in linear_ticks(0, 12000, 4, whole=True)]
    ['0', '5k', '10k']
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or max_ticks < 1:
        return []
    # Halved, as the difference of two huge numbers may overflow.
    rough_step = (high / 2 - low / 2) / max_ticks * 2
    if rough_step == 0 or not math.isfinite(rough_step):
        return []
    power = math.floor(math.log10(rough_step))
    steps = ((factor, exponent) for exponent in itertools.count(power) for factor in (1, 2, 5))
    for factor, exponent in steps:
        step = _times_power_of_ten(factor, exponent)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= max_ticks and not (whole and step < 1):
            break
    positions = [_times_power_of_ten(k * factor, exponent) for k in range(first, last + 1)]
    texts = [count_text(at) for at in positions] if whole else _format_decimals(positions, step)
    # In very small ranges, float precision may give several ticks the same label.
    unique = dict(zip(reversed(texts), reversed(positions), strict=True))
    return [Tick(at, text) for text, at in reversed(unique.items())]


def _times_power_of_ten(factor: int, power: int) -> float:
    return float(f"{factor}e{power}")


def _format_decimals(positions: Sequence[float], step: float) -> list[str]:
    """Format numbers with the decimals that distinguish neighbouring ticks."""
    largest = max(map(abs, positions), default=0.0)
    if largest == 0:
        return ["0"] * len(positions)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if 1e-4 <= largest < 1e6 and decimals <= 6:
        return [f"{0.0 if at == 0 else at:.{decimals}f}" for at in positions]
    digits = max(0, min(math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9), 15))
    return [_scientific(at, digits) for at in positions]


def _scientific(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def log_ticks(low: float, high: float, max_ticks: int) -> list[Tick]:
    """Return ticks at powers of ten within a positive range, or at multiples of them if there are few.

    >>> [tick.text for tick in log_ticks(0.001, 2000.0, 7)]
    ['0.001', '0.01', '0.1', '1', '10', '100', '1000']
    >>> [tick.text for tick in log_ticks(0.5, 30.0, 6)]
    ['0.5', '1', '2', '5', '10', '20']
    """
    if not (0 < low < high < math.inf) or max_ticks < 1:
        return []
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    finest: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        positions = [
            position
            for power in range(first, last + 1)
            for factor in factors
            if low <= (position := _times_power_of_ten(factor, power)) <= high
        ]
        finest = finest or positions
        if 2 <= len(positions) <= max_ticks:
            return [Tick(at, number_text(at)) for at in positions]
    if len(positions) < 2:
        # Less than a decade: use linear ticks.
        return [tick for tick in linear_ticks(low, high, max_ticks) if tick.at > 0]
    stride = -(-len(positions) // max_ticks)
    return [Tick(at, number_text(at)) for at in positions[::stride]]


def log10_ticks(low: float, high: float, max_ticks: int) -> list[Tick]:
    """Return `log_ticks` for an axis of logarithms, such as -3 to 2; none beyond the range of floats."""
    if not -307 < low < high < 308:
        return []
    return [Tick(math.log10(tick.at), tick.text) for tick in log_ticks(10**low, 10**high, max_ticks)]


def time_ticks(low: float, high: float, max_ticks: int) -> list[Tick]:
    """Return ticks at round times within a range of seconds.

    >>> [tick.text for tick in time_ticks(0.0, 3 * 3600.0, 4)]
    ['0', '1h', '2h', '3h']
    >>> [tick.text for tick in time_ticks(0.0, 100.0, 5)]
    ['0', '30s', '1m', '1m30s']
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or max_ticks < 1:
        return []
    for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first + 1 <= max_ticks:
            break
    else:
        days = linear_ticks(low / 86400, high / 86400, max_ticks, whole=True)
        return [Tick(tick.at * 86400, "0" if tick.at == 0 else f"{tick.text}d") for tick in days]
    if high - low < 2:
        return [Tick(tick.at, f"{tick.text}s") for tick in linear_ticks(low, high, max_ticks)]
    return [Tick(float(k * step), span_text(k * step)) for k in range(first, last + 1)]


def span_text(seconds: float) -> str:
    """Format a duration in at most two units.

    >>> span_text(0), span_text(45), span_text(90), span_text(3600 * 5 + 1800), span_text(86400 * 2)
    ('0', '45s', '1m30s', '5h30m', '2d')
    """
    if seconds == 0:
        return "0"
    if abs(seconds) < 10 and seconds != int(seconds):
        return f"{seconds:.3g}s"
    sign, rest = ("-" if seconds < 0 else ""), round(abs(seconds))
    parts: list[str] = []
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return sign + "".join(parts[:2])


def count_text(value: float) -> str:
    """Format a count with k, M or G, without losing digits.

    >>> count_text(0), count_text(950), count_text(12500), count_text(3_000_000), count_text(1234567)
    ('0', '950', '12.5k', '3M', '1.234567M')
    """
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.10g}{unit}"
    return f"{value:.10g}"


def number_text(value: float) -> str:
    """Format a number in few characters.

    >>> number_text(0.5), number_text(1000.0), number_text(3e-7), number_text(1e12), number_text(float("nan"))
    ('0.5', '1000', '3e-7', '1e12', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


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
