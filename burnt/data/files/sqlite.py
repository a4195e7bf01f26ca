"""Tables and queries of SQLite databases as datasets."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from burnt._hints import explain_arguments
from burnt.data.files.opening import Handle, find_files
from burnt.data.files.rows import RowDataset
from burnt.data.files.schema import Options
from burnt.errors import DataError, did_you_mean

_QUERY_TABLE = "burnt_query"
_INSTRUCTIONS = 1_000  # of SQLite's virtual machine between two looks at the clock


class SqliteDataset(RowDataset):
    """Rows of a SQLite table in the order of their rowid, or of a query; each is read when it is used.

    Each process and thread opens the database for itself, read-only. Of a table, 8 bytes a row stay in
    memory. A query is run once in each process, into a temporary table; give it an ``ORDER BY``.

    An item is a dict with an entry for each column: NumPy scalars for numbers, `str` for text, `bytes` for
    blobs. Types are inferred from the first 1,000 rows, whatever the table declares; a row that does not fit
    is an error when it is read.

    Args:
        path: the file of the database.
        table: the name of a table or view.
        query: a SELECT statement, in place of `table`.
        parameters: values for the ``?`` or ``:name`` of the query.
        timeout: the seconds after which a query, or a view's, is interrupted, in each process; None for
            no limit.
        columns, label, categories, unknown: the columns to keep, and how they are encoded: see `CsvDataset`.
        types: types of columns, in place of the inferred ones: int, float, bool, str, a dtype of torch, dates
            as in `CsvDataset`, or object for values left as they are. ``bool`` takes 0 and 1.
        missing: what to do about NULL, as in `DataframeDataset`.

    Raises:
        DataError: the database cannot be read, has no such table, or a row does not fit.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "posts.db")
    >>> database = sqlite3.connect(path)
    >>> _ = database.execute("CREATE TABLE posts (title TEXT, stars INTEGER)")
    >>> _ = database.execute("INSERT INTO posts VALUES ('hello', 3), ('bye', 5)")
    >>> database.commit(); database.close()
    >>> SqliteDataset(path, "posts")[1]
    {'title': 'bye', 'stars': np.int64(5)}
    >>> len(SqliteDataset(path, query="SELECT * FROM posts WHERE stars < ?", parameters=[4]))
    1
    """

    @explain_arguments()
    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str | None = None,
        *,
        query: str | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        timeout: float | None = 60.0,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        types: Mapping[str, Any] | None = None,
        label: str | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[Any]] = (),
        missing: str | Mapping[str, Any] = "error",
        unknown: bool | Sequence[str] = False,
    ) -> None:
        (self._path,) = find_files([path])
        if (table is None) == (query is None):
            raise DataError("a SqliteDataset reads either a table or a query", where=self._path)
        self._name = f"table {table!r}" if table is not None else "the query"
        if table is not None and not self._has_rowids(table):
            query = f"SELECT * FROM {_quoted(table)}"
        self._table = _quoted(table) if query is None and table is not None else _QUERY_TABLE
        self._database = Handle(_connect, self._path, query, parameters, timeout)
        with self._reading():
            database = self._database.get()
            cursor = database.execute(f"SELECT * FROM {self._table} LIMIT 0")
            self._columns = [column[0] for column in cursor.description]
            rowids = (row[0] for row in database.execute(f"SELECT _rowid_ FROM {self._table} ORDER BY 1"))
            self._rowids = np.fromiter(rowids, np.int64)
        if len(self) == 0:
            raise DataError("there are no rows", where=f"{self._path}, {self._name}")
        options = Options(columns, types, label, categories, missing, unknown)
        self._prepare(f"{self._path}, {self._name}", options)

    def _has_rowids(self, table: str) -> bool:
        """Whether it is a table with rowids, not a view or one WITHOUT ROWID."""
        with self._reading(), closing(_connect(self._path, None)) as database:
            statement = "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
            names = dict(database.execute(statement))
            types = {name.lower(): type_ for name, type_ in names.items()}
            if table.lower() not in types:
                raise DataError(
                    "the database has no such table",
                    where=self._path,
                    expected=f"one of {', '.join(names)}" if names else None,
                    found=repr(table),
                    hint=did_you_mean(table, names),
                )
            if types[table.lower()] == "view":  # whose query may have no end
                return False
            try:
                database.execute(f"SELECT _rowid_ FROM {_quoted(table)} LIMIT 1")
            except sqlite3.OperationalError as error:
                if "_rowid_" not in str(error):
                    raise
                return False
            return True

    def __len__(self) -> int:
        return len(self._rowids)

    def read(self, index: int) -> Mapping[str, Any]:
        """Return the values of a row."""
        with self._reading(index):
            statement = f"SELECT * FROM {self._table} WHERE _rowid_ = ?"
            values = self._database.get().execute(statement, (int(self._rowids[index]),)).fetchone()
        if values is None:
            raise DataError(
                "a row is gone",
                where=self.place(index),
                hint="the table was changed after the dataset was created",
            )
        return dict(zip(self._columns, values, strict=True))

    def _distinct(self, column: str) -> Iterable[Any]:
        with self._reading():
            name = _quoted(column)
            statement = f"SELECT DISTINCT {name} FROM {self._table} WHERE {name} IS NOT NULL"
            return [row[0] for row in self._database.get().execute(statement)]

    def place(self, index: int) -> str:
        """Return the place of an item, ``"posts.db, table 'posts', rowid 17"``."""
        kind = "row" if self._table == _QUERY_TABLE else "rowid"
        return f"{self._path}, {self._name}, {kind} {self._rowids[index]}"

    @contextmanager
    def _reading(self, index: int | None = None) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            where = f"{self._path}, {self._name}" if index is None else self.place(index)
            raise DataError("the database cannot be read", where=where, found=str(error)) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _connect(
    path: str,
    query: str | None,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    timeout: float | None = None,
) -> sqlite3.Connection:
    # A handle may be closed by the garbage collector, in another thread than that which opened it.
    database = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    if query is not None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        is_late = False

        def check() -> bool:
            nonlocal is_late
            is_late = time.monotonic() > deadline
            return is_late

        database.set_progress_handler(check, _INSTRUCTIONS)
        try:
            database.execute(f"CREATE TEMP TABLE {_QUERY_TABLE} AS {query}", parameters)
        except sqlite3.OperationalError as error:
            database.close()
            if not is_late:
                raise
            raise DataError(
                "a query takes too long",
                where=path,
                expected=f"an end within timeout={timeout} seconds",
                found=query,
                hint="a larger timeout=, or None for no limit; has it a join without a condition?",
            ) from error
        database.set_progress_handler(None, 0)
    return database
