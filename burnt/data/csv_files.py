"""CSV files as datasets: read once by Python's csv module, held as compact columns.

Python's reader needs no further package, and gives the line of what it cannot read. pandas and pyarrow do not
for values that do not fit their column.
"""

from __future__ import annotations

import codecs
import csv
import gc
import gzip
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray

from burnt._hints import explain_arguments
from burnt.data.files import Paths, find_files
from burnt.data.schema import (
    BOOL,
    FLOAT,
    INT,
    SCALARS,
    TEXT,
    Categories,
    Kind,
    Options,
    Schema,
    bad_cell,
    name_of,
)
from burnt.data.table import Column, Numbers, Table, Text, stack
from burnt.errors import DataError, quantity

__all__ = ["CsvDataset"]

_SAMPLED = 20_000
_CHUNK = 4000  # rows of a chunk after the first: their fields fit the CPU's cache
_MISSING = frozenset(("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"))
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TOO_LARGE = "a number that fits float32"
_CODES = re.compile(r"(?:^|\n) *0\d+ *(?:\n|$)")
"""A field such as 00501: digits after a leading zero."""


class CsvDataset(Table):
    """Rows of CSV files, read at once into compact columns: 4 bytes a float, 8 an integer, UTF-8 for text.

    An item is a dict with an entry for each column: a NumPy scalar, or a `str`. `take` gives a `Batch` of
    tensors ``[n]`` and lists of `str`. Types are inferred from the first 20,000 rows: ``true`` and ``false``
    become bool, integers int64, other numbers float32, anything else text. Numbers with leading zeros are
    codes, thus text. A later row that does not fit is an error.

    Missing are empty fields, NA, N/A, NaN, null and None. In a column of text nothing is missing: an empty
    field is an empty text.

    Args:
        path: a file, a pattern such as ``"part-*.csv"``, or a list of these; ``.gz`` is decompressed. All
            files have the same columns.
        columns: the names of the columns to keep; or a mapping from each entry of an item to its column, or
            to several columns that are stacked to one tensor ``[k]``. ``{"pixels": "pixel_*"}`` stacks all
            columns that match, in their order in the file.
        types: types of columns, in place of the inferred ones: int, float, bool, str or a dtype of torch.
        label: the column with the class of each row: it becomes the number of the class, int64, and
            `classes` the list of names, sorted.
        categories: further columns whose values become numbers, int64; or a mapping from columns to all
            their values in order. For validation data: ``categories=train.categories``.
        missing: ``"error"``; ``"nan"``, which turns columns of integers with missing values into float32;
            ``"drop"``, without rows that miss a value; or a mapping from columns to the value that is
            filled in.
        delimiter: between fields; a tab for ``.tsv`` files, else a comma.
        header: whether the first row has the names; or the names of the columns of files without them.
        skip: the number of lines before the header.
        encoding: of the text; a byte order mark of UTF-8 is skipped.

    Raises:
        DataError: a file is missing or cannot be read; the message names file, line and column.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "flats.csv")
    >>> _ = path.write_text("rooms,area,kind\\n2,51.5,flat\\n5,120,house\\n3,80,flat\\n")
    >>> flats = CsvDataset(path, columns={"x": ["rooms", "area"]}, label="kind")
    >>> flats[1], flats.classes
    ({'x': tensor([  5., 120.]), 'kind': np.int64(1)}, ['flat', 'house'])
    >>> flats.take(torch.tensor([0, 2]))
    Batch(x: (2, 2), kind: (2,))
    """

    @explain_arguments()
    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        types: Mapping[str, type | torch.dtype] | None = None,
        label: str | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[Any]] = (),
        missing: str | Mapping[str, Any] = "error",
        delimiter: str | None = None,
        header: bool | Sequence[str] = True,
        skip: int = 0,
        encoding: str = "utf-8",
    ) -> None:
        files = find_files(path)
        if delimiter is not None and len(delimiter) != 1:
            raise DataError("delimiter= must be one character", found=repr(delimiter))
        try:
            encoding = codecs.lookup(encoding).name
            io.TextIOWrapper(io.BytesIO(), encoding)  # refuses those that are not of text, such as base64
        except LookupError:
            raise DataError("encoding= is unknown to Python", found=repr(encoding)) from None
        self._files = [_File(file, delimiter, header, skip, encoding) for file in files]
        schema = Schema.create(
            Options(columns, types, label, categories, missing),
            self._files[0].names,
            self._files[0].path,
            policies=("error", "nan", "drop"),
            kinds=SCALARS,
        )
        for file in self._files[1:]:
            file.check_columns(schema, self._files[0])
        with _no_garbage_collection():
            readers = _read(self._files, schema)
        table: dict[str, Column] = {name: reader.column(self._files) for name, reader in readers.items()}
        known = {name: reader.categories for name, reader in readers.items() if reader.categories is not None}
        absent = sorted({row for reader in readers.values() for row in reader.absent})
        self._rows: NDArray[np.int64] | None = None
        if missing == "drop" and absent:
            self._rows = np.delete(np.arange(sum(file.num_rows for file in self._files)), absent)
            if not len(self._rows):
                raise DataError("every row lacks a value, so that none is left", where=self._files[0].path)
            table = {name: _rows_of(column, self._rows) for name, column in table.items()}
        super().__init__(stack(table, schema, self.place), known, schema)

    def place(self, index: int) -> str:
        """Return the file and line of an item, ``"houses.csv, line 7"``."""
        return _place(self._files, index if self._rows is None else int(self._rows[index]))


