"""Tables in memory: columns held compactly, of which rows are items and `take` makes batches.

Columns of Arrow become columns of a `Table`; pyarrow is imported lazily.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt.data.batch import Batch, copy_item
from burnt.data.dataset import checked_index
from burnt.data.files.dates import Date
from burnt.data.files.image_files import ImageFiles
from burnt.data.files.schema import (
    BOOL,
    FLOAT,
    INT,
    OBJECT,
    TEXT,
    Categories,
    Encoding,
    Kind,
    RowItems,
    Schema,
    Vector,
    bad_cell,
    bad_date,
    check_entry,
    find_range,
    is_number,
    name_of,
    not_numeric,
    repeated,
    shorten,
    unfit_cell,
)
from burnt.data.fitting import misfits
from burnt.errors import DataError

if TYPE_CHECKING:
    import pyarrow

Indices = NDArray[np.int64]


class Column(ABC):
    """The cells of a column, each of which is made when it is used."""

    fixed_shape = False
    nbytes: int
    """The memory in use."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    def take(self, indices: Indices) -> Any:
        """Return the cells at indices: a tensor, or a list."""
        return [self[index] for index in indices.tolist()]


class Numbers(Column):
    """Numbers, ``[n]``, or vectors, ``[n, k]``: cells are NumPy scalars or tensors."""

    fixed_shape = True

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.nbytes = values.nbytes

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        value = self.values[index]
        return value if self.values.ndim == 1 else torch.from_numpy(value.copy())

    def take(self, indices: Indices) -> Tensor:
        """Return the cells at indices, ``[len(indices), ...]``."""
        return torch.from_numpy(self.values.take(indices, axis=0))


class Lists(Column):
    """Vectors of different lengths: pieces of one array, and the offsets of each in it, ``[n + 1]``."""

    def __init__(self, values: NDArray[Any], offsets: NDArray[Any]) -> None:
        self.values = values
        self.offsets = offsets
        self.nbytes = values.nbytes + offsets.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.values[self.offsets[index] : self.offsets[index + 1]].copy())


class Cells(Column):
    """Cells of an Arrow array: ``read(cell, index)`` makes each when it is used; None gives text."""

    def __init__(self, cells: Any, read: Callable[[Any, int], Any] | None = None) -> None:
        self.cells = cells
        self.read = read
        self.fixed_shape = read is None
        self.nbytes = int(cells.nbytes)

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: int) -> Any:
        return self.cells[index].as_py() if self.read is None else self.read(self.cells[index], index)

    def take(self, indices: Indices) -> Any:
        """Return the cells at indices, a list."""
        return self.cells.take(indices).to_pylist() if self.read is None else super().take(indices)


def as_dtype(
    values: NDArray[Any], dtype: np.dtype[Any], column: str, where: Callable[[int], str]
) -> NDArray[Any]:
    """Return numbers as a dtype; raise a DataError for the first that does not fit."""
    wrong = misfits(values, dtype)
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise unfit_cell(where(index), column, dtype, values.ravel()[index].item())
    return values.astype(dtype, copy=False)


def stack(columns: Mapping[str, Column], schema: Schema, where: Callable[[int], str]) -> dict[str, Column]:
    """Return the entries of the items: the columns, those of a vector stacked.

    `where(index)` is the place of a row, for messages.
    """
    entries: dict[str, Column] = {}
    for entry, names in schema.fields.items():
        if isinstance(names, str):
            entries[entry] = columns[names]
            continue
        parts = []
        for name in names:
            column = columns[name]
            if not isinstance(column, Numbers) or column.values.ndim != 1:
                index = next((i for i in range(len(column)) if not is_number(column[i])), 0)
                place = f"{where(index)}, column {name!r}"
                raise not_numeric(entry, name, place, shorten(column[index]))
            parts.append(column.values)
        # Integers next to float32 would become float64.
        floats = [part.dtype for part in parts if part.dtype.kind == "f"]
        dtype = np.result_type(*(floats or [part.dtype for part in parts]))

        def in_entry(index: int, entry: str = entry) -> str:
            return f"{where(index)}, entry {entry!r}"

        for name, part in zip(names, parts, strict=True):
            if part.dtype.kind in "iu":
                as_dtype(part, dtype, name, in_entry)
        entries[entry] = Numbers(np.stack(parts, axis=1, dtype=dtype, casting="unsafe"))
    return entries


