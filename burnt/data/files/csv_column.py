"""Columns of CSV files: fields become numbers, texts or categories, of types declared or inferred."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnt.data.files.csv_source import CsvFile, place_in
from burnt.data.files.schema import (
    BOOL,
    FLOAT,
    INT,
    TEXT,
    Categories,
    Kind,
    Schema,
    bad_cell,
    name_of,
    unfit_cell,
)
from burnt.data.files.table import Column, Numbers, Text, as_dtype
from burnt.data.fitting import misfits
from burnt.errors import DataError

_MISSING = frozenset(("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"))
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TOO_LARGE = "a number that fits float32"
_CODES = re.compile(r"(?:^|\n) *0\d+ *(?:\n|$)")
"""A field such as 00501: digits after a leading zero."""
_INTEGER = re.compile(r" *[+-]?\d+ *")


class ColumnReader:
    """One column while it is read: its converted chunks, its type, and the rows that miss it.

    The type is declared, or inferred from the first chunk that is not all missing; integers become float32
    when a fraction follows.
    """

    def __init__(self, name: str, schema: Schema) -> None:
        self.name = name
        self.kind = schema.kinds.get(name)
        self.absent: list[int] = []
        self.categories: Categories | None = None
        self._schema = schema
        self._is_declared = self.kind is not None
        self._is_category = name in schema.categories
        self._parts: list[Any] = []
        given = schema.categories.get(name)
        self._given = given
        self._codes = {} if given is None else {label: code for code, label in enumerate(given.names)}
        self._code_of_field: dict[str, int] = {}
        self._has_fractions = False
        self._rounded: tuple[int, str] | None = None

    def add(self, fields: list[str], start: int, file: CsvFile) -> None:
        """Convert the fields of the rows from `start` on, after the first `file.num_rows` of a file."""
        if self._is_category:
            self._parts.append(self._encode(fields, start, file))
        elif self.kind is TEXT:
            self._parts.append(Text.of(fields))
        else:
            self._parts.append(self._convert(fields, start, file))

    def _encode(self, fields: list[str], start: int, file: CsvFile) -> NDArray[np.int64]:
        code_of_field = self._code_of_field
        for field in set(fields) - code_of_field.keys():
            value = field.strip()
            if value in _MISSING and value not in self._codes:
                code_of_field[field] = -1
            elif self._given is None:
                code_of_field[field] = self._codes.setdefault(value, len(self._codes))
            elif value in self._codes:
                code_of_field[field] = self._codes[value]
            else:
                row = file.num_rows + fields.index(field)
                raise self._given.unknown(file.place(row), self.name, value)
        codes = np.array([code_of_field[field] for field in fields], np.int64)
        self.absent += (np.flatnonzero(codes < 0) + start).tolist()
        return codes

    def _convert(self, fields: list[str], start: int, file: CsvFile) -> NDArray[Any] | Text:
        """Return the fields as numbers, with zeros for those that are missing, or as text.

        Raises:
            DataError: a field does not fit the declared type, or that of the fields before it.
        """
        try:
            values = self._parse(fields)
            self._note_rounding(fields, values, start, range(len(fields)))
            return values
        except ValueError:
            present = [row for row, field in enumerate(fields) if field.strip() not in _MISSING]
        except OverflowError as error:
            raise self._bad(fields, file) from error
        if not present:  # they may be empty texts: `column` decides
            self.absent += range(start, start + len(fields))
            return Text.of(fields)
        try:
            known = self._parse([fields[row] for row in present])
        except (ValueError, OverflowError) as error:
            if self.kind is not None or isinstance(error, OverflowError):
                raise self._bad(fields, file) from error
            self.kind = TEXT
            self.absent.clear()
            return Text.of(fields)
        self._note_rounding(fields, known, start, present)
        values = np.zeros(len(fields), known.dtype)
        values[present] = known
        self.absent += (np.setdiff1d(np.arange(len(fields)), present) + start).tolist()
        return values

    def _parse(self, fields: list[str]) -> NDArray[Any]:
        """Return fields as numbers of the declared type or the narrowest that fits, which is noted.

        Raises:
            ValueError: not all are numbers, or they are numbers that stand for text.
            OverflowError: one does not fit the type.
        """
        if self.kind is not None and self._is_declared:
            return _parse_as(fields, self.kind)
        if self.kind in (None, INT) and _CODES.search("\n".join(fields)):
            raise ValueError("numbers with leading zeros are codes")
        kind = self.kind or (BOOL if fields[0].strip() in _BOOLS else INT)
        if kind is INT:
            try:
                values = _parse_as(fields, INT)
            except OverflowError as error:
                raise ValueError("integers that do not fit int64 are identifiers") from error
            except ValueError:
                kind = FLOAT
        if kind is not INT:
            values = _parse_as(fields, kind)
        self.kind = kind
        return values

    def _note_rounding(
        self, fields: list[str], values: NDArray[Any], start: int, rows: Sequence[int]
    ) -> None:
        """Note whether the column has fractions, and the first integer in it that its type rounds."""
        if values.dtype.kind != "f" or self._has_fractions:
            return
        self._has_fractions = bool((np.floor(values) != values).any())
        for place in np.flatnonzero(np.abs(values) >= 2.0 ** (np.finfo(values.dtype).nmant + 1)).tolist():
            row = rows[place]
            number = float(fields[row])
            if number % 1 != 0:
                self._has_fractions = True
            elif number != values[place].item() and misfits(np.array([number]), values.dtype)[0]:
                self._rounded = self._rounded or (start + row, fields[row])

    def _bad(self, fields: list[str], file: CsvFile) -> DataError:
        """Return the error for the first field that does not fit the type."""
        misfits = ((row, field, self._misfit(field)) for row, field in enumerate(fields))
        row, field, expected = next(misfit for misfit in misfits if misfit[2])
        hint = None
        if expected == _TOO_LARGE:
            hint = f"types={{{self.name!r}: torch.float64}} has a larger range"
        elif not self._is_declared:
            expected = f"{expected}, as in the rows before it"
            hint = f"types={{{self.name!r}: str}} if the column is text"
        return bad_cell(file.place(file.num_rows + row), self.name, expected, field, hint)

    def _misfit(self, field: str) -> str | None:
        """Return what was expected in place of a field; None if it fits the type, or is missing."""
        if field.strip() in _MISSING:
            return None
        kind = self.kind if self._is_declared or self.kind is BOOL else FLOAT
        assert kind is not None
        try:
            _parse_as([field], kind)
        except OverflowError:
            return _TOO_LARGE if kind is FLOAT else f"a number that fits {kind}"
        except ValueError:
            return name_of(kind)
        if self._is_declared:
            return None
        if self.kind is INT and field.strip("+- ").isdigit() and abs(int(field)) >= 1 << 63:
            return f"a number that fits {INT}"
        return "a number without leading zeros" if self.kind is INT and _CODES.search(field) else None

    def column(self, files: list[CsvFile]) -> Column:
        """Return the whole column, its missing cells filled in.

        Raises:
            DataError: a cell is missing, and that is an error here.
        """
        if self._is_category:
            return self._numbers_of_categories(files)
        if self.kind is TEXT:
            return Text.join(self._parts)
        kind = FLOAT if self.kind is None else self.kind
        parts = [np.zeros(len(part)) if isinstance(part, Text) else part for part in self._parts]
        fill: Any = None
        if self.absent and self._schema.missing != "drop":
            # Inferred integers become float32 where NaN or a fraction takes the place of missing ones.
            fits = FLOAT if kind is INT and not self._is_declared else kind
            fill = self._schema.fill(lambda: place_in(files, self.absent[0]), self.name, fits)
            if kind is INT and not self._is_declared and isinstance(fill, float):
                kind = FLOAT
        assert isinstance(kind, np.dtype)
        if self._rounded is not None and not self._has_fractions:
            row, field = self._rounded
            raise unfit_cell(place_in(files, row), self.name, kind, field)
        start = 0
        for part in parts:

            def place(row: int, start: int = start) -> str:
                return place_in(files, start + row)

            if part.dtype.kind == "i":
                as_dtype(part, kind, self.name, place)
            start += len(part)
        values = np.concatenate([part.astype(kind, copy=False) for part in parts])
        if fill is not None:
            if misfits(np.array([fill]), kind).any():
                raise bad_cell(
                    place_in(files, self.absent[0]), self.name, f"a value of missing= that fits {kind}", fill
                )
            values[self.absent] = fill
        return Numbers(values)

    def _numbers_of_categories(self, files: list[CsvFile]) -> Column:
        codes = np.concatenate(self._parts)
        known = self._given or self._schema.find_categories(self.name, self._codes, len(codes), files[0].path)
        if self._given is None:
            order = [known.index[value] for value in self._codes]
            codes = np.array([*order, -1], np.int64)[codes]
        if self.absent and self._schema.missing != "drop":
            fill = str(self._schema.fill(lambda: place_in(files, self.absent[0]), self.name, None))
            if fill not in known.names:
                raise known.unknown(place_in(files, self.absent[0]), self.name, fill)
            codes[self.absent] = known.names.index(fill)
        self.categories = known
        return Numbers(codes)


def _parse_as(fields: list[str], kind: Kind) -> NDArray[Any]:
    """Return fields as an array of a type.

    Raises:
        ValueError: one is not of the type, or NaN.
        OverflowError: one does not fit the type.
    """
    assert isinstance(kind, np.dtype)
    if kind.kind == "b":
        try:
            return np.array([_BOOLS[field.strip()] for field in fields], np.bool_)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
    if "_" in "".join(fields):
        raise ValueError("Python reads 1_000 as a number, CSV does not")
    if kind.kind == "f":
        wide = np.array(list(map(float, fields)), np.float64)
        if np.isnan(wide).any():
            raise ValueError("NaN stands for a missing value")
        with np.errstate(over="ignore"):
            values = wide.astype(kind, copy=False)
        # Infinity is a value if it is named, as inf; 1e999 does not fit.
        if any("n" not in fields[row].lower() for row in np.flatnonzero(np.isinf(values))):
            raise OverflowError
        large = np.flatnonzero(np.abs(values) >= 2.0 ** (np.finfo(kind).nmant + 1)).tolist()
        if any(_INTEGER.fullmatch(fields[row]) and int(fields[row]) != values[row].item() for row in large):
            raise OverflowError
        return values
    whole = np.array(list(map(int, fields)), np.int64)
    values = whole.astype(kind, copy=False)
    if (values != whole).any():
        raise OverflowError
    return values
