"""Datasets that read from others when an item is used: what `operations` return.

Their `take`, `column` and `__getitems__` are properties, which raise an AttributeError where the dataset that
they read from has none, so that ``hasattr`` tells.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt.data.batch import Batch, collate, copy_item
from burnt.data.dataset import checked_index
from burnt.data.files.table import take_across
from burnt.data.item_store import ItemStore
from burnt.errors import DataError

T = TypeVar("T")
R = TypeVar("R")
Indices = NDArray[np.int64]

_ABSENT: Any = object()


class _Over(Generic[T]):
    """A dataset that reads from another one, and has its classes and categories."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @property
    def classes(self) -> list[str]:
        names: list[str] = self.dataset.classes
        return names

    @property
    def categories(self) -> Mapping[str, Sequence[Any]]:
        names: Mapping[str, Sequence[Any]] = self.dataset.categories
        return names

    def __len__(self) -> int:
        return len(self.dataset)

    def place(self, index: int) -> str:
        """Return where an item comes from, ``"houses.csv, line 7"``."""
        return place_of(self.dataset, index)


class Mapped(_Over[R]):
    """The items of a dataset after a function."""

    def __init__(self, dataset: Any, function: Callable[[Any], R]) -> None:
        super().__init__(dataset)
        self._function = function

    def __getitem__(self, index: int) -> R:
        item = copy_item(self.dataset[index])  # the function may change it in place
        try:
            return self._function(item)
        except Exception as error:
            note_place(error, "while mapping", self.dataset, index)
            raise


class Cached(_Over[T]):
    """The items of a dataset, each kept after its first use."""

    def __init__(self, dataset: Any, items: dict[int, T] | ItemStore) -> None:
        super().__init__(dataset)
        self._items = items

    def __getitem__(self, index: int) -> T:
        index = checked_index(operator.index(index), len(self))
        item: T = self._items.get(index, _ABSENT)
        if item is _ABSENT:
            item = self._items[index] = self.dataset[index]
        return item


class Selection(_Over[T]):
    """Items of a dataset by their indices in it; a selection of a selection reads from the dataset itself."""

    def __init__(self, dataset: Any, indices: Indices) -> None:
        super().__init__(dataset)
        self.indices = indices
        if isinstance(dataset, Selection):
            self.indices = dataset.indices[indices]
            self.dataset = dataset.dataset

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> T:
        item: T = self.dataset[int(self.indices[index])]
        return item

    @property
    def take(self) -> Callable[[Tensor], Any]:
        """``take(indices)`` returns the items at indices as one batch, if the dataset has it."""
        _require_take(self.dataset)
        return self._take

    def _take(self, indices: Tensor) -> Any:
        return self.dataset.take(torch.from_numpy(self.indices[indices.numpy()]))

    @property
    def column(self) -> Callable[[str], Any]:
        """``column(name)`` returns a whole column of a table: a tensor, or a list."""
        whole = self.dataset.column
        return lambda name: _entries_of(whole(name), self.indices)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[T]]:
        several: Callable[[list[int]], list[T]] = self.dataset.__getitems__
        return lambda indices: several(self.indices[np.asarray(indices)].tolist())

    def place(self, index: int) -> str:
        """Return where an item comes from."""
        return place_of(self.dataset, int(self.indices[index]))


