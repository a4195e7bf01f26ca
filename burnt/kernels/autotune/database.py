"""The table of measurements: one row for each tuning key and configuration, in an SQLite file.

The file is ``tuned.sqlite``, next to the compiled kernels. Several processes may read and write it at once;
what a killed process had committed stays. A file that is damaged, or that another program wrote, is never
written to: every method raises an error that says what is wrong, and `TuningDatabase.set_aside` renames the
file.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from burnt._files import parse_json, replacing
from burnt.codegen.runtime.build_cache import cache_folder
from burnt.errors import CacheError

_APPLICATION = 0x6275726E  # "burn": SQLite's application id, which says which program wrote a file
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
_CACHE_HINT = "set BURNT_CACHE to a folder that can be written"


class Row(NamedTuple):
    """The measurement of a candidate for a tuning key.

    Args:
        key: see `burnt.kernels.interface.tuning_key.tuning_key`; its first part is the op's name.
        config: the candidate, with its configuration as JSON.
        status: ``"ok"``; ``"wrong"``: the accuracy check failed, and the candidate is not used again;
            ``"failed"``: it does not compile or run; ``"pruned"``: it was not tried. Pruned rows are returned
            by `tune`, but not stored.
        ms: the median time of a call in milliseconds, if the status is ok.
        note: the error; for an ok row, a warning if its samples scatter too much to be reliable.
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
        """The hash of the op's sources when it was measured."""
        return self.key.split("|", 2)[1]

    @property
    def machine(self) -> str:
        """The name of the device that it was measured on, and of its compiler."""
        return self.key.split("|", 3)[2]


class TuningDatabase:
    """The user's table of measurements: by default ``tuned.sqlite`` in burnt's cache folder.

    Every method raises a CacheError if the file is damaged, was written by another program or a newer burnt,
    or cannot be read or written; so does the constructor without a safe cache folder.
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
                expected="BURNT_CACHE, XDG_CACHE_HOME or ~/.cache: a folder that can be created and written",
                found=f"{type(error).__name__}: {error}",
                hint=_CACHE_HINT,
            ) from error

    def rows(self, key: str | None = None) -> list[Row]:
        """Return all rows, or a key's, the fastest first."""
        order = "ORDER BY key, ms IS NULL, ms"
        return self._select(f"1 {order}") if key is None else self._select(f"key = ? {order}", key)

    def wrong(self, prefix: str) -> list[Row]:
        """Return the rows with status ``"wrong"`` of all keys that start with a prefix."""
        return self._select("status = 'wrong' AND substr(key, 1, ?) = ?", len(prefix), prefix)

    def _select(self, where: str, *parameters: object) -> list[Row]:
        if not self.path.exists():
            return []
        with self._open() as connection:
            query = f"SELECT {', '.join(Row._fields)} FROM measured WHERE {where}"
            return [Row(*record) for record in connection.execute(query, parameters)]

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, replacing those with the same key and configuration."""
        stamped = [row if row.at else row._replace(at=time.time()) for row in rows]
        with self._open(create=True) as connection, _transaction(connection):
            connection.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?)", stamped)

    def clear(self, op: str | None = None) -> int:
        """Delete all rows, or an op's; return how many were deleted."""
        if not self.path.exists():
            return 0
        with self._open() as connection, _transaction(connection):
            if op is None:
                return connection.execute("DELETE FROM measured").rowcount
            return connection.execute("DELETE FROM measured WHERE key LIKE ? || '|%'", (op,)).rowcount

    def set_aside(self) -> Path:
        """Rename a file that cannot be used, so that a new one can be created; return its new path."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        try:
            for suffix in ("-wal", "-shm", ""):
                part = self.path.with_name(self.path.name + suffix)
                if part.exists():
                    part.rename(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise self._error(
                "cannot be renamed", error, "check the owner and the permissions of its folder"
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
            hint = "set BURNT_CACHE to a folder that can be written, or check which process uses the file"
            raise self._error("cannot be used", error, hint) from error
        except sqlite3.DatabaseError as error:
            hint = "`burnt tune clear` renames it; nothing is deleted"
            raise self._error("is damaged", error, hint) from error
        except CacheError:
            raise
        except OSError as error:
            raise self._error("cannot be used", error, _CACHE_HINT) from error

    def _check(self, connection: sqlite3.Connection) -> None:
        # A single statement sees a consistent state while another process creates the tables.
        application, version, tables = connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id),"
            " (SELECT user_version FROM pragma_user_version), count(*) FROM sqlite_master"
        ).fetchone()
        if application != _APPLICATION and (tables or application):
            raise self._error(
                "was written by another program",
                f"application id {application:#x}, {tables} tables",
                "the file is unchanged: move it away, or set BURNT_CACHE to another folder",
            )
        if version > _VERSION:
            raise self._error(
                "was written by a newer burnt",
                f"version {version}; this burnt supports {_VERSION}",
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
    """Write rows as JSON, one per line, for another machine or for the package."""
    lines = ",\n".join(json.dumps(row._asdict(), sort_keys=True) for row in rows)
    with replacing(path) as temporary:
        temporary.write_text(f'{{"format": "{_FORMAT}", "version": {_VERSION}, "rows": [\n{lines}\n]}}\n')


def read_table(path: Path) -> list[Row]:
    """Read the rows of a file written by `write_table`; raise a `CacheError` if it is not such a table."""
    try:
        document = parse_json(path.read_text())
        if document["format"] != _FORMAT or document["version"] > _VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']}")
        return [_parse_row(row) for row in document["rows"]]
    except OSError as error:
        raise CacheError("a table of tuned kernels cannot be read", where=str(path), found=error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CacheError(
            "the file is not a table of tuned kernels",
            where=str(path),
            expected=f"JSON with the format {_FORMAT!r}, as `burnt tune export` writes it",
            found=f"{type(error).__name__}: {error}",
        ) from error


def _parse_row(document: dict[str, Any]) -> Row:
    row = Row(**document)
    is_valid = row.status in ("ok", "wrong", "failed") and (row.status != "ok" or isinstance(row.ms, float))
    if not is_valid or not all(isinstance(t, str) for t in (row.key, row.config, row.note)):
        raise ValueError(f"row {document}")
    return row


_TABLES = Path(__file__).parents[1] / "tuned"


@functools.cache
def shipped_rows() -> list[Row]:
    """Return the rows of the tables shipped with the package."""
    return [row for path in sorted(_TABLES.glob("*.json")) for row in read_table(path)]