class Table(RowItems):
    """Items from columns in memory: dicts of NumPy scalars, texts and tensors.

    Attributes:
        categories: each column of class names, and the names by their number.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        categories: Mapping[str, Categories],
        schema: Schema,
        kinds: Mapping[str, Kind],
        csv: Mapping[str, Any] | None = None,
    ) -> None:
        self._columns = dict(columns)
        self._schema, self._known, self._kinds, self._csv = schema, dict(categories), kinds, csv or {}
        self._has_take = all(column.fixed_shape for column in columns.values())
        self.categories = schema.category_names(categories)
        self._classes = schema.class_names(categories)

    @property
    def nbytes(self) -> int:
        """The memory in use."""
        return sum(column.nbytes for column in self._columns.values())

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = checked_index(index, len(self))
        return {name: column[index] for name, column in self._columns.items()}

    def column(self, name: str) -> Any:
        """Return a whole column: a tensor ``[n]`` or ``[n, k]``, or a list of other cells.

        Raises:
            DataError: there is no such column.
        """
        check_entry(name, self._columns)
        return self._columns[name].take(np.arange(len(self)))

    def encoding(self) -> Encoding:
        """Return how columns become entries."""
        ranges: dict[str, tuple[float, float] | None] = {}
        for entry, names in self._schema.fields.items():
            column = self._columns[entry]
            group = [names] if isinstance(names, str) else names
            if isinstance(column, Numbers) and column.values.ndim <= 2:
                values = column.values.reshape(len(column), -1)
                if values.shape[1] == len(group):
                    ranges |= {name: find_range(values[:, i]) for i, name in enumerate(group)}
        known = {name: found for name, found in ranges.items() if found is not None}
        return Encoding(self._schema, self._kinds, self._known, known, self._csv)

    def numbers(self) -> list[Tensor]:
        """Return the columns of numbers, which share the memory of this table."""
        columns = self._columns.values()
        return [torch.from_numpy(column.values) for column in columns if isinstance(column, Numbers)]

    def _take(self, indices: Tensor) -> Batch:
        places = indices.numpy()
        return Batch(**{name: column.take(places) for name, column in self._columns.items()})


def take_across(take: Callable[[int, Tensor], Any], starts: Tensor, indices: Tensor) -> Any:
    """Return one batch with items of several datasets, in the order of the indices.

    ``take(number, indices)`` returns a batch of one of them. `starts` has the index of the first item of each
    and, last, the number of all items; `indices`, int64 ``[n]``, are counted over all datasets.
    """
    if not len(indices):
        return take(0, indices)
    owners = torch.searchsorted(starts, indices, right=True) - 1
    order = torch.argsort(owners, stable=True)
    sorted_owners, counts = torch.unique_consecutive(owners[order], return_counts=True)
    groups = torch.split(indices[order], counts.tolist())
    parts = [
        take(owner, group - starts[owner])
        for owner, group in zip(sorted_owners.tolist(), groups, strict=True)
    ]
    return parts[0] if len(parts) == 1 else _reorder(parts, torch.argsort(order))


def _reorder(parts: list[Any], order: Tensor) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts).index_select(0, order.to(first.device))
    if isinstance(first, Batch):
        return Batch(**{name: _reorder([getattr(part, name) for part in parts], order) for name in first})
    if isinstance(first, list):
        values = [value for part in parts for value in part]
        return [values[place] for place in order.tolist()]
    raise DataError(
        "batches of several datasets cannot be joined",
        expected="a Batch of tensors and lists",
        found=type(first).__name__,
    )


def import_pyarrow(purpose: str) -> Any:
    """Return the module `pyarrow`; raise a DataError that names the extra if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{purpose} needs a further package", expected="pyarrow", hint='pip install "burnt[data]"'
        ) from error
    return pyarrow


