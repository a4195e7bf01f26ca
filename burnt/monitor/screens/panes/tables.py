"""Convert recorded tables to rows of the table widget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from burnt.errors import clean
from burnt.monitor.ui.table import Cell, Column, cell
from burnt.train.format import value_text

_MAX_FIXED_WIDTH = 24


def table_rows(table: dict[str, Any]) -> tuple[list[Column], list[tuple[object, Sequence[Cell]]]]:
    """Convert a table artefact to columns and rows; columns of numbers are right-aligned.

    Raises:
        KeyError, TypeError, IndexError: the table does not have the documented format.
    """
    names = [clean(str(name)) for name in table["columns"]]
    rows = [[row[i] for i in range(len(names))] for row in table["rows"]]
    numeric = [
        all(value is None or _is_number(value) for value in column) and any(map(_is_number, column))
        for column in zip(*rows, strict=True)
    ] or [False] * len(names)
    # The widest text column shrinks if the table does not fit; otherwise the last text column expands.
    widths = [
        0 if numeric[i] else max((len(_value_text(row[i])) for row in rows), default=0)
        for i in range(len(names))
    ]
    last = max((i for i in range(len(names)) if not numeric[i]), default=0)
    grows = widths.index(max(widths)) if max(widths, default=0) > _MAX_FIXED_WIDTH else last
    columns = [Column(name, align_right=numeric[i], expands=i == grows) for i, name in enumerate(names)]
    return columns, [(number, [cell(_value_text(value)) for value in row]) for number, row in enumerate(rows)]


def _is_number(value: object) -> bool:
    numbers = ("NaN", "Infinity", "-Infinity")
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in numbers


def _value_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return value_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
