"""Parquet files as datasets, read by row groups."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import Batch
from burnt.data.dataset import checked_index
from burnt.data.files.opening import Handle, Paths, find_files
from burnt.data.files.schema import Encoding, Options, RowItems, Schema, check_entry
from burnt.data.files.table import (
    Table,
    column_kinds,
    column_names,
    distinct_values,
    have_one_shape,
    import_pyarrow,
    read_entries,
    take_across,
)
from burnt.errors import DataError

if TYPE_CHECKING:
    import pyarrow


class ParquetDataset(RowItems):
    """Rows of Parquet files, read one row group at a time, when a row of it is used for the first time.

    Row groups that have been read stay in memory, converted as in a `DataframeDataset`, up to `memory` bytes
    in each process; beyond that, those that were not used for longest are dropped. A shuffled order over more
    than that reads row groups again and again: write smaller ones, or select fewer columns.

    Args:
        path: a file, a pattern such as ``"part-*.parquet"``, or a list of these, with the same columns.
        columns, types, label, categories, missing, unknown: as in `DataframeDataset`. Columns that are not
            selected are not read from the file; one of classes is read once to find them, unless `categories`
            has them.
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
        unknown: bool | Sequence[str] = False,
        memory: int = 1 << 30,
    ) -> None:
        import_pyarrow("a ParquetDataset")
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
        schemas = [file.get().schema_arrow for file in self._files]
        options = Options(columns, types, label, categories, missing, unknown)
        self._schema = Schema.create(options, column_names(schemas[0]), self._paths[0])
        for path, other in zip(self._paths, schemas, strict=True):
            self._schema.check_columns(other.names, path, self._paths[0])
        self._known = self._schema.find_categories(self._distinct, len(self), self._paths[0])
        gaps = cache(self._columns_with_gaps)
        self._kinds = column_kinds(self._schema, schemas[0], lambda column: column in gaps())
        self.categories = self._schema.category_names(self._known)
        self._classes = self._schema.class_names(self._known)
        self._has_take = all(
            column in self._known
            or have_one_shape(kind, [schema.field(self._schema.source(column)).type for schema in schemas])
            for column, kind in self._kinds.items()
        )
        self._memory = memory
        self._tables: OrderedDict[int, Table] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, row = self._find(checked_index(index, len(self)))
        return self._table(number)[row]

    def encoding(self) -> Encoding:
        """Return how columns become entries; ranges are those of the first row group."""
        return self._table(0).encoding()

    def column(self, name: str) -> Any:
        """Return a whole column, read from the files: a tensor ``[n, ...]``, or a list of other cells.

        Raises:
            DataError: there is no such column.
        """
        check_entry(name, self._schema.fields)
        parts = [self._table(number).column(name) for number in range(len(self._groups))]
        return torch.cat(parts) if isinstance(parts[0], Tensor) else [cell for part in parts for cell in part]

    def _take(self, indices: Tensor) -> Batch:
        batch: Batch = take_across(lambda group, at: self._table(group).take(at), self._starts, indices)
        return batch

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
                cells = self._read(number, self._schema.sources)
                where = partial(self._place, number)
                columns = read_entries(cells, self._schema, self._kinds, self._known, where)
                table = self._tables[number] = Table(columns, self._known, self._schema, self._kinds)
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
        parts = (self._read(group, [column])[column] for group in range(len(self._groups)))
        return list({value for part in parts for value in distinct_values(part)})

    def _columns_with_gaps(self) -> set[str]:
        """Return the columns that have nulls, or may have them, as far as the files tell."""
        found = set()
        for group in self._groups:
            metadata = self._files[group.file].get().metadata.row_group(group.number)
            for chunk in map(metadata.column, range(metadata.num_columns)):
                statistics = chunk.statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    found.add(chunk.path_in_schema)
        return found


class _Group(NamedTuple):
    """A row group: its file, its number there, the number of its first row there, and its length."""

    file: int
    number: int
    first_row: int
    length: int


def _open(path: str) -> Any:
    with _reading(path):
        return import_pyarrow("a ParquetDataset").parquet.ParquetFile(path)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError("the file cannot be read", where=where, found=str(error)) from error
