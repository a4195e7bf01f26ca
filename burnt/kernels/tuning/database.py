"""The table of what was measured: one row for each tuning key and configuration, in SQLite.

It lies beside the compiled kernels, as ``tuned.sqlite``. Several processes may read and write it at once; one
that is killed leaves what it had committed. A file that is damaged, or that somebody else made, is never
written to: readers say what is wrong, `set_aside` renames it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from burnt._files import replacing
from burnt._json import parse_json
from burnt.codegen.runtime.build_cache import cache_folder
from burnt.errors import CacheError

__all__ = ["Row", "Store", "read_table", "shipped", "shipped_wrong", "write_table"]

_APPLICATION = 0x6275726E  # "burn", where SQLite keeps who made a file
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS measured (
    key TEXT NOT NULL,
    config TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ok', 'wrong', 'failed')),
    ms REAL,
    note TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (key, config)
) WITHOUT ROWID
"""
_FORMAT = "burnt tuned table"
_ELSEWHERE = "set BURNT_CACHE to a folder that can be written"


class Row(NamedTuple):
    """What is known of a candidate for a tuning key.

    Args:
        key: see `burnt.kernels.dispatch.selection.tuning_key`; its first part is the op's name.
        config: the candidate, with its configuration as JSON.
        status: ``"ok"``; ``"wrong"`` for one whose results were, which is not used again; ``"failed"`` for
            one that does not compile or run. ``"pruned"`` for one that was not tried, as `tune` returns it:
            no table keeps it.
        ms: the median time of a call, where it is ok.
        note: what was wrong; of one that is ok, that its samples scatter too much to be relied upon.
        at: when it was measured, as a Unix time.
    """

    key: str
    config: str
    status: str
    ms: float | None
    note: str = ""
    at: float = 0.0

    @property
    def op(self) -> str:
        """The op's name."""
        return self.key.partition("|")[0]

    @property
    def sources(self) -> str:
        """A hash of the op's sources when it was measured."""
        return self.key.split("|", 2)[1]

    @property
    def machine(self) -> str:
        """The device that it was measured on, and what compiled for it."""
        return self.key.split("|", 3)[2]


class Store:
    """The table of this user.

    Args:
        path: the file; by default ``tuned.sqlite`` in the cache folder of burnt.

    Raises:
        CacheError: the cache folder cannot be made or trusted; by every method, the file is damaged, not
            ours, of a newer burnt, or cannot be written.
    """

    def __init__(self, path: Path | None = None) -> None:
        try:
            self.path = path if path is not None else cache_folder().parent / "tuned.sqlite"
        except CacheError:
            raise
        except OSError as error:
            raise CacheError(
                "there is no folder for the table of tuned kernels",
                where=error.filename,
                expected="BURNT_CACHE, XDG_CACHE_HOME or ~/.cache, which can be made and written",
                found=f"{type(error).__name__}: {error}",
                hint=_ELSEWHERE,
            ) from error

    def rows(self, key: str | None = None) -> list[Row]:
        """All rows, or those of a key, the fastest first."""
        if not self.path.exists():
            return []
        where = "" if key is None else " WHERE key = ?"
        with self._open() as connection:
            found = connection.execute(
                f"SELECT key, config, status, ms, note, at FROM measured{where} ORDER BY key, ms IS NULL, ms",
                () if key is None else (key,),
            )
            return [Row(*row) for row in found]

    def wrong(self, prefix: str) -> list[Row]:
        """The rows of what gave wrong results, for any key that begins so."""
        if not self.path.exists():
            return []
        with self._open() as connection:
            found = connection.execute(
                "SELECT key, config, status, ms, note, at FROM measured "
                "WHERE status = 'wrong' AND substr(key, 1, ?) = ?",
                (len(prefix), prefix),
            )
            return [Row(*row) for row in found]

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, in place of those that have the same key and configuration."""
        stamped = [row if row.at else row._replace(at=time.time()) for row in rows]
        with self._open(create=True) as connection, _transaction(connection):
            connection.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?)", stamped)

    def clear(self, op: str | None = None) -> int:
        """Delete all rows, or those of an op; how many there were."""
        if not self.path.exists():
            return 0
        with self._open() as connection, _transaction(connection):
            if op is None:
                return connection.execute("DELETE FROM measured").rowcount
            return connection.execute("DELETE FROM measured WHERE key LIKE ? || '|%'", (op,)).rowcount

    def set_aside(self) -> Path:
        """Rename a file that cannot be used, so that a new one can be made; its new name."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        try:
            for suffix in ("-wal", "-shm", ""):
                part = self.path.with_name(self.path.name + suffix)
                if part.exists():
                    part.rename(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise self._error(
                "cannot be moved aside", error, "look at the folder's owner and mode"
            ) from error
        return aside

    @contextlib.contextmanager
    def _open(self, create: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            if create:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.closing(
                sqlite3.connect(self.path, timeout=30, isolation_level=None)
            ) as connection:
                self._check(connection)
                if create:
                    connection.execute("PRAGMA journal_mode=WAL")
                    with _transaction(connection):
                        connection.execute(_SCHEMA)
                        connection.execute(f"PRAGMA application_id={_APPLICATION}")
                        connection.execute(f"PRAGMA user_version={_VERSION}")
                yield connection
        except sqlite3.OperationalError as error:
            hint = "set BURNT_CACHE to a folder that can be written, or look what else uses the file"
            raise self._error("cannot be used", error, hint) from error
        except sqlite3.DatabaseError as error:
            hint = "`burnt tune clear` moves it aside; nothing is deleted"
            raise self._error("is damaged", error, hint) from error
        except CacheError:
            raise
        except OSError as error:
            raise self._error("cannot be used", error, _ELSEWHERE) from error

    def _check(self, connection: sqlite3.Connection) -> None:
        # One statement sees one state: another process may be creating the tables.
        application, version, tables = connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id),"
            " (SELECT user_version FROM pragma_user_version), count(*) FROM sqlite_master"
        ).fetchone()
        if application != _APPLICATION and (tables or application):
            raise self._error(
                "was made by another program",
                f"application id {application:#x}, {tables} tables",
                "it is left alone: move it away, or set BURNT_CACHE to another folder",
            )
        if version > _VERSION:
            raise self._error(
                "was made by a newer burnt",
                f"version {version}, this one writes {_VERSION}",
                "upgrade burnt, or set BURNT_CACHE to another folder",
            )

    def _error(self, what: str, found: object, hint: str) -> CacheError:
        return CacheError(f"the table of tuned kernels {what}", where=str(self.path), found=found, hint=hint)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


