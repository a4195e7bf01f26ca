"""Datasets that read from others when an item is used: what `operations` return.

Their `take`, `column` and `__getitems__` are properties, which raise an AttributeError where the dataset that
they read from has none, so that ``hasattr`` tells.

Items can be kept on disk, in a SQLite file that several processes and runs share. An item there is
MessagePack with extensions for tensors, arrays, tuples and batches, so that reading one runs no code, as
unpickling would.
"""

from __future__ import annotations

import operator
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt.data.batch import Batch, collate, copy_item
from burnt.data.dataset import checked_index
from burnt.data.files.opening import Handle
from burnt.data.files.table import take_across
from burnt.errors import DataError, did_you_mean

_APPLICATION_ID = 0x6275726E  # "burn": tells the file from other SQLite files
_TUPLE, _TENSOR, _ARRAY, _SCALAR, _BATCH = range(5)


class ItemStore:
    """Items by their number in a file, as of a dict: `get` and item assignment."""

    def __init__(self, path: str | os.PathLike[str], length: int, key: str) -> None:
        self._path = os.fspath(path)
        self._database = Handle(_connect, self._path)
        with self._using():
            database = self._database.get()
            database.execute("BEGIN IMMEDIATE")
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application,) = database.execute("PRAGMA application_id").fetchone()
            if tables and application != _APPLICATION_ID:
                database.execute("ROLLBACK")
                raise DataError(
                    "the file is not a cache of items", where=self._path, hint="choose another path"
                )
            if not tables:
                database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                database.execute("CREATE TABLE dataset (length INTEGER, key TEXT)")
                database.execute("CREATE TABLE items (number INTEGER PRIMARY KEY, item BLOB NOT NULL)")
                database.execute("INSERT INTO dataset VALUES (?, ?)", (length, key))
            found = database.execute("SELECT length, key FROM dataset").fetchone()
            database.execute("COMMIT")
        if found != (length, key):
            raise DataError(
                "the cache is of another dataset",
                where=self._path,
                expected=f"{length} items, key {key!r}",
                found=f"{found[0]} items, key {found[1]!r}",
                hint="delete the file, or choose another path",
            )

    def get(self, number: int, default: Any) -> Any:
        """Return an item, or `default` if it is not stored yet."""
        with self._using():
            statement = "SELECT item FROM items WHERE number = ?"
            row = self._database.get().execute(statement, (number,)).fetchone()
        if row is None:
            return default
        try:
            return _decode(row[0])
        except (msgspec.DecodeError, ValueError, TypeError, AttributeError) as error:
            raise DataError(
                "an item of the cache is damaged",
                where=f"{self._path}, item {number}",
                found=str(error),
                hint="delete the file",
            ) from error

    def __setitem__(self, number: int, item: Any) -> None:
        try:
            data = _encode(item)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise DataError(
                "an item cannot be cached on disk",
                where=f"item {number}",
                expected="numbers, text, bytes, tensors, arrays; lists, tuples, dicts and batches of them",
                found=str(error),
                hint="map it to these, integers to 64 bits; or cache it in memory",
            ) from error
        with self._using():
            self._database.get().execute("INSERT OR IGNORE INTO items VALUES (?, ?)", (number, data))

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DataError("the cache cannot be used", where=self._path, found=str(error)) from error


def _connect(path: str) -> sqlite3.Connection:
    # A handle may be closed in another thread than that which opened it.
    database = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    # With a write-ahead log, readers do not wait for writers, and a killed process leaves whole items.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    return database


def _encode(item: Any) -> bytes:
    return msgspec.msgpack.encode(_plain(item))


def _plain(value: Any) -> Any:
    """Return a value as what MessagePack knows."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    if kind is list:
        return [_plain(element) for element in value]
    if kind is dict:
        return {key: _plain(element) for key, element in value.items()}
    if kind is tuple:
        return msgspec.msgpack.Ext(_TUPLE, _encode(list(value)))
    if kind is Batch:
        return msgspec.msgpack.Ext(_BATCH, _encode(vars(value)))
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
        dtype = str(value.dtype).removeprefix("torch.")
        return msgspec.msgpack.Ext(_TENSOR, _encode([dtype, list(value.shape), content]))
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        parts = [value.dtype.str, list(value.shape), value.tobytes()]
        return msgspec.msgpack.Ext(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, _encode(parts))
    raise TypeError(kind.__name__)


def _decode(data: bytes | memoryview) -> Any:
    return msgspec.msgpack.decode(data, ext_hook=_extension)


def _extension(code: int, data: memoryview) -> Any:
    value = _decode(data)
    if code == _TUPLE:
        return tuple(value)
    if code == _BATCH:
        return Batch(**value)
    dtype, shape, content = value
    if code == _TENSOR:
        found = getattr(torch, dtype)
        return (
            torch.frombuffer(bytearray(content), dtype=found).reshape(shape)
            if content
            else torch.empty(shape, dtype=found)
        )
    array = np.frombuffer(bytearray(content), np.dtype(dtype)).reshape(shape)
    return array if code == _ARRAY else array[()]


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
        self.function = function

    def __getitem__(self, index: int) -> R:
        item = copy_item(self.dataset[index])  # the function may change it in place
        try:
            return self.function(item)
        except Exception as error:
            note_place(error, "while mapping", self.dataset, index)
            raise

    @property
    def column(self) -> Callable[[str], Any]:
        """``column(name)`` returns a field of all items after the function, if the dataset has columns."""
        self.dataset.column  # noqa: B018 - the dataset has none: neither has this
        return lambda name: column_of_items(self, name)


class Cached(_Over[T]):
    """The items of a dataset, each kept after its first use."""

    @property
    def column(self) -> Callable[[str], Any]:
        """``column(name)`` returns a whole column, if the dataset has columns."""
        column: Callable[[str], Any] = self.dataset.column
        return column

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

    @property
    def column(self) -> Callable[[str], Any]:
        """``column(name)`` returns a whole column, if all datasets have columns."""
        columns = [dataset.column for dataset in self.datasets]
        return lambda name: _joined([column(name) for column in columns])

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


def column_of_items(dataset: Any, name: str) -> Any:
    """Return a field of all items, which are all read: as a batch has it, or a list if they do not fit."""
    values = []
    for index in range(len(dataset)):
        item = dataset[index]
        try:
            values.append(item[name] if isinstance(item, Mapping) else getattr(item, name))
        except (KeyError, AttributeError):
            fields = list(item if isinstance(item, Mapping) else getattr(item, "__dict__", ()))
            hint = "data.map changes the items: take the column of the dataset before it"
            raise DataError(
                "an item has no field of this name",
                where=place_of(dataset, index),
                expected=", ".join(map(str, fields)) or "items with named fields",
                found=repr(name) if fields else f"{name!r}, in items of type {type(item).__name__}",
                hint=did_you_mean(name, map(str, fields), hint if isinstance(dataset, Mapped) else None),
            ) from None
    try:
        return collate(values) if values else values
    except DataError:  # such as pictures of several sizes
        return values


def _joined(columns: Sequence[Any]) -> Any:
    if all(isinstance(column, Tensor) for column in columns):
        return torch.cat(list(columns))
    return [value for column in columns for value in column]


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
