"""CSV files: their dialect, their rows in chunks, and the line of a row or of what cannot be read."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from burnt.data.files.schema import Schema, bad_cell, repeated
from burnt.errors import DataError, quantity

_SAMPLED = 20_000
_CHUNK = 4000  # rows of a chunk after the first: their fields fit the CPU's cache


class CsvFile:
    """One file: its dialect, names of columns and, after reading, number of rows."""

    def __init__(
        self, path: str, delimiter: str | None, header: bool | Sequence[str], skip: int, encoding: str
    ) -> None:
        self.path = path
        base = path.removesuffix(".gz")
        self._delimiter = delimiter or ("\t" if base.endswith((".tsv", ".tab")) else ",")
        self._encoding = "utf-8-sig" if encoding == "utf-8" else encoding
        self._skip = skip
        self._has_header = header is True
        self.num_rows = 0
        self.names = self._read_names(header)

    def _read_names(self, header: bool | Sequence[str]) -> list[str]:
        if isinstance(header, str):
            raise DataError(
                "header= must be true, false or a list of names", where=self.path, found=repr(header)
            )
        if not isinstance(header, bool):
            names = list(header)
        else:
            first = next((row for chunk in self._chunks(1, header=False) for row in chunk), None)
            if first is None:
                raise DataError("the file is empty", where=self.path, expected="a header or rows")
            names = first if header else [f"column_{number}" for number in range(len(first))]
        twice = repeated(names)
        if twice is not None:
            raise DataError(
                "two columns have the same name",
                where=self.path,
                found=repr(twice),
                hint="header=[...] names the columns, with skip=1 in place of the header",
            )
        return names

    def check_columns(self, schema: Schema, first: CsvFile) -> None:
        """Raise a DataError if a column that the first file has is missing here."""
        known = set(self.names)
        absent = [name for name in schema.used if name not in known]
        if absent:
            raise DataError(
                "the files have different columns",
                where=self.path,
                expected=f"{', '.join(schema.used)}, as in {first.path}",
                found=f"no column {absent[0]!r} in {', '.join(self.names)}",
            )

    def chunks(self) -> Iterator[list[list[str]]]:
        """Read the file: lists of rows, each with a field for every name.

        Raises:
            DataError: a row is damaged, or has another number of fields.
        """
        self.num_rows = 0
        expected = len(self.names)
        for rows in self._chunks(_SAMPLED, self._has_header):
            lengths = set(map(len, rows))
            if lengths - {expected}:
                number, row = next((n, row) for n, row in enumerate(rows) if len(row) != expected)
                raise bad_cell(
                    self.place(self.num_rows + number),
                    None,
                    f"{quantity(expected, 'field')}: {', '.join(self.names)}",
                    f"{quantity(len(row), 'field')}: {self._delimiter.join(row)}",
                    "is delimiter= right? A field that contains it needs quotes" if len(row) == 1 else None,
                )
            yield rows
            self.num_rows += len(rows)

    def _chunks(self, size: int, header: bool) -> Iterator[list[list[str]]]:
        with self._reading() as reader:
            if header:
                next(filter(None, reader), None)
            while rows := list(itertools.islice(reader, size)):
                yield rows if all(rows) else list(filter(None, rows))  # without empty lines
                size = _CHUNK

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        reader = None
        try:
            with _unlimited_fields(), self._open() as file:
                for _ in itertools.islice(file, self._skip):
                    pass
                reader = csv.reader(file, delimiter=self._delimiter, strict=True)
                yield reader
        except UnicodeDecodeError as error:
            raise self._bad_encoding(error) from None
        except csv.Error as error:
            line = self._skip + (reader.line_num if reader is not None else 0)
            what = "a quote is not closed" if "end of data" in str(error) else str(error)
            raise bad_cell(f"{self.path}, line {line}", None, "fields of CSV", what) from None
        except (OSError, EOFError) as error:
            raise DataError("the file cannot be read", where=self.path, found=str(error)) from error

    def _open(self) -> TextIO:
        if self.path.endswith(".gz"):
            return gzip.open(self.path, "rt", encoding=self._encoding, newline="")
        return open(self.path, encoding=self._encoding, newline="")

    def _bad_encoding(self, error: UnicodeDecodeError) -> DataError:
        """Return the error for bytes that are not text, with their line, which `error` lacks."""
        decoder = codecs.getincrementaldecoder(self._encoding)()
        line = 0
        with gzip.open(self.path) if self.path.endswith(".gz") else open(self.path, "rb") as file:
            for data in file:
                line += 1
                try:
                    decoder.decode(data)
                except UnicodeDecodeError as found:
                    error = found
                    break
        return bad_cell(
            f"{self.path}, line {line}",
            None,
            f"text in {self._encoding.removesuffix('-sig')}",
            f"bytes {error.object[error.start : error.end].hex(' ')}",
            "encoding= names another encoding, such as 'latin-1' or 'utf-16'",
        )

    def place(self, row: int) -> str:
        """Return the file and the line where a row starts, found by reading the file up to it."""
        with self._reading() as reader:
            row += self._has_header
            line = 1
            for fields in reader:
                if fields:
                    if row == 0:
                        break
                    row -= 1
                line = reader.line_num + 1
        return f"{self.path}, line {self._skip + line}"


@contextmanager
def _unlimited_fields() -> Iterator[None]:
    """Read fields of any length; the csv module's limit of 131,072 characters is for the whole process."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def place_in(files: list[CsvFile], row: int) -> str:
    """Return the file and line of a row, counted over all files."""
    for file in files:
        if row < file.num_rows:
            return file.place(row)
        row -= file.num_rows
    raise IndexError(row)