class Concatenation(Generic[T]):
    """The items of several datasets, one dataset after the other."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = datasets
        self._starts = np.cumsum([0, *(len(dataset) for dataset in self.datasets)])

    @property
    def classes(self) -> list[str]:
        """The names of the classes, if a dataset has them."""
        names: list[str] = next((d for d in self.datasets if hasattr(d, "classes")), self.datasets[0]).classes
        return names

    @property
    def categories(self) -> Mapping[str, Sequence[Any]]:
        """The names of the categories, if a dataset has them."""
        named = (d for d in self.datasets if hasattr(d, "categories"))
        names: Mapping[str, Sequence[Any]] = next(named, self.datasets[0]).categories
        return names

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _find(self, index: int) -> tuple[Any, int]:
        index = checked_index(index, len(self))
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.datasets[number], index - int(self._starts[number])

    def __getitem__(self, index: int) -> T:
        dataset, place = self._find(index)
        item: T = dataset[place]
        return item

    @property
    def take(self) -> Callable[[Tensor], Any]:
        """``take(indices)`` returns the items at indices as one batch, if all datasets have it."""
        for dataset in self.datasets:
            _require_take(dataset)
        return self._take

    def _take(self, indices: Tensor) -> Any:
        take = [dataset.take for dataset in self.datasets]
        return take_across(lambda number, at: take[number](at), torch.from_numpy(self._starts), indices)

    def place(self, index: int) -> str:
        """Return where an item comes from."""
        return place_of(*self._find(index))


class _Windows(ABC):
    """Windows of a source: their starts are `stride` apart, and the last one may be shorter."""

    def __init__(self, source: Any, size: int, stride: int, count: int) -> None:
        self.dataset: Any = source
        self._size = size
        self._stride = stride
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        start = checked_index(index, len(self)) * self._stride
        return self._window(start, min(start + self._size, len(self.dataset)))

    @property
    def take(self) -> Callable[[Tensor], Any]:
        if (self._count - 1) * self._stride + self._size > len(self.dataset):
            raise AttributeError("the last window is shorter")
        return self._take

    def _take(self, indices: Tensor) -> Any:
        return self._gather(indices[:, None] * self._stride + torch.arange(self._size))

    @abstractmethod
    def _window(self, start: int, stop: int) -> Any: ...

    @abstractmethod
    def _gather(self, places: Tensor) -> Any:
        """Return the entries at places, ``[n, size]``."""


class ArrayWindows(_Windows):
    """Windows of a tensor or an array, along its first axis."""

    def _window(self, start: int, stop: int) -> Tensor:
        return _as_tensor(self.dataset[start:stop])

    def _gather(self, places: Tensor) -> Tensor:
        source = self.dataset
        if isinstance(source, Tensor):
            return source[places.to(source.device)]
        return _as_tensor(source[places.numpy()])


class DatasetWindows(_Windows, _Over[Any]):
    """Windows of a dataset, each a batch."""

    @property
    def take(self) -> Callable[[Tensor], Any]:
        """``take(indices)`` returns windows as one batch, if the dataset has it and all are as long."""
        _require_take(self.dataset)
        return super().take

    def place(self, index: int) -> str:
        """Return where a window comes from."""
        return f"the window from {place_of(self.dataset, index * self._stride)}"

    def _window(self, start: int, stop: int) -> Any:
        if hasattr(self.dataset, "take"):
            return self.dataset.take(torch.arange(start, stop))
        return collate([self.dataset[index] for index in range(start, stop)])

    def _gather(self, places: Tensor) -> Any:
        return _fold(self.dataset.take(places.flatten()), places.shape)


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    return torch.from_numpy(np.array(values, np.int64 if values.dtype.kind in "iu" else values.dtype))


def _fold(batch: Any, shape: torch.Size) -> Any:
    """Return a batch of ``n * size`` items as one of n windows."""
    if isinstance(batch, Tensor):
        return batch.view(*shape, *batch.shape[1:])
    if isinstance(batch, Batch):
        return Batch(**{name: _fold(getattr(batch, name), shape) for name in batch})
    return [batch[start : start + shape[1]] for start in range(0, len(batch), shape[1])]


def _entries_of(column: Any, indices: Indices) -> Any:
    if isinstance(column, Tensor):
        return column[torch.from_numpy(indices)]
    return [column[index] for index in indices.tolist()]


def _require_take(dataset: Any) -> None:
    """Raise an AttributeError if a dataset has no `take`: the property of one that reads from it has none."""
    dataset.take  # noqa: B018


def place_of(dataset: Any, index: int) -> str:
    """Where an item comes from (a file and line, where its data set says so), for messages."""
    place = getattr(dataset, "place", None)
    return f"item {index}" if place is None else place(index)


def note_place(error: Exception, doing: str, dataset: Any, index: int) -> None:
    """Add the place of an item to an error that is about to be raised."""
    try:
        place = place_of(dataset, index)
    except (DataError, OSError):  # the file is gone
        place = f"item {index}"
    error.add_note(f"{doing} {place}")
