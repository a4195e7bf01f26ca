"""Dataframes of pandas, polars and pyarrow as datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt._hints import explain_arguments
from burnt.data.files.rows import flatten
from burnt.data.files.schema import Kind, Options, Schema, Vector, unfit_cell
from burnt.data.files.table import (
    Table,
    column_kinds,
    column_names,
    distinct_values,
    import_pyarrow,
    read_entries,
)
from burnt.data.fitting import misfits
from burnt.errors import DataError

if TYPE_CHECKING:
    import pyarrow


class DataframeDataset(Table):
    """Rows of a dataframe of pandas or polars, a table of pyarrow, or anything else that exports Arrow.

    The columns are converted once: numbers to NumPy arrays, text to UTF-8. Integers become int64 and floats
    float32, unless `types` declares others. Lists of a fixed size (`fixed_size_list`, polars' `Array`) become
    tensors ``[k]``; with lists of different lengths there is no `take`, and a loader's `batcher` pads them.
    The index of a pandas frame is left out.

    Args:
        frame: the dataframe, whose rows become the items.
        columns, label, categories, unknown: the columns to keep, and how they are encoded: see `CsvDataset`.
        types: types of columns: int, float, bool, str, a dtype of torch, dates as in `CsvDataset`, or object
            for values of Python.
        missing: what is done for nulls, and for NaN: ``"error"``; ``"nan"``, for numbers; or a mapping from
            columns to the value that is filled in.

    Raises:
        DataError: a column does not exist, or a cell is missing or does not fit its type.

    >>> import pandas, torch
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
        unknown: bool | Sequence[str] = False,
    ) -> None:
        arrow = import_pyarrow("a DataframeDataset")
        if not hasattr(frame, "__arrow_c_stream__"):
            raise DataError(
                "this is not a dataframe",
                expected="a DataFrame of pandas or polars, or a table of pyarrow",
                found=type(frame).__name__,
                hint="frame.collect() makes one of a LazyFrame" if hasattr(frame, "collect") else None,
            )
        names = column_names(frame.schema if isinstance(frame, arrow.Table) else frame)
        if not all(isinstance(column, str) for column in names):
            raise DataError("the columns of a dataframe need names", found=repr(names))
        options = Options(columns, types, label, categories, missing, unknown)
        schema = Schema.create(options, names, "the dataframe")
        used = schema.sources
        table = frame.select(used) if isinstance(frame, arrow.Table) else _converted(frame, used)
        if not table.num_rows:
            raise DataError("there are no rows", where="the dataframe")
        known = schema.find_categories(
            lambda column: distinct_values(table[column]), table.num_rows, "the dataframe"
        )
        kinds = column_kinds(schema, table.schema, lambda column: table[column].null_count > 0)
        for column in kinds.keys() & used:
            _check_integers(frame[column], column, kinds[column], self.place)
        super().__init__(read_entries(table, schema, kinds, known, self.place), known, schema, kinds)

    def place(self, index: int) -> str:
        """Return the place of an item, ``"the dataframe, row 7"``, counted from 0."""
        return f"the dataframe, row {index}"


def _check_integers(cells: Any, column: str, kind: Kind, where: Callable[[int], str]) -> None:
    """Refuse integers in a column of objects that its floats have changed, which Arrow does not tell."""
    dtype = kind.dtype if isinstance(kind, Vector) else kind
    if not isinstance(dtype, np.dtype) or dtype.kind != "f" or str(getattr(cells, "dtype", "")) != "object":
        return
    for row, cell in enumerate(cells):
        for number in flatten(cell) if isinstance(cell, list) else [cell]:
            if isinstance(number, int | np.integer) and misfits(np.array([number]), dtype)[0]:
                raise unfit_cell(where(row), column, dtype, number)


def _converted(frame: Any, columns: list[str]) -> pyarrow.Table:
    """Return columns of a dataframe as a table of Arrow."""
    import pyarrow

    try:
        return pyarrow.table(frame[columns]).select(columns)
    except (pyarrow.ArrowException, TypeError, OverflowError) as error:  # objects of several types
        raise DataError(
            "a column of the dataframe cannot be converted to one type",
            found=" ".join(map(str, error.args)),
            hint="frame[column].astype(str) makes it text; or select others by columns=",
        ) from error
