"""Tables in memory: columns held compactly, of which rows are items and `take` makes batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt.data.batch import Batch
from burnt.data.dataset import checked_index
from burnt.data.files.schema import (
    Categories,
    RowItems,
    Schema,
    check_entry,
    is_number,
    not_numeric,
    shorten,
    unfit_cell,
)
from burnt.data.fitting import misfits
from burnt.errors import DataError

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
        # Integers beside float32 would become float64.
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

    def __init__(self, columns: Mapping[str, Column], categories: Mapping[str, Categories], schema: Schema):
        self._columns = dict(columns)
        self._has_take = all(column.fixed_shape for column in columns.values())
        self.categories = {column: known.values for column, known in categories.items()}
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
