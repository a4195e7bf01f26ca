"""CSV files as datasets: read once by pyarrow, held as compact columns."""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burnt._hints import explain_arguments
from burnt.data.files.arrow import (
    column_kinds,
    distinct_values,
    import_pyarrow,
    read_entries,
)
from burnt.data.files.csv_column import typed_column
from burnt.data.files.csv_source import CsvFile, place_in
from burnt.data.files.opening import Paths, find_files
from burnt.data.files.schema import SCALARS, Options, Schema
from burnt.data.files.table import Table
from burnt.errors import DataError


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
        arrow = import_pyarrow("a CsvDataset")
        files = find_files(path)
        if delimiter is not None and len(delimiter.encode()) != 1:
            raise DataError("delimiter= must be one character", found=repr(delimiter))
        try:
            encoding = codecs.lookup(encoding).name
            io.TextIOWrapper(io.BytesIO(), encoding)  # refuses those that are not of text, such as base64
        except LookupError:
            raise DataError("encoding= is unknown to Python", found=repr(encoding)) from None
        self._files = [CsvFile(file, delimiter, header, skip, encoding) for file in files]
        self._rows: NDArray[np.int64] | None = None
        first = self._files[0]
        schema = Schema.create(
            Options(columns, types, label, categories, missing),
            first.names,
            first.path,
            policies=("error", "nan", "drop"),
            kinds=SCALARS,
        )
        for given in schema.categories.values():  # which are text here
            if given is not None:
                given.index |= {name: number for number, name in enumerate(given.names)}
        for file in self._files[1:]:
            schema.check_columns(file.names, file.path, first.path)
        fields = arrow.concat_tables([file.read(schema.used) for file in self._files])
        if not fields.num_rows:
            raise DataError("there are no rows", where=first.path, expected="rows after the header")
        table = arrow.table(
            {name: typed_column(fields[name], name, schema, self.place) for name in schema.used}
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
        super().__init__(read_entries(table, schema, kinds, known, self.place), known, schema)

    def place(self, index: int) -> str:
        """Return the file and line of an item, ``"houses.csv, line 7"``."""
        return place_in(self._files, index if self._rows is None else int(self._rows[index]))
