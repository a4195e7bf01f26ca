"""Draw confusion matrices, scores by class, curves, histograms, images and texts as styled text. No Textual.

Each function draws in at most `width` columns, and in `height` lines or, if it scrolls, as many as it needs.
Without `colors`, shades are characters.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len, chop_cells

from burnt.errors import clean
from burnt.monitor.format import truncate
from burnt.plot import Line, Plot
from burnt.plot.ticks import linear_ticks, number_text

_SHADES = " ░▒▓█"
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LEFT_EIGHTHS = " ▏▎▍▌▋▊▉█"
_GREYS = " .:-=+*#%@"  # from dark to light
_MAX_CONFUSED_PAIRS = 5


class StyledText(NamedTuple):
    """A text with its colours; "" is the default colour."""

    text: str
    color: str = ""  # or a theme variable such as $dim
    shade: float = 0.0  # from 0 to 1: how far the background is blended towards the theme's primary colour
    background: str = ""
    bold: bool = False


Lines = list[list[StyledText]]


# --- confusion matrices


def is_confusion_matrix(table: dict[str, Any]) -> bool:
    """Whether a table is a confusion matrix as `ConfusionMatrix` records it."""
    columns, rows = table.get("columns") or [], table.get("rows") or []
    return (
        len(columns) > 1
        and columns[0] == "target"
        and len(rows) == len(columns) - 1
        and [row[0] for row in rows] == columns[1:]
        and all(isinstance(n, int | float) for row in rows for n in row[1:])
    )


def draw_confusion_matrix(table: dict[str, Any], width: int, height: int = 0, colors: bool = True) -> Lines:
    """Draw a confusion matrix: rows are targets, columns predictions, shaded by the share of the row.

    Recall and precision are at the margins, the most confused pairs below. If the numbers do not fit, only
    the shades are drawn, with several classes per cell if needed.
    """
    names = [clean(str(name)) for name in table["columns"][1:]]
    counts = [[n if n > 0 else 0 for n in row[1:]] for row in table["rows"]]
    targets = [float(sum(row)) for row in counts]
    label_width = max(6, min(max(map(cell_len, names)), 16))
    if label_width + 1 + len(names) * 4 > width:  # common with many classes; skips formatting the numbers
        return _draw_shaded_matrix(counts, width, colors) + _draw_most_confused(names, counts, targets, width)
    predictions = [float(sum(column)) for column in zip(*counts, strict=True)]
    number_width = max(max((len(_count_text(n)) for row in counts for n in row), default=1), 3)
    longest_name = max(map(cell_len, names))
    for cell_width, has_recalls in (
        (min(max(longest_name, number_width), 10), True),
        (number_width, True),
        (number_width, False),
    ):
        if label_width + 1 + len(names) * (cell_width + 1) + 8 * has_recalls <= width:
            break
    else:
        return _draw_shaded_matrix(counts, width, colors) + _draw_most_confused(names, counts, targets, width)
    header = [StyledText(f"{'true':>{label_width}} ", "$dim")]
    header += [StyledText(f" {_pad(name, cell_width, right=True)}", "$dim") for name in names]
    lines: Lines = [
        [StyledText(" " * (label_width + 2) + "predicted", "$dim")],
        [*header, *[StyledText("  recall", "$dim")] * has_recalls],
    ]
    for i, row in enumerate(counts):
        line = [StyledText(_pad(names[i], label_width, right=True) + " ", bold=True)]
        for j, n in enumerate(row):
            share = n / targets[i] if targets[i] else 0.0
            mark = " " if colors else _SHADES[round(share * (len(_SHADES) - 1))]
            line.append(
                StyledText(f"{mark}{_count_text(n) if n else '.':>{cell_width}}", shade=share, bold=i == j)
            )
        recall = row[i] / targets[i] if targets[i] else math.nan
        lines.append([*line, *[StyledText(f"  {_ratio_text(recall):>6}", "$dim")] * has_recalls])
    precisions = [row[i] / predictions[i] if predictions[i] else math.nan for i, row in enumerate(counts)]
    footer = [
        StyledText(_pad("precision" if label_width >= 9 else "prec.", label_width, right=True) + " ", "$dim")
    ]
    footer += [StyledText(f" {_ratio_text(p, cell_width):>{cell_width}}", "$dim") for p in precisions]
    num_correct, total = sum(row[i] for i, row in enumerate(counts)), sum(targets)
    if total and has_recalls:
        footer.append(StyledText(f"  {_ratio_text(num_correct / total):>6}", bold=True))
    lines.append(footer)
    return lines + _draw_most_confused(names, counts, targets, width)


def _draw_shaded_matrix(counts: list[list[float]], width: int, colors: bool) -> Lines:
    """Draw the matrix without numbers, two characters per cell."""
    size = len(counts)
    num_cells = max(min(size, width // 2), 1)
    classes_per_cell = -(-size // num_cells)
    title = "rows: true, columns: predicted" + f", {classes_per_cell} classes per cell" * (
        classes_per_cell > 1
    )
    lines: Lines = [[StyledText(truncate(title, width), "$dim")]]
    for top in range(0, size, classes_per_cell):
        total = sum(sum(row) for row in counts[top : top + classes_per_cell])
        line = []
        for start in range(0, size, classes_per_cell):
            n = sum(
                sum(row[start : start + classes_per_cell]) for row in counts[top : top + classes_per_cell]
            )
            share = n / total if total else 0.0
            # The square root makes one error in a hundred visible.
            shade = math.sqrt(share)
            character = _SHADES[math.ceil(shade * (len(_SHADES) - 1))]
            line.append(StyledText("  " if colors else character * 2, shade=shade))
        lines.append(line)
    return lines


def _draw_most_confused(
    names: list[str], counts: list[list[float]], targets: list[float], width: int
) -> Lines:
    pairs: list[tuple[float, int, int]] = []
    for i, row in enumerate(counts):
        # In large matrices most counts are below the smallest shown, so they are skipped early.
        least = pairs[-1][0] if len(pairs) == _MAX_CONFUSED_PAIRS else 0.0
        pairs += [(n, i, j) for j, n in enumerate(row) if n > least and i != j]
        pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
        del pairs[_MAX_CONFUSED_PAIRS:]
    if not pairs:
        return [[], [StyledText("no confusions" if sum(targets) else "no samples counted", "$dim")]]
    lines: Lines = [[], [StyledText("most confused", "$dim")]]
    for n, i, j in pairs:
        text = f"  {names[i]} predicted as {names[j]}"
        lines.append(
            [
                StyledText(truncate(text, max(width - 24, 8))),
                StyledText(f"  {_count_text(n)} of {_count_text(targets[i])}", bold=True),
            ]
        )
    return lines


# --- classes


def is_class_scores(table: dict[str, Any]) -> bool:
    """Whether a table holds precision, recall and F1 by class, as `ConfusionMatrix` records it."""
    return list(table.get("columns") or []) == ["class", "precision", "recall", "f1", "count"]


def draw_class_scores(table: dict[str, Any], width: int, height: int = 0, colors: bool = True) -> Lines:
    """Draw precision, recall and F1 of each class as numbers and bars, and the number of targets."""
    rows = [[clean(str(row[0])), *row[1:]] for row in table["rows"]]
    label_width = max([5, *(min(cell_len(row[0]), 20) for row in rows)])
    count_width = max([5, *(len(_count_text(_parse_number(row[4]))) for row in rows)])
    bar_width = min((width - label_width - count_width - 2 - 3 * 11) // 3, 20)
    bar_width = bar_width if bar_width >= 3 else 0
    column_width = 8 + (bar_width + 1 if bar_width else 0)
    header = f"{'class':>{label_width}}  " + "".join(
        f"{name:<{column_width + 2}}" for name in ("precision", "recall", "F1")
    )
    lines: Lines = [[StyledText(f"{header}{'count':>{count_width}}".rstrip(), "$dim")]]
    for name, *scores, count in rows:
        line = [StyledText(_pad(name, label_width, right=True), bold=True), StyledText("  ")]
        for score in map(_parse_number, scores):
            if bar_width:
                filled = _bar_text(score, bar_width)
                line += [
                    StyledText(filled, "$primary"),
                    StyledText("·" * (bar_width - len(filled)) + " ", "$faint"),
                ]
            line.append(StyledText(f"{_ratio_text(score):<8}  "))
        lines.append([*line, StyledText(f"{_count_text(_parse_number(count)):>{count_width}}")])
    return lines


# --- curves


def is_curves(table: dict[str, Any]) -> bool:
    """Whether a table holds the points of curves, as `RocCurve` and others record them."""
    columns = list(table.get("columns") or [])
    return len(columns) == 3 and columns[0] == "curve" and bool(table.get("rows"))


def draw_curves(table: dict[str, Any], width: int, height: int = 0, colors: bool = True) -> Lines:
    """Draw curves over a common x axis, each dashed in its own way."""
    points: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in table["rows"]:
        points.setdefault(clean(str(name)), []).append((_parse_number(x), _parse_number(y)))
    lines = [Line(name, *zip(*pairs, strict=True)) for name, pairs in points.items()]
    _, x_name, y_name = (clean(str(name)) for name in table["columns"])
    drawn = Plot(lines, x=x_name).text(width, max(height - 1, 8)).splitlines()
    return [[StyledText(truncate(y_name, width), "$dim")], *([StyledText(line)] for line in drawn)]


# --- histograms


def draw_histogram(
    histograms: Sequence[tuple[int | None, dict[str, Any]]],
    selected: int,
    width: int,
    height: int,
    colors: bool = True,
) -> Lines:
    """Draw one histogram in full, and below it the histograms of all steps as one shaded line each."""
    parsed = [(step, *_parse_bins(data)) for step, data in histograms]
    finite = [edge for _, _, edges in parsed for edge in edges if math.isfinite(edge)]
    if not finite or width < 12 or height < 3:
        return [[StyledText("no finite values" if not finite else "not enough room", "$dim")]]
    low, high = min(finite), max(finite)
    if high - low < 1e-300:  # too small to divide by
        half = max(0.5, abs(low) * 1e-9)
        low, high = low - half, high + half
    step, counts, edges = parsed[selected]
    num_lines_below = min(len(parsed), height // 2) if len(parsed) > 1 else 0
    rows = max(height - 3 - (num_lines_below + 2 if num_lines_below else 0), 1)
    label_width = max(len(_count_text(max(counts, default=0.0))), 6) + 1
    columns = max(width - label_width, 1)
    column_counts = _column_counts(counts, edges, low, high, columns)
    max_count = max(column_counts, default=0.0)
    lines: Lines = []
    for row in range(rows):
        text = ""
        for share in column_counts:
            full = share / max_count * rows * 8 if max_count else 0.0
            eighths = min(max(math.ceil(full) - (rows - 1 - row) * 8, 0), 8)
            text += _EIGHTHS[eighths]
        label = _count_text(max(counts, default=0.0)) if row == 0 else ""
        lines.append([StyledText(f"{label:>{label_width - 1}} ", "$dim"), StyledText(text, "$primary")])
    lines += _draw_axis(low, high, label_width, columns)
    total = sum(counts)
    mean = sum(n * (a / 2 + b / 2) for n, a, b in zip(counts, edges, edges[1:], strict=False) if n)
    facts = f"{_count_text(total)} values, {len(counts)} bins"
    if total and math.isfinite(mean):
        facts += f", mean about {number_text(mean / total)}"
    lines.append([StyledText(" " * label_width + facts, "$dim")])
    if num_lines_below:
        lines.append(
            [StyledText(truncate(f"{'step':>{label_width - 1}} all steps, one line each", width), "$dim")]
        )
        # The steps around the selected one.
        first = min(max(selected - num_lines_below // 2, 0), len(parsed) - num_lines_below)
        for i in range(first, first + num_lines_below):
            step, counts, edges = parsed[i]
            column_counts = _column_counts(counts, edges, low, high, columns)
            max_share = max(column_counts, default=0.0)
            line = [
                StyledText(
                    _pad("-" if step is None else str(step), label_width - 1, right=True), bold=i == selected
                )
            ]
            line.append(StyledText("▸" if i == selected else " ", "$primary"))
            for share in column_counts:
                shade = share / max_share if max_share else 0.0
                line.append(StyledText(" " if colors else _SHADES[math.ceil(shade * 4)], shade=shade))
            lines.append(_merge_equal_styles(line))
    return lines[:height]


def _parse_bins(data: dict[str, Any]) -> tuple[list[float], list[float]]:
    return [max(_parse_number(n), 0.0) for n in data["counts"]], [
        _parse_number(edge) for edge in data["edges"]
    ]


def _column_counts(
    counts: Sequence[float], edges: Sequence[float], low: float, high: float, columns: int
) -> list[float]:
    """Distribute the counts to `columns` columns, assuming uniform values within each bin."""
    scale = columns / (high - low) if math.isfinite(high - low) else 0.0
    column_counts = [0.0] * columns
    for n, start, end in zip(counts, edges, edges[1:], strict=False):
        if not (n > 0 and math.isfinite(start) and math.isfinite(end) and scale):
            continue
        a, b = (start - low) * scale, (end - low) * scale
        first, last = min(int(a), columns - 1), min(max(math.ceil(b) - 1, int(a)), columns - 1)
        for column in range(first, last + 1):
            overlap = min(b, column + 1) - max(a, column)
            column_counts[column] += n * (overlap / (b - a) if b > a else 1.0)
    return column_counts


def _draw_axis(low: float, high: float, label_width: int, columns: int) -> Lines:
    line, labels = ["─"] * columns, [" "] * (label_width + columns)
    end = 0
    for tick in linear_ticks(low, high, max(columns // 10, 2)):
        column = min(max(round((tick.at - low) / (high - low) * columns), 0), columns - 1)
        start = max(label_width + column - len(tick.text) // 2, 0)
        line[column] = "┬"
        if start >= end and start + len(tick.text) <= len(labels):
            labels[start : start + len(tick.text)] = tick.text
            end = start + len(tick.text) + 1
    return [[StyledText(" " * label_width + "".join(line), "$dim")], [StyledText("".join(labels), "$dim")]]


# --- images


def draw_image(image: Image, width: int, height: int, *, colors: bool = True) -> Lines:
    """Draw an image in half blocks, two pixels per cell, or in characters from dark to light."""
    scaled = fit(image, width, 2 * height)
    lines: Lines = []
    for y in range(0, scaled.height, 2):
        line = []
        for x in range(scaled.width):
            upper = scaled.rgb[(y * scaled.width + x) * 3 :][:3]
            lower = scaled.rgb[((y + 1) * scaled.width + x) * 3 :][:3] if y + 1 < scaled.height else b""
            if colors:
                background = f"#{lower.hex()}" if lower else ""
                line.append(StyledText("▀", f"#{upper.hex()}", background=background))
            else:
                levels = [sum(pixel) / 765 for pixel in (upper, lower) if pixel]
                line.append(StyledText(_GREYS[round(sum(levels) / len(levels) * (len(_GREYS) - 1))]))
        lines.append(_merge_equal_styles(line))
    return lines


# --- text


def _merge_equal_styles(line: list[StyledText]) -> list[StyledText]:
    merged: list[StyledText] = []
    for ink in line:
        if merged and merged[-1][1:] == ink[1:]:
            merged[-1] = merged[-1]._replace(text=merged[-1].text + ink.text)
        else:
            merged.append(ink)
    return merged


def _parse_number(value: object) -> float:
    """Parse a number of a JSON column, where infinities are strings; anything else is NaN."""
    if isinstance(value, int | float):
        return float(value)
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value), math.nan)


def _count_text(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if value == int(value) and value < 1e7 else number_text(value)


def _ratio_text(value: float, width: int = 6) -> str:
    if not math.isfinite(value):
        return "-"
    text = f"{value:.{min(width - 1, 4)}f}"
    return text if len(text) <= width else text.removeprefix("0")[:width]


def _bar_text(share: float, width: int) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * width * 8) if math.isfinite(share) else 0
    return "█" * (eighths // 8) + (_LEFT_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _pad(text: str, width: int, *, right: bool = False) -> str:
    text = truncate(text, width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


# --- texts


def draw_text(text: str, width: int, height: int = 0, colors: bool = True) -> Lines:
    """Draw a text with its lines, wrapped at words."""
    lines: Lines = []
    for line in text.splitlines():
        wrapped = textwrap.wrap(clean(line.expandtabs(4)), width) or [""]
        # Wide characters take two cells.
        lines += [[StyledText(part)] for one in wrapped for part in chop_cells(one, width) or [""]]
    return lines


_GREY = (128, 128, 128, 255)  # behind transparent pixels


class PngError(ValueError):
    """The image cannot be decoded; the message says why."""


class Image(NamedTuple):
    """An RGB image: three bytes per pixel, row by row from the top."""

    width: int
    height: int
    rgb: bytes


def decode(data: bytes) -> Image:
    """Decode a PNG file; transparent pixels are blended on grey.

    Raises:
        PngError: the file is damaged or far too large, or Pillow is not installed.
    """
    try:
        from PIL import Image as pillow
    except ImportError:
        raise PngError("showing images needs Pillow: pip install 'burnt[tui]'") from None
    try:
        with pillow.open(io.BytesIO(data), formats=["PNG"]) as file:
            image = file.convert("RGBA")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise PngError(f"the PNG file is damaged: {error}") from error
    rgb = pillow.alpha_composite(pillow.new("RGBA", image.size, _GREY), image).convert("RGB")
    return Image(*rgb.size, rgb.tobytes())


def fit(image: Image, width: int, height: int) -> Image:
    """Scale an image to at most `width` by `height` pixels, keeping its proportions.

    Large images are reduced by averaging pixels; small ones are enlarged by a whole number, so that pixels
    stay square.
    """
    from PIL import Image as pillow

    if width < 1 or height < 1:
        return Image(0, 0, b"")
    shrink = max(image.width / width, image.height / height)
    if shrink <= 1:
        factor, method = max(min(width // image.width, height // image.height), 1), pillow.Resampling.NEAREST
        size = image.width * factor, image.height * factor
    else:
        method = pillow.Resampling.BOX
        size = max(round(image.width / shrink), 1), max(round(image.height / shrink), 1)
    scaled = pillow.frombytes("RGB", (image.width, image.height), image.rgb).resize(size, method)
    return Image(*size, scaled.tobytes())
