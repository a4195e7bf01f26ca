"""Items of a dataset on disk: a SQLite file that several processes and runs share.

An item is MessagePack with extensions for tensors, arrays, tuples and batches, so that reading one runs no
code, as unpickling would.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from burnt.data.batch import Batch
from burnt.data.files.opening import Handle
from burnt.errors import DataError

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
