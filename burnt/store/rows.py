"""Batched inserts: the INSERT statements of the writing thread, and the rows of one transaction."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

from burnt.store.pyramid import Bucket

Row = tuple[Any, ...]

# sqlite3 releases the interpreter lock at every statement, and waits up to 5 ms to get it back while the
# training thread runs Python code. So a statement inserts many rows. There are only a few sizes, so that each
# statement is compiled once.
_ROWS_PER_STATEMENT = (256, 16, 1)

INTO_POINT = "INSERT INTO point (series, attempt, position, step, epoch, time, value) VALUES "
INTO_BUCKET = f"INSERT INTO bucket (series, attempt, level, position, {', '.join(Bucket._fields)}) VALUES "
INTO_SERIES = "INSERT INTO series (id, name, split) VALUES "
INTO_EVENT = "INSERT INTO event (attempt, time, step, kind, data) VALUES "
INTO_LOG = "INSERT INTO log_line (attempt, time, level, text) VALUES "
INTO_SYSTEM = "INSERT INTO system_sample (attempt, time, data) VALUES "
INTO_ARTEFACT = "INSERT INTO artefact (attempt, time, step, kind, name, data) VALUES "
INTO_PROGRESS = (
    "INSERT OR REPLACE INTO progress "
    "(attempt, time, step, epoch, total_steps, total_epochs, activity, data) VALUES "
)


class Batch:
    """The rows of one transaction, grouped by INSERT statement."""

    def __init__(self) -> None:
        self.items = 0
        self.samples = 0
        self.flushed: list[threading.Event] = []
        self.is_synced = False  # whether a caller waits for it to survive a power cut
        self._rows: dict[str, list[Row]] = {}

    def __bool__(self) -> bool:
        return bool(self.items or self._rows)

    def add(self, statement: str, row: Row) -> None:
        """Add a row for one of the `INTO_` statements."""
        self._rows.setdefault(statement, []).append(row)

    def insert(self, connection: sqlite3.Connection) -> None:
        """Insert the rows within the caller's transaction."""
        for statement, rows in self._rows.items():
            insert(connection, statement, rows)


def insert(connection: sqlite3.Connection, statement: str, rows: list[Row]) -> None:
    """Insert rows with one of the `INTO_` statements."""
    marks = f"({', '.join('?' * len(rows[0]))})"
    start = 0
    for size in _ROWS_PER_STATEMENT:
        text = statement + ", ".join([marks] * size)
        while len(rows) - start >= size:
            connection.execute(text, [value for row in rows[start : start + size] for value in row])
            start += size
