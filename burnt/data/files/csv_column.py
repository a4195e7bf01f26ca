"""Fields of CSV files as numbers, text or categories of Arrow, of types that are declared or inferred."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from burnt.data.files.schema import BOOL, FLOAT, INT, TEXT, Kind, Schema, bad_cell, name_of, unfit_cell
from burnt.errors import DataError

_SAMPLED = 20_000
_MISSING = frozenset(("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"))
_BOOLS = ("true", "True", "TRUE", "false", "False", "FALSE")
_INTEGER = r"^[+-]?\d+$"
_CODE = r"^0\d+$"
"""A field such as 00501: digits after a leading zero."""

Fields = Any  # a chunked array of pyarrow, in which nulls are missing


def typed_column(fields: Fields, name: str, schema: Schema, where: Callable[[int], str]) -> Fields:
    """Return the fields of a column, text as it stands in the file, as text, bool, int64 or float64 of Arrow.

    Without a declared type in `schema`, it is inferred from the first rows; integers become float64 when a
    fraction follows. ``where(row)`` is the place of a row, for messages.
    """
    import pyarrow
    import pyarrow.compute as compute

    declared = schema.kinds.get(name)
    if declared is TEXT:
        return fields
    trimmed = compute.utf8_trim_whitespace(fields)
    given = schema.categories.get(name)
    missing = sorted(_MISSING.difference(() if given is None else given.names))
    is_missing = compute.is_in(trimmed, pyarrow.array(missing, trimmed.type))
    present = compute.if_else(is_missing, pyarrow.scalar(None, trimmed.type), trimmed)
    if name in schema.categories:
        return present
    kind = declared or _infer(present.drop_null()[:_SAMPLED])
    if kind is TEXT:
        return fields  # in which nothing is missing: an empty field is an empty text
    values = _parse(present, kind, declared is not None)
    if values is None:
        raise _misfit(present, name, kind, declared is not None, where)
    if pyarrow.types.is_floating(values.type):
        dtype = kind if isinstance(kind, np.dtype) and kind.kind == "f" else FLOAT
        _check_literals(present, values, name, dtype, where)
    return values


def _infer(fields: Fields) -> Kind:
    if not len(fields):
        return FLOAT
    if _bools(fields) is not None:
        return BOOL
    if len(_matching(fields, _CODE)):
        return TEXT
    if _integers(fields) is not None:
        return INT
    if len(_matching(fields, _INTEGER)) == len(fields) or _floats(fields) is None:
        return TEXT  # integers that do not fit int64 are identifiers
    return FLOAT


def _parse(fields: Fields, kind: Kind, is_declared: bool) -> Fields | None:
    """Return fields as values of a kind; None if one does not fit."""
    if kind is BOOL:
        return _bools(fields)
    if isinstance(kind, np.dtype) and kind.kind in "iu":
        if not is_declared and len(_matching(fields, _CODE)):
            return None
        values = _integers(fields)
        if values is not None or is_declared or _integers(_matching(fields, _INTEGER)) is None:
            return values
    return _floats(fields)


def _bools(fields: Fields) -> Fields | None:
    import pyarrow
    import pyarrow.compute as compute

    are_known = compute.is_in(fields.drop_null(), pyarrow.array(_BOOLS, fields.type))
    return compute.equal(compute.utf8_lower(fields), "true") if compute.all(are_known).as_py() else None


def _integers(fields: Fields) -> Fields | None:
    import pyarrow
    import pyarrow.compute as compute

    if len(_matching(fields, "[xX]")):
        return None  # which pyarrow takes for hexadecimal
    try:
        return compute.utf8_ltrim(fields, "+").cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        return None


def _floats(fields: Fields) -> Fields | None:
    import pyarrow
    import pyarrow.compute as compute

    try:
        values = fields.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return None
    return None if compute.any(compute.is_nan(values)).as_py() else values


def _matching(fields: Fields, pattern: str) -> Fields:
    import pyarrow.compute as compute

    return fields.filter(compute.match_substring_regex(fields, pattern))


def _misfit(
    fields: Fields, name: str, kind: Kind, is_declared: bool, where: Callable[[int], str]
) -> DataError:
    """Return the error for the first field that does not fit the kind."""

    def ends_unfit(row: int) -> bool:
        return _parse(fields[: row + 1], kind, is_declared) is None

    row = bisect.bisect_left(range(len(fields)), True, key=ends_unfit)
    text = fields[row].as_py()
    expected = name_of(kind)
    if isinstance(kind, np.dtype) and kind.kind in "iu":
        if not is_declared and re.match(_CODE, text):
            expected = "a number without leading zeros"
        elif re.match(_INTEGER, text):
            expected = f"a number that fits {INT}"
        elif not is_declared:
            expected = name_of(FLOAT)
    if is_declared:
        return bad_cell(where(row), name, expected, text)
    hint = f"types={{{name!r}: str}} if the column is text"
    return bad_cell(where(row), name, f"{expected}, as in the rows before it", text, hint)


def _check_literals(
    fields: Fields, values: Fields, name: str, dtype: np.dtype[Any], where: Callable[[int], str]
) -> None:
    """Refuse integers that a dtype rounds, also next to fractions, and 1e999, which is not infinity."""
    numbers = values.fill_null(0).to_numpy()
    rows = np.flatnonzero(np.abs(numbers) >= 2.0 ** (np.finfo(dtype).nmant + 1))
    with np.errstate(over="ignore"):
        cells = numbers[rows].astype(dtype).tolist()
    for row, text, cell in zip(rows.tolist(), fields.take(rows).to_pylist(), cells, strict=True):
        is_wrong = (
            int(text) != cell if re.match(_INTEGER, text) and abs(cell) < np.inf else abs(cell) == np.inf
        )
        if is_wrong and "n" not in text.lower():
            raise unfit_cell(where(row), name, dtype, text)