# --- tables as files --------------------------------------------------------------------------------------


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON, one a line, for another machine or for the package.

    Raises:
        OSError: the file cannot be written.
    """
    lines = ",\n".join(json.dumps(row._asdict(), sort_keys=True) for row in rows)
    with replacing(path) as aside:
        aside.write_text(f'{{"format": "{_FORMAT}", "version": {_VERSION}, "rows": [\n{lines}\n]}}\n')


def read_table(path: Path) -> list[Row]:
    """The rows of a file that `write_table` wrote.

    Raises:
        CacheError: it is not there, or no such table.
    """
    try:
        document = parse_json(path.read_text())
        if document["format"] != _FORMAT or document["version"] > _VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']}")
        return [_row(row) for row in document["rows"]]
    except OSError as error:
        raise CacheError("a table of tuned kernels cannot be read", where=str(path), found=error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CacheError(
            "the file is no table of tuned kernels",
            where=str(path),
            expected=f"JSON with the format {_FORMAT!r}, as `burnt tune export` writes it",
            found=f"{type(error).__name__}: {error}",
        ) from error


def _row(document: dict[str, Any]) -> Row:
    row = Row(**document)
    good = row.status in ("ok", "wrong", "failed") and (row.status != "ok" or isinstance(row.ms, float))
    if not good or not all(isinstance(t, str) for t in (row.key, row.config, row.note)):
        raise ValueError(f"row {document}")
    return row


_TABLES = Path(__file__).parents[1] / "tuned"
_shipped: dict[str, list[Row]] | None = None


def shipped(key: str) -> list[Row]:
    """The rows of a key in the tables that come with the package."""
    return _tables().get(key, [])


def shipped_wrong(prefix: str) -> list[Row]:
    """The rows of what gave wrong results in these tables, for any key that begins so."""
    return [
        row
        for key, rows in _tables().items()
        if key.startswith(prefix)
        for row in rows
        if row.status == "wrong"
    ]


def _tables() -> dict[str, list[Row]]:
    global _shipped
    if _shipped is None:
        found: dict[str, list[Row]] = {}
        for path in sorted(_TABLES.glob("*.json")):
            for row in read_table(path):
                found.setdefault(row.key, []).append(row)
        _shipped = found
    return _shipped
