"""Rows that are read one by one when they are used: what JSON lines and SQLite tables have in common."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burnt.data.batch import collate
from burnt.data.dataset import checked_index
from burnt.data.files.dates import Date
from burnt.data.files.image_files import ImageFiles
from burnt.data.files.schema import (
    BOOL,
    FLOAT,
    INT,
    OBJECT,
    TEXT,
    Encoding,
    Kind,
    Options,
    RowItems,
    Schema,
    Vector,
    bad_cell,
    bad_date,
    check_entry,
    find_range,
    name_of,
    not_numeric,
    unfit_cell,
)
from burnt.data.fitting import misfits

_SAMPLED = 1000


class RowDataset(RowItems, ABC):
    """Items that are rows of values of Python, each converted to the types of its columns when it is read.

    `categories` has each column of class names, and the names by their number; `columns` the names of all
    columns in the first rows.
    """

    def _prepare(self, source: str, options: Options, more_columns: Iterable[str] = ()) -> None:
        """Infer types from the first rows; find the categories that the user did not give.

        `more_columns` are those that the first rows may lack.
        """
        first_rows = [self.read(index) for index in range(min(len(self), _SAMPLED))]
        self.columns = list(dict.fromkeys(itertools.chain(*first_rows)))
        columns = list(dict.fromkeys([*self.columns, *more_columns]))
        self._schema = schema = Schema.create(options, columns, source)
        self._kinds = {column: self._kind(column, first_rows) for column in schema.used}
        self._converters = {
            column: _converter(kind, _has_fractions(row.get(column) for row in first_rows))
            for column, kind in self._kinds.items()
        }
        self._known = schema.find_categories(self._distinct, len(self), source)
        self.categories = schema.category_names(self._known)
        self._classes = schema.class_names(self._known)
        cells = {
            column: [self._converters[column](row.get(schema.source(column))) for row in first_rows]
            for column, kind in self._kinds.items()
            if (isinstance(kind, np.dtype) and kind.kind != "b") or isinstance(kind, Date)
        }
        found = {
            column: find_range(np.array([cell for cell in values if cell is not None], np.float64))
            for column, values in cells.items()
        }
        self._ranges = {column: values for column, values in found.items() if values is not None}
        self._dtypes = {
            entry: self._vector_dtype(entry, names)
            for entry, names in schema.fields.items()
            if not isinstance(names, str)
        }

    def encoding(self) -> Encoding:
        """Return how columns become entries; ranges are those of the first rows."""
        return Encoding(self._schema, self._kinds, self._known, self._ranges, {})

    @abstractmethod
    def read(self, index: int) -> Mapping[str, Any]:
        """Return the values of a row; raise a DataError that names the row if it cannot be read."""

    @abstractmethod
    def place(self, index: int) -> str:
        """Return the place of an item, ``"posts.jsonl, line 7"``."""

    def _distinct(self, column: str) -> Iterable[Any]:
        """Return the distinct values of a column."""
        values: dict[Any, None] = {}
        for index in range(len(self)):
            value = self.read(index).get(column)
            try:
                values[value] = None
            except TypeError:
                raise bad_cell(self.place(index), column, "text or a number, as a category", value) from None
        return [value for value in values if value is not None]

    def column(self, name: str) -> Any:
        """Return a whole column, read row by row: a tensor ``[n, ...]``, or a list of other cells."""
        check_entry(name, self._schema.fields)
        return collate([self[index][name] for index in range(len(self))])

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = checked_index(index, len(self))
        row = self.read(index)
        item = {}
        for entry, names in self._schema.fields.items():
            if isinstance(names, str):
                item[entry] = self._cell(row, names, index)
            else:
                cells = [self._cell(row, name, index) for name in names]
                item[entry] = torch.from_numpy(self._stack(cells, names, entry, index))
        return item

    def _stack(self, cells: list[Any], names: list[str], entry: str, index: int) -> NDArray[Any]:
        vector = np.array(cells, self._dtypes[entry])
        if vector.dtype.kind == "f":
            for name, cell, number in zip(names, cells, vector.tolist(), strict=True):
                if isinstance(cell, np.integer) and int(cell) != number:
                    raise unfit_cell(f"{self.place(index)}, entry {entry!r}", name, vector.dtype, int(cell))
        return vector

    def _cell(self, row: Mapping[str, Any], column: str, index: int) -> Any:
        kind, value = self._kinds[column], row.get(self._schema.source(column))
        if value is None and self._schema.kinds.get(column) is not OBJECT:
            value = self._schema.fill(lambda: self.place(index), column, kind)
        if column in self._known:
            return np.int64(self._known[column].number(lambda: self.place(index), column, value))
        cell = self._converters[column](value)
        if cell is None and isinstance(kind, Date):
            raise bad_date(self.place(index), column, kind, value)
        if cell is None and value is not None:
            declared = column in self._schema.kinds
            expected, wider = name_of(kind), "float" if kind is INT and type(value) is float else "object"
            if isinstance(kind, Vector):
                expected += f" that fit {kind.dtype}"
            elif isinstance(kind, np.dtype) and _is_too_large(value, kind):
                expected += f" that fits {kind}"
                wider = "torch.float64" if kind is FLOAT else wider
            raise bad_cell(
                self.place(index),
                column,
                expected if declared else f"{expected}, as in the first rows",
                value,
                None if declared else f"types={{{column!r}: {wider}}} declares the type",
            )
        if isinstance(kind, ImageFiles):
            return kind.read(column, self.place, cell, index)
        return cell

    def _kind(self, column: str, first_rows: list[Mapping[str, Any]]) -> Kind:
        if column in self._schema.categories:
            return OBJECT
        if column in self._schema.kinds:
            return self._schema.kinds[column]
        values = [row.get(column) for row in first_rows]
        kind = _infer([value for value in values if value is not None])
        # Integers become float32 where NaN takes the place of missing ones.
        return FLOAT if kind is INT and self._schema.missing == "nan" and None in values else kind

    def _vector_dtype(self, entry: str, names: list[str]) -> np.dtype[Any]:
        kinds = [INT if name in self._known else self._kinds[name] for name in names]
        kinds = [FLOAT if isinstance(kind, Date) else kind for kind in kinds]
        dtypes = [kind for kind in kinds if isinstance(kind, np.dtype)]
        for name, kind in zip(names, kinds, strict=True):
            if not isinstance(kind, np.dtype):
                raise not_numeric(entry, name, f"column {name!r}", name_of(kind))
        # Integers next to float32 would become float64.
        return np.result_type(*([dtype for dtype in dtypes if dtype.kind == "f"] or dtypes))


def _infer(values: list[Any]) -> Kind:
    types = set(map(type, values))
    if types <= {list} and types:
        numbers = list(itertools.chain.from_iterable(map(flatten, values)))
        inner = _infer(numbers)
        return Vector(inner) if inner is INT or inner is FLOAT else OBJECT
    for kind, fitting in ((BOOL, {bool}), (INT, {int}), (FLOAT, {int, float}), (TEXT, {str})):
        if types and types <= fitting:
            return kind
    return OBJECT


def flatten(value: list[Any]) -> Iterable[Any]:
    """Iterate over what is in a list and the lists in it."""
    for item in value:
        if isinstance(item, list):
            yield from flatten(item)
        else:
            yield item


def _has_fractions(values: Iterable[Any]) -> bool:
    return any(type(value) is float and math.isfinite(value) and value % 1 != 0 for value in values)


def _converter(kind: Kind, is_measured: bool = False) -> Callable[[Any], Any]:
    """Return the function from a value to the cell of a kind, or to None if it does not fit."""
    if kind is OBJECT:
        return _as_object
    if kind is TEXT or isinstance(kind, ImageFiles):
        return _as_text
    if isinstance(kind, Date):
        return partial(_as_date, kind)
    if isinstance(kind, Vector):
        return partial(_as_tensor, kind.dtype)
    assert isinstance(kind, np.dtype)
    if kind.kind == "b":
        return _as_bool
    if kind.kind == "f":
        return partial(_as_float, kind, float(np.finfo(kind).max), 1 << np.finfo(kind).nmant + 1, is_measured)
    return partial(_as_int, kind.type)


def _as_object(value: Any) -> Any:
    return value


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_bool(value: Any) -> np.bool_ | None:
    return np.bool_(value) if type(value) in (bool, int) and value in (0, 1) else None


def _as_date(kind: Date, value: Any) -> np.float32 | None:
    number = kind.number(value)
    return None if number is None else np.float32(number)


def _as_float(dtype: np.dtype[Any], largest: float, exact: int, is_measured: bool, value: Any) -> Any:
    if type(value) is not float and type(value) is not int:
        return None
    if abs(value) <= exact or (type(value) is float and not math.isfinite(value)):
        return dtype.type(value)
    # float32 would turn 1e39 into infinity, and 16777217 into 16777216.
    if abs(value) > largest:
        return None
    cell = dtype.type(value)
    if type(value) is int:
        return cell if int(cell) == value else None
    return None if misfits(np.array([value]), dtype, is_measured=is_measured)[0] else cell


def _as_int(type_: type, value: Any) -> Any:
    if type(value) is not int:
        return None
    try:
        return type_(value)
    except OverflowError:
        return None


def _as_tensor(dtype: np.dtype[Any], value: Any) -> torch.Tensor | None:
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
    except ValueError:  # lists of different lengths
        return None
    if array.size and array.dtype.kind not in ("i" if dtype.kind == "i" else "if"):
        return None
    if misfits(array, dtype).any():
        return None
    if array.dtype.kind == dtype.kind == "f" and (np.abs(array) > 1 << np.finfo(dtype).nmant + 1).any():
        # NumPy made integers floats because there are floats next to them.
        whole = [cell for cell in np.array(value, dtype=object).ravel() if type(cell) is int]
        if any(int(dtype.type(cell)) != cell for cell in whole):
            return None
    return torch.from_numpy(array.astype(dtype))


def _is_too_large(value: Any, kind: np.dtype[Any]) -> bool:
    """Whether a number is of the right type, but out of its range."""
    return (type(value) is int and kind.kind != "b") or (type(value) is float and kind.kind == "f")