class _File:
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
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DataError(
                "two columns have the same name",
                where=self.path,
                found=repr(twice),
                hint="header=[...] names the columns, with skip=1 in place of the header",
            )
        return names

    def check_columns(self, schema: Schema, first: _File) -> None:
        """Raise a DataError if a column that the first file has is missing here."""
        absent = [name for name in schema.used if name not in self.names]
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


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare the collector the lists of fields, going through which takes 30 % of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(files: list[_File], schema: Schema) -> dict[str, _Reader]:
    readers = {name: _Reader(name, schema) for name in schema.used}
    start = 0
    for file in files:
        places = [(reader, file.names.index(name)) for name, reader in readers.items()]
        for rows in file.chunks():
            for reader, place in places:
                reader.add(list(map(itemgetter(place), rows)), start, file)
            start += len(rows)
    if start == 0:
        raise DataError("there are no rows", where=files[0].path, expected="rows after the header")
    return readers


def _place(files: list[_File], row: int) -> str:
    for file in files:
        if row < file.num_rows:
            return file.place(row)
        row -= file.num_rows
    raise IndexError(row)


def _rows_of(column: Column, rows: NDArray[np.int64]) -> Column:
    if isinstance(column, Text):
        return Text.of(column.take(rows))
    assert isinstance(column, Numbers)
    return Numbers(column.values[rows])


class _Reader:
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

    def add(self, fields: list[str], start: int, file: _File) -> None:
        """Convert the fields of the rows from `start` on, after the first `file.num_rows` of a file."""
        if self._is_category:
            self._parts.append(self._encode(fields, start, file))
        elif self.kind is TEXT:
            self._parts.append(Text.of(fields))
        else:
            self._parts.append(self._convert(fields, start, file))

    def _encode(self, fields: list[str], start: int, file: _File) -> NDArray[np.int64]:
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

    def _convert(self, fields: list[str], start: int, file: _File) -> NDArray[Any] | Text:
        """Return the fields as numbers, with zeros for those that are missing, or as text.

        Raises:
            DataError: a field does not fit the declared type, or that of the fields before it.
        """
        try:
            return self._parse(fields)
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

    def _bad(self, fields: list[str], file: _File) -> DataError:
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

    def column(self, files: list[_File]) -> Column:
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
            fill = self._schema.fill(lambda: _place(files, self.absent[0]), self.name, fits)
            if kind is INT and not self._is_declared and isinstance(fill, float):
                kind = FLOAT
        values = np.concatenate([part.astype(kind, copy=False) for part in parts])
        if fill is not None:
            filled = np.array(fill).astype(kind)
            if not np.isclose(float(filled), fill, equal_nan=True):
                raise bad_cell(
                    _place(files, self.absent[0]), self.name, f"a value of missing= that fits {kind}", fill
                )
            values[self.absent] = filled
        return Numbers(values)

    def _numbers_of_categories(self, files: list[_File]) -> Column:
        codes = np.concatenate(self._parts)
        known = self._given or Categories.found(self._codes)
        if self._given is None:
            order = [known.index[value] for value in self._codes]
            codes = np.array([*order, -1], np.int64)[codes]
        if self.absent and self._schema.missing != "drop":
            fill = str(self._schema.fill(lambda: _place(files, self.absent[0]), self.name, None))
            if fill not in known.names:
                raise known.unknown(_place(files, self.absent[0]), self.name, fill)
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
        return values
    whole = np.array(list(map(int, fields)), np.int64)
    values = whole.astype(kind, copy=False)
    if (values != whole).any():
        raise OverflowError
    return values
