"""CSV files as datasets: read once by pyarrow, held as compact columns.

pyarrow parses the fields, which then become numbers, text or categories, of types that are declared or
inferred; Python's csv module says where a row starts and which is damaged.
"""

from __future__ import annotations

import bisect
import codecs
import csv
import gzip
import io
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burnt._hints import explain_arguments
from burnt.data.files.dates import Date
from burnt.data.files.image_files import ImageFiles
from burnt.data.files.opening import Paths, find_files
from burnt.data.files.schema import (
    BOOL,
    FLOAT,
    INT,
    SCALARS,
    TEXT,
    Kind,
    Options,
    Schema,
    bad_cell,
    name_of,
    repeated,
    unfit_cell,
)
from burnt.data.files.table import Table, column_kinds, distinct_values, import_pyarrow, read_entries
from burnt.errors import DataError, quantity


class CsvDataset(Table):
    """Rows of CSV files, read at once into compact columns: 4 bytes a float, 8 an integer, UTF-8 for text.

    An item is a dict with an entry for each column: a NumPy scalar, or a `str`. `take` gives a `Batch` of
    tensors ``[n]`` and lists of `str`. Types are inferred from the first 20,000 rows: ``true`` and ``false``
    become bool, integers int64, other numbers float32, anything else text. Numbers with leading zeros are
    codes, thus text. A later row that does not fit is an error.

    Missing are empty fields, NA, N/A, NaN, null and None. In a column of text nothing is missing: an empty
    field is an empty text. It needs pyarrow: ``pip install "burnt[data]"``.

    Args:
        path: a file, a pattern such as ``"part-*.csv"``, or a list of these; ``.gz`` is decompressed. All
            files have the same columns.
        columns: the names of the columns to keep; or a mapping from each entry of an item to its column, or
            to several columns that are stacked to one tensor ``[k]``. ``{"pixels": "pixel_*"}`` stacks all
            columns that match, in their order in the file.
        types: types of columns, in place of the inferred ones: int, float, bool, str or a dtype of torch.
            `datetime.date` makes days since 1970-01-01 in float32 of dates and times in ISO 8601, a text such
            as ``"%d.%m.%Y"`` of those in another format of ``strptime``. The time of day is a fraction, to 3
            minutes before the year 2059, and a time zone is converted to UTC. `columns` then takes
            ``"joined.year"``, ``.month``, ``.day``, ``.weekday`` (Monday is 0) and ``.hour`` of a column
            ``"joined"``, too. `ImageFiles` reads the images that a column names.
        label: the column with the class of each row: it becomes the number of the class, int64, and
            `classes` the list of names, sorted.
        categories: further columns whose values become numbers, int64; or a mapping from columns to all
            their values in order. For validation data: ``categories=train.categories``.
        missing: ``"error"``; ``"nan"``, which turns columns of integers with missing values into float32;
            ``"drop"``, without rows that miss a value; or a mapping from columns to the value that is
            filled in.
        unknown: true, or the names of columns of `categories`: their last category is ``"<unknown>"``, of
            missing values, and of those that are none of the others, as in data after the training. The names
            in ``train.categories`` have it already.
        delimiter: the character between fields; a tab for ``.tsv`` files, else a comma.
        header: whether the first row has the names; or the names of the columns of files without them.
        skip: the number of lines before the header.
        encoding: the text's encoding; a byte order mark of UTF-8 is skipped.

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
        unknown: bool | Sequence[str] = False,
        delimiter: str | None = None,
        header: bool | Sequence[str] = True,
        skip: int = 0,
        encoding: str = "utf-8",
    ) -> None:
        arrow = import_pyarrow("a CsvDataset")
        files = find_files(path)
        if delimiter is not None and len(delimiter.encode()) != 1:
            raise DataError("delimiter= must be one character", found=repr(delimiter))
        try:
            encoding = codecs.lookup(encoding).name
            io.TextIOWrapper(io.BytesIO(), encoding)  # refuses those that are not of text, such as base64
        except LookupError:
            raise DataError("encoding= is unknown to Python", found=repr(encoding)) from None
        self.files = [CsvFile(file, delimiter, header, skip, encoding) for file in files]
        self._rows: NDArray[np.int64] | None = None
        first = self.files[0]
        schema = Schema.create(
            Options(columns, types, label, categories, missing, unknown),
            first.names,
            first.path,
            policies=("error", "nan", "drop"),
            kinds=SCALARS,
        )
        for file in self.files[1:]:
            schema.check_columns(file.names, file.path, first.path)
        fields = arrow.concat_tables([file.read(schema.sources) for file in self.files])
        if not fields.num_rows:
            raise DataError("there are no rows", where=first.path, expected="rows after the header")
        table = arrow.table(
            {name: typed_column(fields[name], name, schema, self.place) for name in schema.sources}
        )
        del fields
        known = schema.find_categories(
            lambda column: distinct_values(table[column]), table.num_rows, first.path
        )
        if missing == "drop":
            is_absent = [cells.is_null().to_numpy() for cells in table.columns]
            self._rows = np.flatnonzero(~np.logical_or.reduce(is_absent))
            if not len(self._rows):
                raise DataError("every row lacks a value, so that none is left", where=first.path)
            table = table.take(self._rows)
        kinds = column_kinds(schema, table.schema, lambda column: table[column].null_count > 0)
        csv = {"delimiter": delimiter, "header": header, "skip": skip, "encoding": encoding}
        defaults = {"delimiter": None, "header": True, "skip": 0, "encoding": "utf-8"}
        csv = {name: value for name, value in csv.items() if value != defaults[name]}
        super().__init__(read_entries(table, schema, kinds, known, self.place), known, schema, kinds, csv)

    def place(self, index: int) -> str:
        """Return the file and line of an item, ``"houses.csv, line 7"``."""
        return place_in(self.files, index if self._rows is None else int(self._rows[index]))


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
        try:
            if self._encoding != "utf-8-sig":
                data = data.decode(self._encoding).encode()
            if data.count(b'"') % 2:
                self._find_damage()  # a quote that is not closed, which pyarrow does not mind
            # Pyarrow's threads release what they read, some after the call. For an object of Python they
            # wait for the GIL, and the process aborts if the interpreter exits meanwhile.
            buffer = pyarrow.allocate_buffer(len(data))
            memoryview(buffer).cast("B")[:] = data
            del data
            text = pyarrow.large_string()
            table = arrow_csv.read_csv(
                pyarrow.BufferReader(buffer),
                arrow_csv.ReadOptions(
                    column_names=self.names, skip_rows=self._skip + self._header_lines, block_size=_BLOCK
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
    if name in schema.categories or isinstance(declared, Date | ImageFiles):
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
