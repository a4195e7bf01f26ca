"""QuantReport: what `burnt.quantize` did with each layer, as objects, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from burnt._files import replacing
from burnt.errors import ConfigError, quantity
from burnt.plot import Points, Scatter

_MOST_ROWS = 24  # above, layers that differ only in a number of their path share a row
_NARROWEST_PATH = 30  # characters of a path that must fit before columns are left out


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """One layer of a model that was quantized.

    Args:
        path: the layer's path.
        layer: the name of its class.
        shape: the shape of its weight.
        scheme: the name of the scheme; None if it was skipped.
        bytes_before: the size of its weight and bias.
        bytes_after: the size of its values, scales, zero points and bias.
        sqnr: signal-to-quantization-noise ratio of the weight, in dB; None if it was skipped.
        output_error: the norm of the output's error divided by the output's norm, on the calibration set;
            None without one.
        why_skipped: why it was not quantized, or None.
    """

    path: str
    layer: str
    shape: tuple[int, ...]
    scheme: str | None
    bytes_before: int
    bytes_after: int
    sqnr: float | None = None
    output_error: float | None = None
    why_skipped: str | None = None


@dataclasses.dataclass(frozen=True)
class QuantReport:
    """The layers that `burnt.quantize` quantized or skipped, in the model's order.

    Args:
        layers: a report for each layer with parameters.
        notes: what was done besides, such as batch norms that were folded.
    """

    layers: tuple[LayerReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> tuple[LayerReport, ...]:
        """The layers that were quantized."""
        return tuple(layer for layer in self.layers if layer.scheme is not None)

    @property
    def skipped(self) -> tuple[LayerReport, ...]:
        """The layers that were not, each with its reason."""
        return tuple(layer for layer in self.layers if layer.scheme is None)

    @property
    def bytes_before(self) -> int:
        """Bytes of all parameters before."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Bytes of all parameters and quantized values after."""
        return sum(layer.bytes_after for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "notes": list(self.notes),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as JSON to a file, which is replaced if it exists.

        Raises:
            OSError: the file cannot be written.
        """
        with replacing(path) as temporary:
            temporary.write_text(self.to_json() + "\n", encoding="utf-8")
        return Path(path)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Scatter:
        """Draw each quantized layer's error against its size, by scheme.

        The error is the layer's output error on the calibration set, or without one its weight's error,
        relative to the weight.

        Args:
            path: an ``.svg`` file to write, which is replaced if it exists.

        Returns:
            the drawing: ``print(report.plot())`` shows it as text, a notebook as SVG.

        Raises:
            ConfigError: the file's name does not end with ``.svg``.
            OSError: the file cannot be written.

        >>> import torch, burnt
        >>> report = burnt.quantize(torch.nn.Sequential(torch.nn.Linear(64, 32)), "int8")
        >>> drawing = report.plot()
        >>> [group.name for group in drawing.groups], drawing.y
        (['int8'], 'error of the weight')
        """
        if path is not None and Path(path).suffix.lower() != ".svg":
            raise ConfigError(
                "drawings are written as SVG",
                expected="a name that ends with .svg",
                found=repr(os.fspath(path)),
            )
        has_outputs = any(layer.output_error is not None for layer in self.quantized)
        layers: dict[str, list[tuple[float, float, str]]] = {}
        for layer in self.quantized:
            error = layer.output_error
            if not has_outputs and layer.sqnr not in (None, -math.inf):
                error = 10 ** (-(layer.sqnr or 0.0) / 20)  # of the weight, from the ratio in dB
            if error is not None and layer.bytes_after:
                layers.setdefault(layer.scheme or "", []).append((layer.bytes_after / 1e3, error, layer.path))
        groups = [Points(scheme, *zip(*points, strict=True)) for scheme, points in layers.items()]
        what = "error of the output" if has_outputs else "error of the weight"
        drawing = Scatter(groups, x="size of the layer, kB", y=what)
        if path is not None:
            with replacing(path) as temporary:
                temporary.write_text(drawing.svg(), encoding="utf-8")
        return drawing

    def text(self, width: int | None = None, *, every_layer: bool = False) -> str:
        """Return the report as a table.

        With more than 24 quantized layers, those whose paths differ only in a number, such as those of a
        transformer's blocks, share a row: with their bytes together, the lowest SQNR and the largest error.

        Args:
            width: the longest line; long paths are cut to it, reasons wrapped, and where it is small columns
                are left out: first the class and a scheme that all layers share. None is unlimited.
            every_layer: a row for every layer.
        """
        part = self.bytes_after / self.bytes_before if self.bytes_before else 1.0
        total = f"{decimal_size(self.bytes_before)} -> {decimal_size(self.bytes_after)} ({part:.1%})"
        lines = [f"{quantity(len(self.quantized), 'layer')} quantized, {total}"]
        collapse = not every_layer and len(self.quantized) > _MOST_ROWS
        rows = [_row(group) for group in _groups(self.quantized, collapse)]
        lines += _table(rows, width)
        if self.skipped:
            lines.append(f"{quantity(len(self.skipped), 'layer')} skipped")
        reasons: dict[tuple[str, str | None], list[str]] = {}
        for layer in self.skipped:
            reasons.setdefault((layer.layer, layer.why_skipped), []).append(layer.path)
        for (kind, why), paths in reasons.items():
            named = ", ".join(_patterns(paths)) if every_layer else _first_patterns(_patterns(paths))
            lines += _wrapped(f"  {kind}: {why}  ({named})", width, "    ")
        for note in self.notes:
            lines += _wrapped(f"note: {note}", width, "  ")
        return "\n".join(lines)

    def __str__(self) -> str:
        """The table, as wide as the terminal; whole lines where the output is not a terminal."""
        return self.text(shutil.get_terminal_size((0, 0)).columns or None)


_HEADINGS = ("layer", "class", "scheme", "bytes", "SQNR", "output error")
_SCHEME = 2
_DROPPABLE = (1, 3, 4, _SCHEME)  # columns that a narrow terminal leaves out, in this order
_MOST_RANGES = 4  # of numbers in a pattern


def _groups(layers: Sequence[LayerReport], collapse: bool) -> list[tuple[str, tuple[LayerReport, ...]]]:
    """Return the rows of the table: a path or pattern, and its layers, in the model's order."""
    if not collapse:
        return [(layer.path, (layer,)) for layer in layers]
    found: dict[tuple[object, ...], list[LayerReport]] = {}
    for layer in layers:
        key = (_template(layer.path), layer.layer, layer.scheme, layer.shape)
        found.setdefault(key, []).append(layer)
    return [(_pattern([layer.path for layer in group]), tuple(group)) for group in found.values()]


def _row(group: tuple[str, tuple[LayerReport, ...]]) -> tuple[str, ...]:
    path, layers = group
    first = layers[0]
    before, after = (
        sum(getattr(layer, name) for layer in layers) for name in ("bytes_before", "bytes_after")
    )
    ratios = [layer.sqnr for layer in layers if layer.sqnr is not None]
    errors = [layer.output_error for layer in layers if layer.output_error is not None]
    return (
        path,
        first.layer if len(layers) == 1 else f"{len(layers)} {first.layer}",
        first.scheme or "",
        f"{decimal_size(before)} -> {decimal_size(after)}",
        f"{min(ratios):.1f} dB" if ratios else "",
        f"{max(errors):.2%}" if errors else "",
    )


def _table(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """Return the lines of the table with its headings; columns without content are left out."""
    if not rows:
        return []
    columns = [i for i in range(len(_HEADINGS)) if any(row[i] for row in rows)]
    widths = {i: max(len(row[i]) for row in [_HEADINGS, *rows]) for i in columns}

    def left_for_path() -> int:
        return (width or 0) - sum(2 + widths[i] for i in columns[1:]) - 2

    if width is not None:
        is_one_scheme = len({row[_SCHEME] for row in rows}) == 1
        for column in (1, _SCHEME, 3, 4) if is_one_scheme else _DROPPABLE:
            if column in columns and left_for_path() < min(widths[0], _NARROWEST_PATH):
                columns.remove(column)
        widths[0] = min(widths[0], max(left_for_path(), 12))
    lines = []
    for row in [_HEADINGS, *rows]:
        cells = [_cut(row[0], widths[0]), *(row[i] for i in columns[1:])]
        line = "  ".join(cell.ljust(widths[i]) for i, cell in zip(columns, cells, strict=True))
        lines.append(f"  {line}".rstrip())
    return lines


def _cut(path: str, length: int) -> str:
    """Shorten a path at its beginning, which says least."""
    return path if len(path) <= length else f"…{path[len(path) - length + 1 :]}"


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """Return the lines of a text whose words fit a width; words that do not are kept whole."""
    if width is None:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _template(path: str) -> str:
    """Return a path with ``*`` for its numbers."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _pattern(paths: Sequence[str]) -> str:
    """Return a path for several of the same template: numbers that differ become ``[0-11]``, ``[3,7]``, or
    ``*`` where they are many.

    >>> _pattern(["layers.0.ff.1", "layers.1.ff.1", "layers.2.ff.1"]), _pattern(["a.3.x", "a.7.x"])
    ('layers.[0-2].ff.1', 'a.[3,7].x')
    """
    parts = []
    for column in zip(*(path.split(".") for path in paths), strict=True):
        if len(set(column)) == 1:
            parts.append(column[0])
            continue
        ranges = _ranges(sorted(set(map(int, column))))
        texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
        parts.append(f"[{','.join(texts)}]" if len(texts) <= _MOST_RANGES else "*")
    return ".".join(parts)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of successive numbers, which are sorted.

    >>> _ranges([0, 2, 3, 4, 7])
    [(0, 0), (2, 4), (7, 7)]
    """
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges


def _patterns(paths: Iterable[str]) -> list[str]:
    """Return patterns for paths, one template's together."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(_template(path), []).append(path)
    return [_pattern(group) for group in found.values()]


def _first_patterns(patterns: Sequence[str]) -> str:
    """Return the first three patterns, and how many more there are."""
    shown = ", ".join(patterns[:3])
    return shown if len(patterns) <= 3 else f"{shown} and {len(patterns) - 3} more"


def decimal_size(count: int) -> str:
    """Format a number of bytes: ``1.5 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
