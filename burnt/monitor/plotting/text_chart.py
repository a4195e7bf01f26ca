"""A plot as lines of styled text: axes, legend, curves in braille, markers, crosshair. No Textual.

`TextChart` draws a `ChartView` for a size; the widget of `chart_widget` shows it and changes the view.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from burnt.errors import clean
from burnt.monitor.plotting.curves import Curve, extreme_indices, nearest_index, reduce_points, smooth
from burnt.plot.braille import CHARACTERS, DASH_PATTERNS, line_masks, line_sample
from burnt.plot.ticks import Tick, linear_ticks, log10_ticks, number_text, span_text, time_ticks

Range = tuple[float, float]
XAxis = Literal["step", "epoch", "time", "trial"]

_CELLS = " " + CHARACTERS[1:]
_MAX_DOT = 1e6  # dot coordinates are clamped to this; points farther out look the same
_SAMPLE_CELLS = 3  # cells of a line sample in the legend


class ChartView(NamedTuple):
    """What a plot shows."""

    curves: Sequence[Curve] = ()  # drawn in this order, the last on top
    x: XAxis = "step"  # the unit of the curves' xs; "time" is seconds of training
    log_y: bool = False  # values of zero and below are then omitted, with a note
    smoothing: float = 0.0  # weight of the past in `curves.smooth`; the raw values are drawn faintly
    title: str = ""
    markers: bool = True  # at the lowest and the highest value
    range_x: Range | None = None  # the visible part; None shows all
    range_y: Range | None = None  # of the logarithms if the axis is logarithmic; None fits the values
    crosshair: float | None = None  # the x at which the curves' values are shown
    short_legend: bool = False  # only tags and values, for small charts


class Span(NamedTuple):
    """A text and the name of its style.

    A style is ``title``, ``axis``, ``label``, ``note``, ``cross``, or a curve's number, after a ``-`` if
    faint.
    """

    text: str
    style: str


class _PreparedLine(NamedTuple):
    """A curve downsampled and converted to axis values, ready to be drawn."""

    curve: int
    xs: list[float]
    ys: list[float]  # NaN is a gap
    faint: bool


class TextChart:
    """A view drawn for a size in cells.

    Legend, axes and labels are omitted if there is no room for them.

    >>> curve = Curve("train", "blue", range(100), [1 / (1 + i) for i in range(100)])
    >>> print(TextChart(ChartView((curve,), title="loss", markers=False), 32, 8).text())
    loss  ⠒⠒⠒ train 0.01
    1.0 ┤⡆
        │⡇
    0.5 ┤⢱
        │⠘⣄
    0.0 ┤ ⠈⠙⠒⠒⠲⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤
        └┬────────────┬─────────────
         0           50         step
    """

    def __init__(self, view: ChartView, width: int, height: int) -> None:
        self.view, self.width, self.height = view, max(width, 0), max(height, 0)
        self.range_x = view.range_x or _full_x_range(view.curves)
        legend = self._draw_legend()
        self.top = len(legend)
        self.bottom = 2 if self.height - self.top >= 5 else 0
        self.rows = max(self.height - self.top - self.bottom, 0)
        self.right = max((len(curve.tag) + 1 for curve in view.curves if curve.tag), default=0)
        lines = self._prepare_lines(max(self.width, 1) * 2)
        self.range_y = view.range_y or self._fit_y_range(lines)
        self._y_ticks = self._compute_y_ticks()
        labels = max((len(tick.text) for tick in self._y_ticks), default=0)
        self.left = labels + 2 if self.width >= 20 + labels else 0
        self.columns = max(self.width - self.left - self.right, 0)
        self._overlays: dict[
            tuple[int, int], tuple[str, str]
        ] = {}  # (character, style) drawn over the curves, by (row, column)
        self.lines: list[list[Span]] = legend
        if self.rows and self.columns:
            self.lines = legend + self._draw_body(lines)
        self.lines = self.lines[: self.height]

    def text(self) -> str:
        """Return the plot without styles, for pipes and tests."""
        return "\n".join("".join(span.text for span in line).rstrip() for line in self.lines)

    # --- conversion between cells and values

    def x_at(self, column: int) -> float:
        """Return the x value at a column; also extrapolates beyond the plot."""
        low, high = self.range_x
        return low + (high - low) * (2 * (column - self.left) + 0.5) / max(2 * self.columns - 1, 1)

    def y_at(self, row: int) -> float:
        """Return the y value at a row; its logarithm on a logarithmic axis."""
        low, high = self.range_y
        return high + (low - high) * (4 * (row - self.top) + 1.5) / max(4 * self.rows - 1, 1)

    def _x_to_dot(self, x: float) -> float:
        low, high = self.range_x
        return min(max((x - low) / (high - low) * (2 * self.columns - 1), -_MAX_DOT), _MAX_DOT)

    def _y_to_dot(self, y: float) -> float:
        low, high = self.range_y
        # Halved, as the difference of two huge numbers may overflow; not for denormals, whose halves vanish.
        half = high / 2 - low / 2
        share = (high / 2 - y / 2) / half if half else (high - y) / (high - low)
        dot = share * (4 * self.rows - 1)
        return min(max(dot, -_MAX_DOT), _MAX_DOT) if dot == dot else dot

    def _cell(self, x: float, y: float) -> tuple[int, int]:
        """Return row and column of a point; both may be outside of the plot."""
        return math.floor(self._y_to_dot(y) + 0.5) // 4, math.floor(self._x_to_dot(x) + 0.5) // 2

    def _axis_value(self, y: float) -> float:
        """Return the y axis value: the logarithm on a logarithmic axis, NaN if it is undefined."""
        if not self.view.log_y:
            return y
        return math.log10(y) if y > 0 else math.nan

    # --- the curves

    def _prepare_lines(self, columns: int) -> list[_PreparedLine]:
        low, high = self.range_x
        lines = []
        for i, curve in enumerate(self.view.curves):
            series = [(curve.xs, curve.ys, self.view.smoothing > 0 or curve.faint)]
            if self.view.smoothing:
                means_xs, means = curve.means or (curve.xs, curve.ys)
                smoothed = (means_xs, smooth(means, self.view.smoothing), curve.faint)
                series = [smoothed] if curve.faint else [*series, smoothed]
            for xs, ys, faint in series:
                xs, ys = reduce_points(xs, ys, columns, low, high)
                if curve.style == "points":  # a gap after each
                    xs, ys = [x for x in xs for _ in (0, 1)], [y for at in ys for y in (at, math.nan)]
                lines.append(_PreparedLine(i, xs, [self._axis_value(y) for y in ys], faint))
        return sorted(lines, key=lambda line: not line.faint)

    def _fit_y_range(self, lines: Sequence[_PreparedLine]) -> Range:
        low, high = self.range_x
        seen = [
            y
            for line in lines
            for x, y in zip(line.xs, line.ys, strict=True)
            if low <= x <= high and math.isfinite(y)
        ]
        if not seen:
            return (0.0, 1.0)
        bottom, top = min(seen), max(seen)
        span = top / 2 - bottom / 2
        if span <= 1e-12 * max(abs(top), abs(bottom)):
            half = 0.5 if self.view.log_y else abs(top) / 10 or 0.5
            return max(bottom - half, -1.7e308), min(top + half, 1.7e308)
        # Leave room for the markers above and below.
        share = 1 / self.rows if self.view.markers and self.rows >= 8 else 0.25 / max(self.rows, 1)
        if abs(top) > 1e307 or abs(bottom) > 1e307:
            return bottom, top
        return bottom - 2 * span * share, top + 2 * span * share

    def _draw_body(self, lines: list[_PreparedLine]) -> list[list[Span]]:
        bits = [[0] * self.columns for _ in range(self.rows)]
        owners = [[""] * self.columns for _ in range(self.rows)]
        for line in lines:
            curve = self.view.curves[line.curve]
            masks = line_masks(
                [self._x_to_dot(x) for x in line.xs],
                [self._y_to_dot(y) if math.isfinite(y) else math.nan for y in line.ys],
                2 * self.columns,
                4 * self.rows,
                _dash_pattern(line.curve, curve),
            )
            style = f"-{line.curve}" if line.faint else str(line.curve)
            for column in range(self.columns):
                left, right = masks[2 * column], masks[2 * column + 1]
                row = 0
                while left or right:
                    if dots := left & 15 | (right & 15) << 4:
                        # A line replaces faint dots in its cell; otherwise they would thicken it.
                        covers_faint = owners[row][column].startswith("-") and not line.faint
                        bits[row][column] = dots if covers_faint else bits[row][column] | dots
                        owners[row][column] = style
                    left, right, row = left >> 4, right >> 4, row + 1
        has_dots = any(any(row) for row in bits)
        self._overlay_non_finite()
        if not has_dots and not self._overlays:
            self._overlay(self.rows // 2, max(self.columns // 2 - 6, 0), self._empty_text(), "note")
        if self.view.markers and self.rows >= 4:
            self._overlay_extremes(bits)
        self._overlay_crosshair(bits)
        tags = self._place_tags()
        ticks = {self._cell(self.range_x[0], tick.at)[0]: tick.text for tick in self._y_ticks}
        overlaid_rows: dict[int, list[str]] = {}
        for (row, column), (character, style) in self._overlays.items():
            if row not in overlaid_rows:
                overlaid_rows[row] = [_CELLS[dots] for dots in bits[row]]
            overlaid_rows[row][column], owners[row][column] = character, style
        body = []
        for row in range(self.rows):
            characters = overlaid_rows.get(row) or list(map(_CELLS.__getitem__, bits[row]))
            spans = []
            start = 0
            for style, group in groupby(owners[row]):
                end = start + len(list(group))
                spans.append(Span("".join(characters[start:end]), style))
                start = end
            if self.left:
                text = ticks.get(row)
                spans[:0] = [
                    Span((text or "").rjust(self.left - 2) + " ", "label"),
                    Span("┤" if text else "│", "axis"),
                ]
            if row in tags:
                spans.append(Span(f" {tags[row][0]}", tags[row][1]))
            body.append(spans)
        return body + self._draw_x_axis()

    def _empty_text(self) -> str:
        points = [y for curve in self.view.curves for y in curve.ys]
        if not points:
            return "no values yet"
        if not any(map(math.isfinite, points)):
            return "no finite values"
        return "no values above 0" if self.view.log_y and max(points) <= 0 else "no values in this range"

    # --- overlays

    def _overlay(self, row: int, column: int, text: str, style: str) -> None:
        for i, character in enumerate(text[: max(self.columns - column, 0)]):
            self._overlays[row, column + i] = (character, style)

    def _overlay_non_finite(self) -> None:
        """Mark infinities at the top or bottom edge, and NaN at the bottom."""
        for i, curve in enumerate(self.view.curves):
            for x, y in self._non_finite(curve):
                column = min(max(self._cell(x, self.range_y[0])[1], 0), self.columns - 1)
                row = 0 if y > 0 else self.rows - 1
                self._overlays[row, column] = ("!" if math.isnan(y) else "∞", str(i))

    def _non_finite(self, curve: Curve) -> Iterator[tuple[float, float]]:
        low, high = self.range_x
        if not all(map(math.isfinite, curve.ys)):
            for x, y in zip(curve.xs, curve.ys, strict=True):
                if not math.isfinite(y) and low <= x <= high:
                    yield x, y

    def _overlay_extremes(self, bits: list[list[int]]) -> None:
        low, high = self.range_x
        extremes: list[tuple[bool, float, float, int]] = []
        for i, curve in enumerate(self.view.curves):
            if curve.faint:
                continue
            seen = [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if low <= x <= high]
            if self.view.log_y:
                seen = [(x, y) for x, y in seen if y > 0]
            ends = extreme_indices([y for _, y in seen])
            if ends is not None and seen[ends[0]][1] != seen[ends[1]][1]:
                extremes += [(lowest, *seen[end], i) for lowest, end in zip((True, False), ends, strict=True)]
        if sum(not curve.faint for curve in self.view.curves) > 2:
            # With many curves, mark only the overall extremes; more labels would cover the curves.
            lows, highs = [f for f in extremes if f[0]], [f for f in extremes if not f[0]]
            extremes = sorted(lows, key=lambda f: f[2])[:1] + sorted(highs, key=lambda f: f[2])[-1:]
        for lowest, x, y, i in extremes:
            row, column = self._cell(x, self._axis_value(y))
            if not (0 <= row < self.rows and 0 <= column < self.columns):
                continue
            text = f"{'▼' if lowest else '▲'}{number_text(y)}"
            outer_row = row + 1 if lowest else row - 1
            middle = min(max(column - len(text) // 2, 0), self.columns - len(text))
            sides = (column + 1, column - len(text))
            for at, start in (
                (outer_row, middle), *((r, c) for r in (row, outer_row, row - 1, row + 1) for c in sides)
            ):  # fmt: skip
                cells = [(at, start + k) for k in range(len(text))]
                if 0 <= at < self.rows and all(
                    0 <= c < self.columns and not bits[r][c] and (r, c) not in self._overlays
                    for r, c in cells
                ):
                    self._overlay(at, start, text, str(i))
                    break
            else:  # no room for the value: mark the point only
                self._overlay(row, column, text[0], str(i))

    def _overlay_crosshair(self, bits: list[list[int]]) -> None:
        x = self.view.crosshair
        if x is None:
            return
        column = self._cell(x, self.range_y[0])[1]
        if 0 <= column < self.columns:
            for row in range(self.rows):
                if not bits[row][column] and (row, column) not in self._overlays:
                    self._overlays[row, column] = ("│", "cross")
        for i, curve in enumerate(self.view.curves):
            index = nearest_index(curve.xs, x)
            if index is None or not math.isfinite(y := self._axis_value(curve.ys[index])):
                continue
            row, column = self._cell(curve.xs[index], y)
            if 0 <= row < self.rows and 0 <= column < self.columns:
                self._overlays[row, column] = ("●", str(i))

    def _place_tags(self) -> dict[int, tuple[str, str]]:
        """Return the tags next to the curves' ends, by row; if two collide, the later one moves."""
        tags: dict[int, tuple[str, str]] = {}
        for i, curve in enumerate(self.view.curves):
            index = nearest_index(curve.xs, self.range_x[1])
            if not curve.tag or index is None or not math.isfinite(y := self._axis_value(curve.ys[index])):
                continue
            row = min(max(self._cell(curve.xs[index], y)[0], 0), self.rows - 1)
            free = [r for r in range(self.rows) if r not in tags]
            if free:
                tags[min(free, key=lambda r, row=row: abs(r - row))] = (curve.tag, str(i))  # type: ignore[misc]
        return tags

    # --- axes

    def _compute_y_ticks(self) -> list[Tick]:
        max_ticks = max(self.rows // 2 + 1, 2) if self.rows < 10 else self.rows // 3 + 2
        return (log10_ticks if self.view.log_y else linear_ticks)(*self.range_y, max_ticks)

    def _x_text(self, x: float) -> str:
        if self.view.x == "time":
            return span_text(x)
        return f"{x:,.0f}" if self.view.x == "step" else f"{x:.4g}"

    def _draw_x_axis(self) -> list[list[Span]]:
        if not self.bottom:
            return []
        max_ticks = max(self.columns // 8, 2)
        low, high = self.range_x
        if self.view.x == "time":
            ticks = time_ticks(low, high, max_ticks)
        else:
            ticks = linear_ticks(low, high, max_ticks, whole=self.view.x in ("step", "trial"))
        line = ["─"] * self.columns
        labels = [" "] * self.width
        unit = self.view.x
        end = self.width - self.right
        x = self.view.crosshair
        crosshair_span = range(
            0
        )  # columns of the crosshair's label; labels it would partly cover are omitted
        if x is not None and low <= x <= high:
            cross = min(max(self._cell(x, self.range_y[0])[1], 0), self.columns - 1)
            text = f" {self._x_text(x)} "[: self.width]
            start = min(max(self.left + cross - len(text) // 2, 0), max(self.width - len(text), 0))
            crosshair_span = range(start, start + len(text))
            labels[crosshair_span.start : crosshair_span.stop] = text
        if end >= 4 * len(unit) and not (crosshair_span and crosshair_span.stop > end - len(unit)):
            labels[end - len(unit) : end] = unit
            end -= len(unit) + 1
        style = ["label"] * self.width
        for tick in ticks:
            column = self._cell(tick.at, self.range_y[0])[1]
            if not 0 <= column < self.columns:
                continue
            line[column] = "┬"
            start = max(self.left + column - len(tick.text) // 2, 0)
            label_span = slice(start, start + len(tick.text))
            surrounding = labels[max(start - 1, 0) : label_span.stop + 1]
            is_covered = label_span.start < crosshair_span.stop and crosshair_span.start < label_span.stop
            if label_span.stop <= end and not is_covered and not "".join(surrounding).strip():
                labels[label_span] = tick.text
        if crosshair_span:
            line[cross] = "┴"
            style[crosshair_span.start : crosshair_span.stop] = ["cross"] * len(crosshair_span)
        axis = [Span(" " * (self.left - 1) + "└", "axis")] if self.left else []
        bottom = [
            Span("".join(text for text, _ in group), key)
            for key, group in groupby(zip(labels, style, strict=False), key=lambda cell: cell[1])
        ]
        return [[*axis, Span("".join(line), "axis")], bottom]

    # --- the legend

    def _draw_legend(self) -> list[list[Span]]:
        """Return title, curves and notes in as many lines as needed, at most a quarter of the height."""
        if self.height < 4:
            return []
        lines: list[list[Span]] = [[]]
        max_lines = max(self.height // 4, 1)
        used_width = 0
        entries = [[Span(clean(self.view.title), "title")]] if self.view.title else []
        for i, curve in enumerate(self.view.curves):
            entry = self._legend_entry(i, curve)
            if entry is not None:
                entries.append(entry)
        entries += [[Span(note, "note")] for note in self._notes()]
        for entry in entries:
            length = sum(cell_len(span.text) for span in entry)
            gap = 2 if used_width else 0
            if used_width and used_width + gap + length > self.width:
                if len(lines) == max_lines:
                    if used_width + 2 <= self.width:
                        lines[-1].append(Span(" …", "note"))
                    break
                lines.append([])
                used_width = gap = 0
            if gap:
                lines[-1].append(Span(" " * gap, "label"))
            lines[-1] += _truncate(entry, self.width - used_width - gap)
            used_width += gap + length
        return lines

    def _notes(self) -> list[str]:
        notes = [f"smoothed {self.view.smoothing:g}"] if self.view.smoothing else []
        if self.view.log_y:
            notes.append("log")
            if any(y <= 0 for curve in self.view.curves for y in curve.ys):
                notes.append("≤ 0 not shown")
        for curve in self.view.curves:
            if (first := next(self._non_finite(curve), None)) is not None:
                notes.append(f"{number_text(first[1])} at {self._x_text(first[0])}")
        return list(dict.fromkeys(notes))

    def _legend_entry(self, number: int, curve: Curve) -> list[Span] | None:
        if curve.faint:
            labels = [other.label for other in self.view.curves[:number] if other.faint]
            if self.view.short_legend or curve.label in labels:
                return None
            sample = line_sample(_dash_pattern(number, curve), _SAMPLE_CELLS)
            return [Span(f"{sample} ", f"-{number}"), Span(clean(curve.label), "label")]
        at = self.range_x[1] if self.view.crosshair is None else self.view.crosshair
        index = nearest_index(curve.xs, at)
        # With smoothing, the legend still shows the measured values.
        raw = " raw" if self.view.smoothing else ""
        value = "" if index is None else f"{raw} {number_text(curve.ys[index])}"
        style = str(number)
        if self.view.short_legend:
            return [Span(curve.tag, style), Span(value, "label")]
        tag = f"{curve.tag} " if curve.tag else ""
        return [
            Span(f"{line_sample(_dash_pattern(number, curve), _SAMPLE_CELLS)} ", style),
            Span(clean(f"{tag}{curve.label}"), "label"),
            Span(value, style),
        ]


def _dash_pattern(number: int, curve: Curve) -> tuple[int, ...]:
    """Return a curve's dash pattern, which distinguishes the curves without colours."""
    return DASH_PATTERNS.get(curve.style or list(DASH_PATTERNS)[number % len(DASH_PATTERNS)], ())


def _full_x_range(curves: Sequence[Curve]) -> Range:
    low = min((curve.xs[0] for curve in curves if curve.xs), default=0.0)
    high = max((curve.xs[-1] for curve in curves if curve.xs), default=1.0)
    if high > low:
        return float(low), float(high)
    half = max(0.5, abs(low) * 1e-9)
    return low - half, low + half


def _truncate(spans: Sequence[Span], width: int) -> list[Span]:
    shown = []
    for span in spans:
        if width <= 0:
            break
        size = cell_len(span.text)
        shown.append(span if size <= width else span._replace(text=set_cell_size(span.text, width)))
        width -= size
    return shown