def column_names(columns: Any) -> list[Any]:
    """Return the names of the columns of a schema or frame, without the index of a pandas frame."""
    names = list(columns.names if hasattr(columns, "names") else columns.columns)
    twice = repeated(names)
    if twice is not None:
        raise DataError("two columns have the same name", found=repr(twice))
    return [name for name in names if not str(name).startswith("__index_level_")]


def distinct_values(cells: pyarrow.ChunkedArray) -> list[Any]:
    """Return the distinct values of a column, without nulls and NaN."""
    return [value for value in cells.unique().to_pylist() if value is not None and value == value]


def column_kinds(
    schema: Schema, arrow_schema: pyarrow.Schema, has_gaps: Callable[[str], bool]
) -> dict[str, Kind]:
    """Return what the cells of each column become; ``has_gaps(column)`` is whether it has nulls."""
    kinds = {}
    for column in schema.used:
        kind = schema.kinds.get(column) or _kind(arrow_schema.field(column).type)
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


def have_one_shape(kind: Kind, found: list[pyarrow.DataType]) -> bool:
    """Whether all cells of a kind, from Arrow types, have the same shape."""
    import pyarrow

    if isinstance(kind, Vector):
        return (
            all(pyarrow.types.is_fixed_size_list(type_) for type_ in found)
            and len({type_.list_size for type_ in found}) == 1
            and not any(isinstance(_kind(type_.value_type), Vector) for type_ in found)
        )
    return kind is not OBJECT and not isinstance(kind, ImageFiles)


