"""CSV files: pyarrow parses the fields, Python's csv module says where a row starts and which is damaged."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from burnt.data.files.schema import bad_cell, repeated
from burnt.errors import DataError, quantity

_BLOCK = 1 << 24  # bytes that pyarrow parses at once; no row may be longer


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
        self._header_lines = 0
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
            with self._rows() as reader:
                first = next(filter(None, reader), None)
                self._header_lines = reader.line_num if header else 0
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

    def read(self, columns: list[str]) -> Any:
        """Return the fields of some columns as text, in a table of pyarrow."""
        import pyarrow
        import pyarrow.csv as arrow_csv

        with self._opened(binary=True) as file:
            data = file.read()
        if data.count(b'"') % 2:
            self._find_damage()  # a quote that is not closed, which pyarrow does not mind
        text = pyarrow.large_string()
        try:
            table = arrow_csv.read_csv(
                pyarrow.BufferReader(data),
                arrow_csv.ReadOptions(
                    column_names=self.names,
                    skip_rows=self._skip + self._header_lines,
                    block_size=_BLOCK,
                    encoding=self._encoding.removesuffix("-sig"),
                ),
                arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(column_types=dict.fromkeys(columns, text), include_columns=columns),
            )
        except (pyarrow.ArrowException, UnicodeError) as error:
            self._find_damage()
            raise DataError("the file cannot be read", where=self.path, found=str(error)) from error
        self.num_rows = table.num_rows
        return table

    def _find_damage(self) -> None:
        """Raise a DataError for the first line that is damaged or has another number of fields."""
        expected = len(self.names)
        for line, fields in self._numbered_rows():
            if len(fields) != expected:
                raise bad_cell(
                    f"{self.path}, line {line}",
                    None,
                    f"{quantity(expected, 'field')}: {', '.join(self.names)}",
                    f"{quantity(len(fields), 'field')}: {self._delimiter.join(fields)}",
                    "is delimiter= right? A field that contains it needs quotes"
                    if len(fields) == 1
                    else None,
                )

    def place(self, row: int) -> str:
        """Return the file and the line where a row starts, found by reading the file up to it."""
        line, _ = next(itertools.islice(self._numbered_rows(), row, None))
        return f"{self.path}, line {line}"

    def _numbered_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Iterate over the rows that are not empty, each after the number of the line where it starts."""
        with self._rows() as reader:
            if self._has_header:
                next(filter(None, reader), None)
            line = self._skip + reader.line_num + 1
            for fields in reader:
                if fields:
                    yield line, fields
                line = self._skip + reader.line_num + 1

    @contextmanager
    def _rows(self) -> Iterator[Any]:
        """The rows after those skipped, as Python reads them; errors of reading name the line."""
        reader = None
        try:
            with _unlimited_fields(), self._opened() as file:
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

    @contextmanager
    def _opened(self, binary: bool = False) -> Iterator[Any]:
        open_file: Any = gzip.open if self.path.endswith(".gz") else open
        try:
            with (
                open_file(self.path, "rb")
                if binary
                else open_file(self.path, "rt", encoding=self._encoding, newline="") as file
            ):
                yield file
        except (OSError, EOFError) as error:
            raise DataError("the file cannot be read", where=self.path, found=str(error)) from error

    def _bad_encoding(self, error: UnicodeDecodeError) -> DataError:
        """Return the error for bytes that are not text, with their line, which `error` lacks."""
        decoder = codecs.getincrementaldecoder(self._encoding)()
        line = 0
        with self._opened(binary=True) as file:
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
