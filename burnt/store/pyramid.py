"""The min/max pyramid of a metric: buckets of 16, 256 and 4096 consecutive points.

The writer adds a bucket when its last point arrives and never changes it, so a crash leaves no partial
bucket. The newest points are not covered by a bucket yet; readers take them from a finer level.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple

FANOUT = 16
LEVELS = (1, 2, 3)


class Bucket(NamedTuple):
    """Statistics of consecutive points of one series, in the column order of table `bucket`.

    `min`, `max` and `sum` cover the finite values; `nonfinite` is the first value that is NaN or infinite,
    and `nonfinite_step` is None if there is none.
    """

    points: int
    finite: int
    first_step: int
    last_step: int
    sum: float
    min: float | None
    min_step: int | None
    min_time: float | None
    max: float | None
    max_step: int | None
    max_time: float | None
    nonfinite: float | None
    nonfinite_step: int | None
    nonfinite_time: float | None


def single(step: int, time: float, value: float) -> Bucket:
    """Return a bucket of one point."""
    if math.isfinite(value):
        return Bucket(1, 1, step, step, value, value, step, time, value, step, time, None, None, None)
    return Bucket(1, 0, step, step, 0.0, None, None, None, None, None, None, value, step, time)


_first_step = attrgetter("first_step")
_last_step = attrgetter("last_step")
_min = attrgetter("min")
_max = attrgetter("max")


def merge(buckets: Sequence[Bucket]) -> Bucket:
    """Merge buckets, given in order of arrival, into one.

    >>> merged = merge([single(1, 0.0, 2.0), single(2, 0.5, -1.0), single(3, 1.0, float("inf"))])
    >>> merged.min_step, merged.max_step, merged.sum, merged.nonfinite_step
    (2, 1, 1.0, 3)
    """
    if len(buckets) == 1:
        return buckets[0]
    finite = [bucket for bucket in buckets if bucket.finite]
    low = min(finite, key=_min) if finite else buckets[0]
    high = max(finite, key=_max) if finite else buckets[0]
    odd = next((bucket for bucket in buckets if bucket.nonfinite_step is not None), buckets[0])
    return Bucket(
        sum(bucket.points for bucket in buckets),
        sum(bucket.finite for bucket in buckets),
        min(map(_first_step, buckets)),
        max(map(_last_step, buckets)),
        sum(bucket.sum for bucket in buckets),
        *(low.min, low.min_step, low.min_time),
        *(high.max, high.max_step, high.max_time),
        *(odd.nonfinite, odd.nonfinite_step, odd.nonfinite_time),
    )


class Pyramid:
    """The newest points and buckets of one series in one attempt that do not fill a (larger) bucket yet."""

    def __init__(self) -> None:
        self.count = 0
        self._points: list[tuple[int, float, float]] = []
        self._open: list[list[Bucket]] = [[] for _ in LEVELS[1:]]

    def add(self, step: int, time: float, value: float) -> list[tuple[int, int, Bucket]]:
        """Add a point; return the (level, position, bucket) tuples that it completes, usually none."""
        self.count += 1
        self._points.append((step, time, value))
        if len(self._points) < FANOUT:
            return []
        bucket = merge(list(starmap(single, self._points)))
        self._points.clear()
        done = [(1, self.count // FANOUT - 1, bucket)]
        for level, pending in zip(LEVELS[1:], self._open, strict=True):
            pending.append(bucket)
            if len(pending) < FANOUT:
                break
            bucket = merge(pending)
            pending.clear()
            done.append((level, self.count // FANOUT**level - 1, bucket))
        return done


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