def read_entries(
    table: pyarrow.Table,
    schema: Schema,
    kinds: Mapping[str, Kind],
    known: Mapping[str, Categories],
    where: Callable[[int], str],
) -> dict[str, Column]:
    """Return the entries of the items of a table of Arrow."""
    columns = {
        name: _column(table[schema.source(name)], name, schema, kinds[name], known.get(name), where)
        for name in schema.used
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
    """Return an Arrow column in memory of our own."""
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
    if isinstance(kind, Date):
        return _dates(array, name, kind, fill, where)
    if isinstance(kind, ImageFiles) and _kind(type_) is not TEXT:
        raise bad_cell(where(0), name, name_of(kind), f"a column of {type_}")
    if kind is TEXT or isinstance(kind, ImageFiles):
        read = partial(kind.read, name, where) if isinstance(kind, ImageFiles) else None
        return Cells(array if fill is None else array.fill_null(fill), read)
    if kind is OBJECT:
        return Cells(array, partial(_as_python, fill))
    if isinstance(kind, Vector):
        if fill is not None:
            place = where(int(gaps[0]))
            raise bad_cell(place, name, name_of(kind), "nothing", "missing= does not fill in lists")
        if not isinstance(_kind(type_), Vector):
            raise bad_cell(where(0), name, name_of(kind), f"a column of {type_}")
        return _vectors(array, name, kind.dtype, where)
    assert isinstance(kind, np.dtype)
    if types.is_decimal(type_):
        array = _from_decimal(array, name, where)
    if not isinstance(_kind(type_), np.dtype):
        raise bad_cell(where(0), name, name_of(kind), f"a column of {type_}")
    values = array.fill_null(pyarrow.scalar(0).cast(array.type)).to_numpy(zero_copy_only=False)
    if not values.flags.writeable:  # Arrow's own memory
        values = values.copy()
    if fill is None:
        return Numbers(as_dtype(values, kind, name, where))
    values[gaps] = 0  # in place of NaN
    cells = as_dtype(values, kind, name, where)
    # By itself: one array of both would round large integers next to a float.
    cells[gaps] = as_dtype(np.array([fill]), kind, name, lambda _: where(int(gaps[0])))
    return Numbers(cells)


def _as_python(fill: Any, cell: pyarrow.Scalar, index: int) -> Any:
    value = cell.as_py()
    return copy_item(fill) if value is None else value


def _as_tensor(
    dtype: np.dtype[Any], column: str, where: Callable[[int], str], cell: pyarrow.Scalar, index: int
) -> Tensor:
    """Return lists of lists as a tensor; raise a DataError if they are not of one length and dtype."""
    cells = cell.as_py()
    try:
        values = np.array(cells)
        if values.dtype == object:  # decimal numbers, or a null among them
            if None in values.ravel().tolist():
                raise ValueError("a null")
            values = values.astype(np.float64)
    except ValueError:
        expected = f"{name_of(Vector(dtype))}, of lists of one length without nulls"
        raise bad_cell(where(index), column, expected, cells) from None
    return torch.from_numpy(as_dtype(values, dtype, column, lambda _: where(index)))


def _from_decimal(array: pyarrow.Array, column: str, where: Callable[[int], str]) -> pyarrow.Array:
    """Return decimal numbers in float64, or int64 if it holds all; raise a DataError for other integers."""
    import pyarrow

    try:
        return array.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:  # fractions, or more than 64 bits
        numbers = array.cast(pyarrow.float64())
    for index in np.flatnonzero(np.abs(numbers.to_numpy(zero_copy_only=False)) >= 2.0**53).tolist():
        value = array[index].as_py()
        if value == value.to_integral_value() and int(value) != int(numbers[index].as_py()):
            raise unfit_cell(where(index), column, np.dtype(np.float64), value)
    return numbers


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
    found = (known.find(value) for value in values)
    of_value = np.array([*(-1 if number is None else number for number in found), -1], np.int64)
    numbers = of_value[encoded.indices.fill_null(len(values)).to_numpy()]
    if fill is not None:
        numbers[gaps] = known.number(lambda: where(int(gaps[0])), column, fill)
    if (numbers < 0).any():
        row = int(np.flatnonzero(numbers < 0)[0])
        raise known.not_found(where(row), column, array[row].as_py())
    return Numbers(numbers)


def _dates(array: pyarrow.Array, column: str, kind: Date, fill: Any, where: Callable[[int], str]) -> Column:
    """Return dates as numbers."""
    import pyarrow

    if pyarrow.types.is_timestamp(array.type):  # datetime holds microseconds
        array = array.cast(pyarrow.timestamp("us", array.type.tz), safe=False)
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    places = encoded.indices.fill_null(len(values)).to_numpy()
    numbers = [*map(kind.number, values), kind.number(fill)]
    wrong = np.flatnonzero(np.array([number is None for number in numbers[:-1]] + [False])[places])
    if len(wrong):
        raise bad_date(where(int(wrong[0])), column, kind, array[int(wrong[0])].as_py())
    return Numbers(np.array(numbers, np.float32)[places])


def _vectors(array: pyarrow.Array, column: str, dtype: np.dtype[Any], where: Callable[[int], str]) -> Column:
    """Return lists of numbers: one array if the type fixes their size, else tensors of different lengths."""
    import pyarrow

    found = array.type
    if isinstance(_kind(found.value_type), Vector):
        return Cells(array, partial(_as_tensor, dtype, column, where))
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
    if pyarrow.types.is_decimal(flat.type):
        flat = _from_decimal(flat, column, where_flat)
    values = as_dtype(flat.to_numpy(zero_copy_only=False), dtype, column, where_flat)
    if pyarrow.types.is_fixed_size_list(found):
        return Numbers(values.reshape(len(array), found.list_size))
    return Lists(values, offsets)
