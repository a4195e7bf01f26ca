"""Parquet files and dataframes as datasets, by way of Arrow: pyarrow is imported when it is used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import Batch
from burnt.data.files import Handle, Paths, find_files
from burnt.data.schema import (
    BOOL,
    FLOAT,
    INT,
    OBJECT,
    TEXT,
    Categories,
    Kind,
    Options,
    Schema,
    Vector,
    bad_cell,
    check_entry,
    name_of,
)
from burnt.data.table import Column, Lists, Numbers, Objects, Table, Text, stack, take_across
from burnt.errors import DataError, quantity

if TYPE_CHECKING:
    import pyarrow

__all__ = ["DataframeDataset", "ParquetDataset"]


def _pyarrow(purpose: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{purpose} needs a further package", expected="pyarrow", hint='pip install "burnt[data]"'
        ) from error
    return pyarrow


class DataframeDataset(Table):
    """Rows of a dataframe of pandas or polars, a table of pyarrow, or anything else that exports Arrow.

    The columns are converted once: numbers to NumPy arrays, text to UTF-8. Integers become int64 and floats
    float32, unless `types` declares others. Lists of a fixed size (`fixed_size_list`, polars' `Array`) become
    tensors ``[k]``; with lists of different lengths there is no `take`, and a loader's `batcher` pads them.
    The index of a pandas frame is left out.

    Args:
        frame: the dataframe.
        columns: the columns to keep; or a mapping from each entry of an item to its column, or to several
            columns that are stacked to one tensor ``[k]``.
        types: types of columns: int, float, bool, str, a dtype of torch, or object for values of Python.
        label: the column with the class of each row: it becomes the number of the class, int64, and
            `classes` the list of names, sorted.
        categories: further columns whose values become numbers; or a mapping from columns to all their
            values in order.
        missing: what is done for nulls, and for NaN: ``"error"``; ``"nan"``, for numbers; or a mapping from
            columns to the value that is filled in.

    Raises:
        DataError: a column does not exist, or a cell is missing or does not fit its type.

    >>> import pandas
    >>> frame = pandas.DataFrame({"rooms": [2, 5, 3], "kind": ["flat", "house", "flat"]})
    >>> flats = DataframeDataset(frame, label="kind")
    >>> flats.take(torch.tensor([1, 2])).kind, flats.classes
    (tensor([1, 0]), ['flat', 'house'])
    """

    @explain_arguments()
    def __init__(
        self,
        frame: Any,
        *,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        types: Mapping[str, Any] | None = None,
        label: str | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[Any]] = (),
        missing: str | Mapping[str, Any] = "error",
    ) -> None:
        arrow = _pyarrow("a DataframeDataset")
        if not hasattr(frame, "__arrow_c_stream__"):
            raise DataError(
                "this is no dataframe",
                expected="a DataFrame of pandas or polars, or a table of pyarrow",
                found=type(frame).__name__,
                hint="frame.collect() makes one of a LazyFrame" if hasattr(frame, "collect") else None,
            )
        names = _names(frame.schema if isinstance(frame, arrow.Table) else frame)
        if not all(isinstance(column, str) for column in names):
            raise DataError("the columns of a dataframe need names", found=repr(names))
        options = Options(columns, types, label, categories, missing)
        schema = Schema.create(options, names, "the dataframe")
        used = schema.used
        table = (
            frame.select(used) if isinstance(frame, arrow.Table) else arrow.table(frame[used]).select(used)
        )
        known = _categories(schema, lambda column: _distinct(table[column]))
        kinds = _kinds(schema, table.schema, lambda column: _has_gaps(table[column]))
        super().__init__(_entries(table, schema, kinds, known, self.place), known, schema)

    def place(self, index: int) -> str:
        """Return the place of an item, ``"the dataframe, row 7"``, counted from 0."""
        return f"the dataframe, row {index}"


class ParquetDataset:
    """Rows of Parquet files, read one row group at a time, when a row of it is used for the first time.

    Row groups that have been read stay in memory, converted as in a `DataframeDataset`, up to `memory` bytes
    in each process; beyond that, those that were not used for longest are dropped. A shuffled order over more
    than that reads row groups again and again: write smaller ones, or select fewer columns.

    Args:
        path: a file, a pattern such as ``"part-*.parquet"``, or a list of these, with the same columns.
        columns: the columns to read; or a mapping from each entry of an item to its column, or to several
            columns that are stacked to one tensor ``[k]``. Others are not read from the file.
        types: types of columns: int, float, bool, str, a dtype of torch, or object for values of Python.
        label: the column with the class of each row: it becomes the number of the class, int64, and
            `classes` the list of names, sorted. The column is read once to find them, unless `categories`
            has them.
        categories: further columns whose values become numbers; or a mapping from columns to all their
            values in order.
        missing: what is done for nulls, and for NaN: ``"error"``; ``"nan"``, for numbers; or a mapping from
            columns to the value that is filled in.
        memory: bytes of row groups that are kept.

    Raises:
        DataError: a file is missing or damaged, or a cell is missing or does not fit its type.

    >>> import pathlib, tempfile, pyarrow, pyarrow.parquet
    >>> path = pathlib.Path(tempfile.mkdtemp(), "flats.parquet")
    >>> pyarrow.parquet.write_table(pyarrow.table({"rooms": [2, 5, 3], "area": [51.5, 120, 80]}), path)
    >>> ParquetDataset(path, columns={"x": ["rooms", "area"]})[1]
    {'x': tensor([  5., 120.])}
    """

    @explain_arguments()
    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        types: Mapping[str, Any] | None = None,
        label: str | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[Any]] = (),
        missing: str | Mapping[str, Any] = "error",
        memory: int = 1 << 30,
    ) -> None:
        _pyarrow("a ParquetDataset")
        self._paths = find_files(path)
        self._files = [Handle(_open, file) for file in self._paths]
        self._groups: list[_Group] = []
        for number, handle in enumerate(self._files):
            metadata = handle.get().metadata
            first_row = 0
            for group in range(metadata.num_row_groups):
                length = metadata.row_group(group).num_rows
                self._groups.append(_Group(number, group, first_row, length))
                first_row += length
        self._starts = torch.tensor([0, *(group.length for group in self._groups)]).cumsum(0)
        if len(self) == 0:
            raise DataError("there are no rows", where=self._paths[0])
        arrow_schema = self._files[0].get().schema_arrow
        options = Options(columns, types, label, categories, missing)
        self._schema = Schema.create(options, _names(arrow_schema), self._paths[0])
        for file, handle in zip(self._paths, self._files, strict=True):
            names = handle.get().schema_arrow.names
            absent = [column for column in self._schema.used if column not in names]
            if absent:
                raise DataError(
                    "the files have different columns",
                    where=file,
                    expected=f"{', '.join(self._schema.used)}, as in {self._paths[0]}",
                    found=f"no column {absent[0]!r} in {', '.join(names)}",
                )
        self._known = _categories(self._schema, self._distinct)
        self._kinds = _kinds(self._schema, arrow_schema, self._may_have_gaps)
        self.categories = {column: known.values for column, known in self._known.items()}
        self._classes = self._schema.class_names(self._known)
        self._has_take = all(
            column in self._known or _has_one_shape(kind, arrow_schema.field(column).type)
            for column, kind in self._kinds.items()
        )
        self._memory = memory
        self._tables: OrderedDict[int, Table] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def classes(self) -> list[str]:
        """The names of the classes by their number, if there is a column of classes."""
        if self._classes is None:
            raise AttributeError("there are no classes: label= names their column")
        return self._classes

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({quantity(len(self), 'row')})"

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        number, row = self._find(index % len(self))
        return self._table(number)[row]

    def column(self, name: str) -> Any:
        """Return a whole column, read from the files: a tensor ``[n, ...]``, or a list of other cells.

        Raises:
            DataError: there is no such column.
        """
        check_entry(name, self._schema.fields)
        parts = [self._table(number).column(name) for number in range(len(self._groups))]
        return torch.cat(parts) if isinstance(parts[0], Tensor) else [cell for part in parts for cell in part]

    @property
    def take(self) -> Callable[[Tensor], Batch]:
        """``take(indices)`` returns the items at indices, ``[n]`` of int64, as one batch.

        There is none if cells differ in shape: a loader's `batcher` then gets the items, to pad them.
        """
        if not self._has_take:
            raise AttributeError("the cells of a column differ in shape")
        return self._take

    def _take(self, indices: Tensor) -> Batch:
        batch: Batch = take_across(self._take_of_group, self._starts, indices)
        return batch

    def _take_of_group(self, number: int, indices: Tensor) -> Batch:
        return self._table(number).take(indices)

    def place(self, index: int) -> str:
        """Return the file and row of an item, counted from 0, ``"flats.parquet, row 7"``."""
        number, row = self._find(index)
        return self._place(number, row)

    def _place(self, number: int, row: int) -> str:
        group = self._groups[number]
        return f"{self._paths[group.file]}, row {group.first_row + row}"

    def _find(self, index: int) -> tuple[int, int]:
        number = int(torch.searchsorted(self._starts, index, right=True)) - 1
        return number, index - int(self._starts[number])

    def _table(self, number: int) -> Table:
        """Return the rows of a row group, from memory if they were used before."""
        with self._lock:
            table = self._tables.get(number)
            if table is None:
                cells = self._read(number, self._schema.used)
                where = partial(self._place, number)
                columns = _entries(cells, self._schema, self._kinds, self._known, where)
                table = self._tables[number] = Table(columns, self._known, self._schema)
                while len(self._tables) > 1 and sum(t.nbytes for t in self._tables.values()) > self._memory:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(number)
            return table

    def _read(self, number: int, columns: list[str]) -> pyarrow.Table:
        group = self._groups[number]
        path = self._paths[group.file]
        with _reading(f"{path}, row group {group.number}"):
            return self._files[group.file].get().read_row_group(group.number, columns=columns)

    def _distinct(self, column: str) -> list[Any]:
        groups = range(len(self._groups))
        return list({value for group in groups for value in _distinct(self._read(group, [column])[column])})

    def _may_have_gaps(self, column: str) -> bool:
        """Whether a column has nulls, as far as the files tell."""
        for group in self._groups:
            metadata = self._files[group.file].get().metadata.row_group(group.number)
            chunks = (metadata.column(number) for number in range(metadata.num_columns))
            chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
            statistics = chunk.statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                return True
        return False


class _Group(NamedTuple):
    """A row group: its file, its number there, the number of its first row there, and its length."""

    file: int
    number: int
    first_row: int
    length: int


def _open(path: str) -> Any:
    with _reading(path):
        return _pyarrow("a ParquetDataset").parquet.ParquetFile(path)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError("the file cannot be read", where=where, found=str(error)) from error


def _names(columns: Any) -> list[Any]:
    """Return the names of the columns of a schema or frame, without the index of a pandas frame."""
    names = columns.names if hasattr(columns, "names") else columns.columns
    return [name for name in names if not str(name).startswith("__index_level_")]


def _categories(schema: Schema, distinct: Callable[[str], list[Any]]) -> dict[str, Categories]:
    return {
        column: Categories.found(distinct(column)) if given is None else given
        for column, given in schema.categories.items()
    }


def _distinct(cells: pyarrow.ChunkedArray) -> list[Any]:
    return [value for value in cells.unique().to_pylist() if value is not None]


def _has_gaps(cells: pyarrow.ChunkedArray) -> bool:
    return bool(cells.null_count)


def _kinds(schema: Schema, arrow_schema: pyarrow.Schema, has_gaps: Callable[[str], bool]) -> dict[str, Kind]:
    kinds = {}
    for column in schema.used:
        kind = schema.kinds.get(column, _kind(arrow_schema.field(column).type))
        # Integers become float32 where NaN or a fraction takes the place of missing ones.
        filled_by = schema.missing if isinstance(schema.missing, str) else schema.missing.get(column)
        is_open = kind is INT and column not in schema.kinds and column not in schema.categories
        if is_open and (filled_by == "nan" or isinstance(filled_by, float)) and has_gaps(column):
            kind = FLOAT
        kinds[column] = kind
    return kinds


def _kind(found: pyarrow.DataType) -> Kind:
    """Return what the cells of an Arrow type become."""
    import pyarrow

    types = pyarrow.types
    if types.is_dictionary(found):
        return _kind(found.value_type)
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        inner = _kind(found.value_type)
        if isinstance(inner, Vector):
            return inner
        return Vector(inner) if inner is INT or inner is FLOAT else OBJECT
    if types.is_string(found) or types.is_large_string(found) or types.is_string_view(found):
        return TEXT
    if types.is_boolean(found):
        return BOOL
    if types.is_integer(found):
        return INT
    return FLOAT if types.is_floating(found) or types.is_decimal(found) else OBJECT


def _has_one_shape(kind: Kind, found: pyarrow.DataType) -> bool:
    """Whether all cells of a kind, from an Arrow type, have the same shape."""
    import pyarrow

    if isinstance(kind, Vector):
        is_fixed: bool = pyarrow.types.is_fixed_size_list(found)
        return is_fixed and not isinstance(_kind(found.value_type), Vector)
    return kind is not OBJECT


def _entries(
    table: pyarrow.Table,
    schema: Schema,
    kinds: Mapping[str, Kind],
    known: Mapping[str, Categories],
    where: Callable[[int], str],
) -> dict[str, Column]:
    columns = {
        name: _column(table[name], name, schema, kinds[name], known.get(name), where)
        for name in table.column_names
    }
    return stack(columns, schema, where)


def _column(
    chunks: pyarrow.ChunkedArray,
    name: str,
    schema: Schema,
    kind: Kind,
    known: Categories | None,
    where: Callable[[int], str],
) -> Column:
    """Return an Arrow column in memory of our own.

    Raises:
        DataError: a cell is missing, or does not fit the type.
    """
    import pyarrow

    types, type_ = pyarrow.types, chunks.type
    if types.is_dictionary(type_):
        type_ = pyarrow.large_string() if _kind(type_) is TEXT else type_.value_type
        values = [chunk.dictionary.cast(type_).take(chunk.indices) for chunk in chunks.chunks]
        chunks = pyarrow.chunked_array(values, type_)
    if _kind(type_) is TEXT or kind is TEXT:  # string's offsets of 32 bits end at 2 GB
        type_ = pyarrow.large_string()
        chunks = chunks.cast(type_)
    gaps = np.flatnonzero(chunks.is_null(nan_is_null=True).to_numpy())
    fill = None
    if len(gaps) and schema.kinds.get(name) is not OBJECT:
        fill = schema.fill(lambda: where(int(gaps[0])), name, kind)
    array = chunks.combine_chunks()
    if known is not None:
        return _numbers(array, name, known, gaps, fill, where)
    if kind is TEXT:
        return _text(array if fill is None else array.fill_null(fill))
    if kind is OBJECT:
        return Objects(array, partial(_as_python, fill))
    if isinstance(kind, Vector):
        if fill is not None:
            place = where(int(gaps[0]))
            raise bad_cell(place, name, name_of(kind), "nothing", "missing= does not fill in lists")
        if not isinstance(_kind(type_), Vector):
            raise bad_cell(where(0), name, name_of(kind), f"a column of {type_}")
        return _vectors(array, name, kind.dtype, where)
    assert isinstance(kind, np.dtype)
    if types.is_decimal(type_):
        array = array.cast(pyarrow.float64())
    if not isinstance(_kind(type_), np.dtype):
        raise bad_cell(where(0), name, name_of(kind), f"a column of {type_}")
    values = array.fill_null(pyarrow.scalar(0).cast(array.type)).to_numpy(zero_copy_only=False)
    if fill is not None:
        values = values.astype(np.result_type(values, np.asarray(fill)))
        values[gaps] = fill
    return Numbers(_fitting(values, kind, name, where))


def _as_python(fill: Any, cell: pyarrow.Scalar) -> Any:
    value = cell.as_py()
    return fill if value is None else value


def _as_tensor(dtype: np.dtype[Any], cell: pyarrow.Scalar) -> Tensor:
    return torch.from_numpy(np.array(cell.as_py(), dtype))


def _fitting(
    values: NDArray[Any], dtype: np.dtype[Any], column: str, where: Callable[[int], str]
) -> NDArray[Any]:
    """Return numbers as a dtype; raise a DataError for the first that does not fit."""
    with np.errstate(over="ignore", invalid="ignore"):
        cells = values.astype(dtype, copy=False)
    differs = np.isinf(cells) & ~np.isinf(values) if dtype.kind == "f" else cells != values
    if differs.any():
        index = int(np.flatnonzero(differs)[0])
        raise bad_cell(where(index), column, f"{name_of(dtype)} that fits {dtype}", values[index].item())
    return cells


def _numbers(
    array: pyarrow.Array,
    column: str,
    known: Categories,
    gaps: NDArray[np.int64],
    fill: Any,
    where: Callable[[int], str],
) -> Column:
    """Return values as the numbers of their categories."""
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    of_value = np.array([*(known.index.get(value, -1) for value in values), -1], np.int64)
    numbers = of_value[encoded.indices.fill_null(len(values)).to_numpy()]
    if fill is not None:
        numbers[gaps] = known.number(lambda: where(int(gaps[0])), column, fill)
    if (numbers < 0).any():
        row = int(np.flatnonzero(numbers < 0)[0])
        raise known.unknown(where(row), column, array[row].as_py())
    return Numbers(numbers)


def _text(array: pyarrow.Array) -> Text:
    """Return text that shares the memory of an Arrow array."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return Text(np.frombuffer(data or b"", np.uint8), bounds)


def _vectors(array: pyarrow.Array, column: str, dtype: np.dtype[Any], where: Callable[[int], str]) -> Column:
    """Return lists of numbers: one array if the type fixes their size, else tensors of different lengths."""
    import pyarrow

    found = array.type
    if isinstance(_kind(found.value_type), Vector):
        return Objects(array, partial(_as_tensor, dtype))
    if pyarrow.types.is_fixed_size_list(found):
        offsets = np.arange(len(array) + 1) * found.list_size
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        offsets = offsets - offsets[0]

    def where_flat(index: int) -> str:
        return where(int(np.searchsorted(offsets, index, side="right")) - 1)

    flat = array.flatten()
    if flat.null_count:
        index = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])
        raise bad_cell(where_flat(index), column, name_of(Vector(dtype)), "a null among the numbers")
    values = _fitting(flat.to_numpy(zero_copy_only=False), dtype, column, where_flat)
    if pyarrow.types.is_fixed_size_list(found):
        return Numbers(values.reshape(len(array), found.list_size))
    return Lists(values, offsets)
