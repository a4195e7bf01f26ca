"""The rows of a file in chunks, as they stand in it, and files of rows to write: for `burnt predict`.

A chunk is a list of dicts, or a table of Arrow, whose types another Parquet file keeps.
"""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from burnt._files import replacing
from burnt.cli.output import UsageError
from burnt.data.files.csv_files import CsvFile
from burnt.data.files.opening import find_files
from burnt.data.files.parquet import ParquetDataset
from burnt.data.files.rows import RowDataset
from burnt.data.files.table import import_pyarrow
from burnt.errors import DataError, did_you_mean

SUFFIXES = (".csv", ".jsonl", ".parquet")


class Rows:
    """The columns of data that `burnt predict` copies: the names of all, and chunks of the rows of some.

    ``read(names, size)`` iterates over chunks of `size` rows, of one column or more.
    """

    def __init__(self, names: Sequence[str], read: Callable[[Sequence[str], int], Iterator[Any]]) -> None:
        self.names, self.read = list(names), read

    def choose(self, wanted: str | None) -> list[str]:
        """Return the columns of ``--keep``, by default all."""
        names = self.names if wanted is None else list(filter(None, wanted.split(",")))
        for name in names:
            if name not in self.names:
                raise UsageError(
                    "--keep names a column that does not exist",
                    expected=f"some of {', '.join(self.names)}; --keep '' keeps none",
                    found=repr(name),
                    hint=did_you_mean(name, self.names),
                )
        return names


def rows_of(dataset: Any, path: str) -> Rows:
    """Return the columns of the file that a dataset reads."""
    if isinstance(dataset, RowDataset):
        return _lines(dataset)
    if isinstance(dataset, ParquetDataset):
        parquet = import_pyarrow("Parquet").parquet
        opened = [parquet.ParquetFile(file) for file in find_files(path)]
        return Rows(opened[0].schema_arrow.names, partial(_tables, opened))
    return Rows(dataset.files[0].names, partial(_tables, dataset.files))


def _tables(files: Sequence[Any], names: Sequence[str], size: int) -> Iterator[Any]:
    """Yield tables of Arrow with `size` rows, also across files, from CsvFiles or ParquetFiles."""
    import pyarrow

    def parts(file: Any) -> Iterator[Any]:
        if isinstance(file, CsvFile):
            yield file.read(list(names))
            return
        for batch in file.iter_batches(size, columns=list(names)):
            yield pyarrow.Table.from_batches([batch])

    rest = None
    for table in itertools.chain.from_iterable(map(parts, files)):
        rest = table if rest is None else pyarrow.concat_tables([rest, table])
        while rest.num_rows >= size:
            yield rest.slice(0, size)
            rest = rest.slice(size)
    if rest is not None and rest.num_rows:
        yield rest


def _lines(dataset: RowDataset) -> Rows:
    def read(names: Sequence[str], size: int) -> Iterator[Any]:
        for start in range(0, len(dataset), size):
            rows = map(dataset.read, range(start, min(start + size, len(dataset))))
            yield [{name: row.get(name) for name in names} for row in rows]

    return Rows(dataset.columns, read)


@contextmanager
def written(target: str | None) -> Iterator[Callable[[Any, Mapping[str, list[Any]]], None]]:
    """Context with ``write(chunk, columns)``, which appends rows with further columns to a file.

    The file is there when the context ends without an error. None, or ``-``, writes CSV to standard output.
    """
    if target in (None, "-"):
        yield _CsvWriter(sys.stdout).write
        return
    path = Path(str(target))
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            parquet = _ParquetWriter()
            yield parquet.write
            parquet.close(temporary)
            return
        with temporary.open("w", encoding="utf-8", newline="") as file:
            is_csv = path.suffix == ".csv"
            yield _CsvWriter(file).write if is_csv else partial(_write_lines, file)


class _CsvWriter:
    def __init__(self, file: io.TextIOBase | Any) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._has_header = False

    def write(self, chunk: Any, columns: Mapping[str, list[Any]]) -> None:
        rows = _merged(chunk, columns)
        if not self._has_header:
            self._has_header = True
            self._writer.writerow(rows[0])
        self._writer.writerows([_csv_cell(value) for value in row.values()] for row in rows)


def _write_lines(file: io.TextIOBase | Any, chunk: Any, columns: Mapping[str, list[Any]]) -> None:
    file.writelines(_json(row) + "\n" for row in _merged(chunk, columns))


class _ParquetWriter:
    """Keeps all rows, in Arrow's compact columns: the type of a column is known when all have been seen."""

    def __init__(self) -> None:
        self._arrow = import_pyarrow("Parquet")
        self._tables: list[Any] = []

    def write(self, chunk: Any, columns: Mapping[str, list[Any]]) -> None:
        table = self._arrow.Table.from_pylist(chunk) if isinstance(chunk, list) else chunk
        for name, values in columns.items():
            array = self._arrow.array(values)
            table = (
                table.append_column(name, array) if table.num_columns else self._arrow.table({name: array})
            )
        self._tables.append(table)

    def close(self, path: Path) -> None:
        table = self._arrow.concat_tables(self._tables, promote_options="permissive")
        self._arrow.parquet.write_table(table, path)


def _merged(chunk: Any, columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    rows = chunk if isinstance(chunk, list) else chunk.to_pylist()
    return [
        row | dict(zip(columns, cells, strict=True))
        for row, cells in zip(rows, zip(*columns.values(), strict=True), strict=True)
    ]


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _json(value) if isinstance(value, list | dict) else value


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()  # dates as ISO 8601, NaN as null
    except (TypeError, ValueError) as error:
        raise DataError(
            "a value has no form in JSON", found=f"{value!r}"[:80], hint="--keep leaves out its column"
        ) from error
