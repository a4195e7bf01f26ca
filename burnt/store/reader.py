"""`RunReader`: reads a run for viewers, commands and exports, during the run or after it.

It opens `run.db` read-only and uses short transactions, so that it never blocks the training that writes.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from burnt._files import parse_json
from burnt.errors import MetricError, RunError, did_you_mean
from burnt.store.pyramid import FANOUT, LEVELS, Bucket, merge, single
from burnt.store.schema import DATABASE, MAX_INTEGER, REMOVED, check_schema, connect, unreadable
from burnt.store.write_lease import ProcessName, State, writing_state


class Attempt(NamedTuple):
    """One process that wrote the run: the first or a resumed one. Times are Unix seconds of its host."""

    id: int
    host: str
    pid: int
    process_started: float
    started: float
    heartbeat: float
    ended: float | None
    end_state: State | None
    end_reason: str | None
    resumed_from_step: int | None
    visible_until: int
    dropped: int


class Series(NamedTuple):
    """A metric's name and the split it was computed on."""

    name: str
    split: str


class Point(NamedTuple):
    """One metric value; `step` counts the steps done, `time` is in Unix seconds."""

    step: int
    epoch: int | None
    time: float
    value: float
    attempt: int


class Extreme(NamedTuple):
    """A value of a series with its step and time, such as the lowest or highest."""

    step: int
    time: float
    value: float


class Points(NamedTuple):
    """Points of a series as columns, by ascending step."""

    steps: list[int]
    times: list[float]
    values: list[float]


class Head(NamedTuple):
    """The newest visible point of a series, and the number of its points in the newest attempt."""

    point: Point
    written: int


class Outline(NamedTuple):
    """A series as buckets, with what is needed to update them as the series grows.

    The buckets contain the first `written` points of `attempt`, the newest; read later ones with
    `raw_points`.
    """

    buckets: list[Bucket]
    first: Point | None
    last: Point | None
    attempt: int
    written: int


class NewestIds(NamedTuple):
    """The id of the newest row of each append-only table; 0 if it is empty."""

    event: int
    log_line: int
    system_sample: int
    artefact: int


class Event(NamedTuple):
    """Something that happened once, such as a saved checkpoint."""

    id: int
    attempt: int
    time: float
    step: int | None
    kind: str
    data: dict[str, Any]


class LogLine(NamedTuple):
    """A line of the run's log."""

    id: int
    attempt: int
    time: float
    level: str
    text: str


class SystemSample(NamedTuple):
    """A sample of the machine's state."""

    id: int
    attempt: int
    time: float
    values: dict[str, Any]


class Artefact(NamedTuple):
    """A table (``{"columns", "rows"}``), histogram (``{"counts", "edges"}``) or image (PNG bytes)."""

    id: int
    kind: str
    name: str
    step: int | None
    time: float
    attempt: int
    data: Any


def text_of(table: Any) -> str | None:
    """Return the text of a table that holds only a text, as `burnt.log` records one; None for any other.

    >>> text_of({"columns": ["text"], "rows": [["two\\nlines"]]})
    'two\\nlines'
    """
    match table:
        case {"columns": ["text"], "rows": [[str(text)]]}:
            return text
    return None


class ArtefactName(NamedTuple):
    """An artefact without its data."""

    id: int
    kind: str
    name: str
    step: int | None
    time: float
    attempt: int


class Parent(NamedTuple):
    """The run that a run was forked from, and the step at which they part. The folder may be gone."""

    folder: Path
    step: int


class Progress(NamedTuple):
    """The progress of the newest attempt."""

    attempt: int
    time: float
    step: int
    epoch: int | None
    total_steps: int | None
    total_epochs: int | None
    activity: str
    data: dict[str, Any]


class RunSummary(NamedTuple):
    """A short description of a run, for lists."""

    folder: Path
    name: str
    created: float
    state: State
    reason: str | None
    attempts: int
    host: str
    pid: int
    heartbeat: float
    dropped: int
    progress: Progress | None
    last: dict[Series, Point]


_ATTEMPT = f"SELECT {', '.join(Attempt._fields)} FROM attempt ORDER BY id"
_POINT = "p.step, p.epoch, p.time, p.value, p.attempt"
# Rows of the newest attempt are never superseded, so the last one by position is the newest visible one.
_HEADS = (
    f"SELECT s.name, s.split, p.position, {_POINT} FROM series AS s LEFT JOIN point AS p ON p.series = s.id"
    " AND p.attempt = (SELECT max(id) FROM attempt) AND p.position ="
    " (SELECT max(position) FROM point WHERE series = s.id AND attempt = (SELECT max(id) FROM attempt))"
    " ORDER BY s.name, s.split"
)
_BUCKET = f"SELECT {', '.join(Bucket._fields)} FROM bucket"


class RunReader:
    """Reads the run in a folder. It can be shared between threads.

    Args:
        folder: the run folder.

    Raises:
        RunError: the folder holds no run, or run.db is damaged, incomplete, or was written by a newer burnt.
            Every method also raises it if it finds the file damaged.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> with RunWriter.create(folder, name="digits") as run:
    ...     run.log(1, 1, {"loss": 0.5})
    >>> reader = RunReader(folder)
    >>> reader.state(), reader.series(), reader.points("loss").values
    ('finished', [Series(name='loss', split='train')], [0.5])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._path = self.folder / DATABASE
        self._lock = threading.RLock()
        try:
            exists = self._path.is_file()
        except PermissionError as error:
            raise unreadable(self._path, error) from error
        if not exists:
            raise RunError(
                f"{self.folder} holds no run",
                expected=str(self._path),
                hint="find_runs(root) lists the runs below a folder",
            )
        # Close everything when the reader is garbage-collected, even without a call to `close`.
        self._resources = contextlib.ExitStack()
        weakref.finalize(self, self._resources.close)
        try:
            self._connection = self._open()
        except RunError:
            self._resources.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._resources.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect(self._path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise unreadable(self._path, error) from error
            # A killed writer may leave a journal, which a read-only connection cannot roll back; and SQLite
            # cannot index a write-ahead log in a read-only folder. Both work on a copy.
            try:
                copy = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="burnt-run-")))
                for file in self.folder.glob(f"{DATABASE}*"):
                    shutil.copy(file, copy)
                with contextlib.closing(connect(copy / DATABASE, "rw")) as connection:
                    connection.execute("SELECT 1 FROM run")
                return self._connect(copy / DATABASE)
            except (sqlite3.Error, OSError, UnicodeDecodeError) as second:
                raise unreadable(self._path, error) from second
        # A UnicodeDecodeError comes from an error message that contains damaged SQL.
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise unreadable(self._path, error) from error

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = self._resources.enter_context(contextlib.closing(connect(path, "ro")))
        check_schema(connection, path)
        connection.execute("SELECT 1 FROM attempt")
        return connection

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let all queries in the block see the same state of the file."""
        with self._lock:
            self._rows("BEGIN")
            try:
                yield
            finally:
                self._connection.rollback()

    def _rows(self, query: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(query, parameters).fetchall()
            except sqlite3.ProgrammingError:  # the reader is closed; the file is not damaged
                raise
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                raise unreadable(self._path, error) from error

    def _json(self, text: Any) -> Any:
        try:
            return parse_json(text)
        except (ValueError, TypeError) as error:
            raise unreadable(self._path, error) from error

    def _object(self, text: Any) -> dict[str, Any]:
        value = self._json(text)
        if not isinstance(value, dict):
            raise unreadable(self._path, TypeError(f"a JSON object is expected, found {str(value)[:80]!r}"))
        return value

    # --- the run

    @property
    def name(self) -> str:
        """The run's name."""
        return cast(str, self._run()[0])

    @property
    def created(self) -> float:
        """When the run was created, in Unix seconds."""
        return cast(float, self._run()[1])

    def _run(self) -> tuple[Any, ...]:
        rows = self._rows("SELECT name, created FROM run")
        if not rows:
            raise unreadable(self._path, ValueError("table run is empty"))
        return rows[0]

    def config(self, attempt: int | None = None) -> dict[str, Any] | None:
        """Return the configuration of an attempt, by default of the newest one that has one, or None."""
        rows = self._rows(
            "SELECT config FROM attempt WHERE config IS NOT NULL AND (? IS NULL OR id = ?)"
            " ORDER BY id DESC LIMIT 1",
            (attempt, attempt),
        )
        return self._json(rows[0][0]) if rows else None

    def parent(self) -> Parent | None:
        """Return the run that this one was forked from; None if it is not a fork."""
        rows = self._rows("SELECT config FROM attempt WHERE config IS NOT NULL ORDER BY id DESC")
        found = (parent_in(self.folder, self._json(text)) for (text,) in rows)
        return next((parent for parent in found if parent is not None), None)

    def attempts(self) -> list[Attempt]:
        """Return the run's attempts, oldest first."""
        found = [Attempt(*row) for row in self._rows(_ATTEMPT)]
        if not found:
            raise RunError(
                f"the run in {self.folder} has not started yet",
                where=str(self._path),
                hint="try again in a moment",
            )
        return found

    def newest_attempt(self) -> int:
        """Return the id of the newest attempt; 0 if there is none yet."""
        ((newest,),) = self._rows("SELECT coalesce(max(id), 0) FROM attempt")
        return cast(int, newest)

    def newest_ids(self) -> NewestIds:
        """Return the newest row id of each append-only table."""
        tables = ", ".join(f"(SELECT coalesce(max(id), 0) FROM {table})" for table in NewestIds._fields)
        return NewestIds._make(self._rows(f"SELECT {tables}")[0])

    def state(self) -> State:
        """Return whether the run is running, or how it ended.

        Returns:
            If its last attempt was closed, ``"finished"``, ``"stopped"`` or ``"crashed"``. Otherwise, on the
            same host, ``"crashed"`` if its process is gone and ``"stale"`` if the process is alive but has
            not written for 10 s; on another host, ``"crashed"`` after 10 s without a heartbeat; else
            ``"running"``.
        """
        state = state_of(self.attempts()[-1])
        if state == "crashed":
            # The process may have closed the run and exited between the query and the check for the process.
            state = state_of(self.attempts()[-1])
        return state

    def progress(self) -> Progress | None:
        """Return the progress of the newest attempt; None if it has not written any yet."""
        rows = self._rows(
            f"SELECT {', '.join(Progress._fields)} FROM progress"
            " WHERE attempt = (SELECT max(id) FROM attempt)"
        )
        return Progress._make((*rows[0][:-1], self._object(rows[0][-1]))) if rows else None

    def summary(self) -> RunSummary:
        """Return a short description of the run, for lists."""
        attempts = self.attempts()
        newest = attempts[-1]
        return RunSummary(
            self.folder,
            self.name,
            self.created,
            self.state(),
            newest.end_reason,
            len(attempts),
            newest.host,
            newest.pid,
            newest.heartbeat,
            sum(attempt.dropped for attempt in attempts),
            self.progress(),
            {series: head.point for series, head in self.heads().items()},
        )

    # --- metrics

    def series(self) -> list[Series]:
        """Return all series, sorted by name."""
        return [Series(*row) for row in self._rows("SELECT name, split FROM series ORDER BY name, split")]

    def points(self, name: str, split: str = "train", max_points: int | None = None) -> Points:
        """Return the visible points of a series.

        Args:
            name: the name of the metric.
            split: the split it was computed on.
            max_points: at least 8. Longer series are reduced to at most this many of their points: the
                lowest, the highest and the first NaN or infinite value of each interval, and the first and
                the last point of the series. None: every point.

        Raises:
            MetricError: there is no such series.
        """
        if max_points is not None and max_points < 8:
            raise MetricError(
                "max_points is too small to plot a series",
                expected="max_points of 8 or more",
                found=max_points,
            )
        if max_points is None:
            with self._snapshot():
                single_points = self._visible_buckets(self._series_id(name, split), 0)
            return _columns([next(_plot_points(bucket)) for bucket in single_points])
        outline = self.outline(name, split, (max_points - 2) // 2)
        if sum(bucket.points for bucket in outline.buckets) <= max_points:
            all_points = self.points(name, split)
            if len(all_points.steps) <= max_points:  # the series may have grown since the outline was read
                return all_points
        buckets = outline.buckets
        if any(bucket.nonfinite_step is not None for bucket in buckets):
            buckets = group(buckets, (max_points - 2) // 3)
        return marked_points(buckets, outline.first, outline.last)

    def outline(
        self, name: str, split: str, max_buckets: int, *, steps: tuple[int, int] | None = None
    ) -> Outline:
        """Return the visible points of a series in buckets of about equal numbers of points.

        Args:
            name: the name of the metric.
            split: the split it was computed on.
            max_buckets: maximum number of buckets, at least 1.
            steps: first and last step to include; None for all.

        Raises:
            MetricError: there is no such series.
        """
        with self._snapshot():
            number = self._series_id(name, split)
            for level in (*reversed(LEVELS), 0):
                entries = self._visible_buckets(number, level)
                if steps is not None:
                    entries = [b for b in entries if b.last_step >= steps[0] and b.first_step <= steps[1]]
                total = sum(bucket.points for bucket in entries)
                coarsest = max((bucket.points for bucket in entries), default=0)
                if level == 0 or coarsest * max_buckets <= total:
                    break
            ((attempt, written),) = self._rows(
                "SELECT id, (SELECT coalesce(max(position) + 1, 0) FROM point"
                " WHERE series = ? AND attempt = attempt.id) FROM attempt ORDER BY id DESC LIMIT 1",
                (number,),
            ) or [(0, 0)]
            first, last = (self._end_point(number, newest=newest) for newest in (False, True))
        return Outline(group(entries, max_buckets), first, last, attempt, written)

    def heads(self) -> dict[Series, Head]:
        """Return the newest visible point of every series that has one, in one transaction."""
        heads = {}
        with self._snapshot():
            for name, split, position, *point in self._rows(_HEADS):
                series = Series(name, split)
                if position is not None:
                    heads[series] = Head(_point(point), position + 1)
                elif earlier := self._end_point(self._series_id(name, split), newest=True):
                    heads[series] = Head(earlier, 0)
        return heads

    def last(self, name: str, split: str = "train") -> Point | None:
        """Return the newest visible point of a series; None if all are superseded.

        Raises:
            MetricError: there is no such series.
        """
        with self._snapshot():
            return self._end_point(self._series_id(name, split), newest=True)

    def best(self, name: str, split: str = "train", *, higher: bool = False) -> Extreme | None:
        """Return the lowest visible finite value of a series; None if there is none.

        Args:
            name: the name of the metric.
            split: the split it was computed on.
            higher: return the highest value instead.

        Raises:
            MetricError: there is no such series.
        """
        with self._snapshot():
            buckets = self._visible_buckets(self._series_id(name, split), LEVELS[-1])
        entries = [bucket for bucket in buckets if bucket.finite]
        if not entries:
            return None
        low, *high = _plot_points(merge(entries)._replace(nonfinite_step=None))
        return high[0] if higher else low

    def _series_id(self, name: str, split: str) -> int:
        rows = self._rows("SELECT id FROM series WHERE name = ? AND split = ?", (name, split))
        if rows:
            return cast(int, rows[0][0])
        known = [f"{series.name} ({series.split})" for series in self.series()]
        raise MetricError(
            f"the run has no metric {name!r} on {split!r}",
            where=str(self._path),
            expected=", ".join(known) or "none were written yet",
            hint=did_you_mean(f"{name} ({split})", known),
        )

    def _visible_buckets(self, series: int, level: int) -> list[Bucket]:
        """Return the visible points, by step, as buckets of at most this level."""
        entries: list[Bucket] = []
        for attempt, until in self._rows("SELECT id, visible_until FROM attempt ORDER BY id"):
            ((count,),) = self._rows(
                "SELECT coalesce(max(position) + 1, 0) FROM point WHERE series = ? AND attempt = ?",
                (series, attempt),
            )
            if until >= 0:
                entries += self._buckets_between((series, attempt, until), level, 0, count)
        entries.sort(key=lambda bucket: bucket.first_step)
        return entries

    def _buckets_between(self, key: tuple[int, int, int], level: int, start: int, stop: int) -> list[Bucket]:
        """Return positions `start` to `stop` of an attempt as buckets of a level, or finer ones where needed.

        `start` is a multiple of the level's width. Finer buckets are needed for the newest points, which no
        bucket covers yet, and for a bucket that contains both visible and superseded points.
        """
        series, attempt, until = key
        if level == 0:
            rows = self._rows(
                "SELECT step, time, value FROM point WHERE series = ? AND attempt = ?"
                " AND position >= ? AND position < ? AND step <= ?",
                (series, attempt, start, stop, until),
            )
            return [single(step, when, _nan_for_null(value)) for step, when, value in rows]
        width = FANOUT**level
        covered = stop // width * width
        rows = self._rows(
            f"{_BUCKET} WHERE series = ? AND attempt = ? AND level = ? AND position >= ? AND position < ?"
            " AND last_step <= ?",
            (series, attempt, level, start // width, covered // width, until),
        )
        entries = [_bucket(row) for row in rows]
        if len(rows) < (covered - start) // width:
            partly_superseded = self._rows(
                "SELECT position FROM bucket WHERE series = ? AND attempt = ? AND level = ?"
                " AND position >= ? AND position < ? AND first_step <= ? AND last_step > ?",
                (series, attempt, level, start // width, covered // width, until, until),
            )
            for (position,) in partly_superseded:
                entries += self._buckets_between(key, level - 1, position * width, (position + 1) * width)
        return entries + self._buckets_between(key, level - 1, covered, stop)

    def _end_point(self, series: int, *, newest: bool) -> Point | None:
        """Return the first or the last visible point, or None."""
        order = "DESC" if newest else "ASC"
        for attempt, until in self._rows(f"SELECT id, visible_until FROM attempt ORDER BY id {order}"):
            rows = self._rows(
                f"SELECT {_POINT} FROM point AS p WHERE series = ? AND attempt = ?"
                f" AND step <= ? ORDER BY position {order} LIMIT 1",
                (series, attempt, until),
            )
            if rows:
                return _point(rows[0])
        return None

    def raw_points(
        self, name: str, split: str, attempt: int, position: int = 0, limit: int = 10_000
    ) -> list[tuple[int, Point]]:
        """Return a page of one attempt's visible points, in the order of writing.

        Args:
            name: the name of the metric.
            split: the split it was computed on.
            attempt: the attempt's id.
            position: the position of the first point to return.
            limit: maximum number of points.

        Returns:
            (position, point) pairs.
        """
        rows = self._rows(
            f"SELECT p.position, {_POINT} FROM point AS p JOIN attempt AS a ON a.id = p.attempt"
            " WHERE p.series = (SELECT id FROM series WHERE name = ? AND split = ?) AND p.attempt = ?"
            " AND p.position >= ? AND p.step <= a.visible_until ORDER BY p.position LIMIT ?",
            (name, split, attempt, position, limit),
        )
        return [(position, _point(point)) for position, *point in rows]

    def new_points(
        self, positions: Mapping[tuple[Series, int], int], limit: int = 5_000
    ) -> list[tuple[Series, int, Point]]:
        """Return visible points from given positions on, of all series and by step, in one transaction.

        Args:
            positions: the position of the first point to return, by series and attempt; 0 where missing.
            limit: the maximum number of points of a series. Series that have more end the answer of all
                series at their last step, so that later points have later steps.

        Returns:
            (series, position, point).
        """
        found: list[tuple[Series, int, Point]] = []
        with self._snapshot():
            for attempt in self.attempts():
                last_step = MAX_INTEGER
                pages = []
                for series in self.series():
                    start = positions.get((series, attempt.id), 0)
                    page = self.raw_points(*series, attempt.id, start, limit)
                    pages.append((series, page))
                    if len(page) == limit:
                        last_step = min(last_step, page[-1][1].step)
                found += [(s, at, p) for s, page in pages for at, p in page if p.step <= last_step]
                if last_step != MAX_INTEGER:
                    break
        return sorted(found, key=lambda row: (row[2].step, row[2].time))

    # --- the rest

    def events(self, kind: str | None = None, *, after: int = 0) -> list[Event]:
        """Return the events of all attempts, oldest first.

        Args:
            kind: only events of this kind; None for all.
            after: only events with a higher `id`, that is, those new since an earlier read.
        """
        rows = self._rows(
            f"SELECT {', '.join(Event._fields)} FROM event WHERE id > ?"
            " AND (? IS NULL OR kind = ?) ORDER BY id",
            (after, kind, kind),
        )
        return [Event._make((*row[:-1], self._object(row[-1]))) for row in rows]

    def log_lines(self, *, after: int = 0, newest: int | None = None) -> list[LogLine]:
        """Return the log lines of all attempts, oldest first.

        Args:
            after: only lines with a higher `id`.
            newest: maximum number of lines, the newest; None for all.
        """
        rows = self._newest(f"SELECT {', '.join(LogLine._fields)} FROM log_line", after, newest)
        return [LogLine(*row) for row in rows]

    def system_samples(self, *, after: int = 0, newest: int | None = None) -> list[SystemSample]:
        """Return the samples of the machine's state of all attempts, oldest first.

        Args:
            after: only samples with a higher `id`.
            newest: maximum number of samples, the newest; None for all.
        """
        rows = self._newest("SELECT id, attempt, time, data FROM system_sample", after, newest)
        return [SystemSample._make((*row[:-1], self._object(row[-1]))) for row in rows]

    def _newest(self, select: str, after: int, newest: int | None) -> list[tuple[Any, ...]]:
        rows = self._rows(
            f"{select} WHERE id > ? ORDER BY id DESC LIMIT ?", (after, -1 if newest is None else newest)
        )
        return rows[::-1]

    def artefacts(self, kind: str | None = None, name: str | None = None) -> list[Artefact]:
        """Return the visible tables, histograms and images, oldest first.

        Args:
            kind: only ``"table"``, ``"histogram"`` or ``"image"``; None for all.
            name: only artefacts of this name; None for all.
        """
        rows = self._rows(
            f"SELECT {', '.join(Artefact._fields)} FROM artefacts"
            " WHERE (? IS NULL OR kind = ?) AND (? IS NULL OR name = ?) ORDER BY id",
            (kind, kind, name, name),
        )
        return [self._artefact(row) for row in rows]

    def artefact_names(self, *, after: int = 0) -> list[ArtefactName]:
        """Return the visible artefacts without their data, which may be large, oldest first.

        Args:
            after: only artefacts with a higher `id`, that is, those new since an earlier read.
        """
        rows = self._rows(
            f"SELECT {', '.join(ArtefactName._fields)} FROM artefacts WHERE id > ? ORDER BY id", (after,)
        )
        return [ArtefactName._make(row) for row in rows]

    def artefact(self, id: int) -> Artefact | None:
        """Return an artefact; None if there is none with this id, or it is superseded."""
        rows = self._rows(f"SELECT {', '.join(Artefact._fields)} FROM artefacts WHERE id = ?", (id,))
        return self._artefact(rows[0]) if rows else None

    def _artefact(self, row: tuple[Any, ...]) -> Artefact:
        *names, data = row
        if names[1] != "image":
            return Artefact._make((*names, self._object(data)))
        if not isinstance(data, bytes):
            raise unreadable(self._path, TypeError(f"image {names[2]!r} is not a blob"))
        return Artefact._make((*names, data))


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """Return the run folders at and below a folder, the most recently written first.

    A folder without permission to list it counts as a run, so that reading it raises the error. Links are not
    followed.
    """
    found = []

    def not_listed(error: OSError) -> None:
        if isinstance(error, PermissionError):
            found.append(Path(error.filename))

    for folder, below, files in os.walk(root, onerror=not_listed):
        below[:] = [name for name in below if not REMOVED.fullmatch(name)]
        if DATABASE in files:
            below.clear()  # a run folder contains no other runs
            found.append(Path(folder))
    return sorted(found, key=_written, reverse=True)


def _written(folder: Path) -> float:
    newest = 0.0
    for file in folder.glob(f"{DATABASE}*"):
        with contextlib.suppress(FileNotFoundError):  # run.db-wal disappears when the run ends
            newest = max(newest, file.stat().st_mtime)
    return newest


def parent_in(folder: Path, config: Any) -> Parent | None:
    """Return the parent that a run's configuration names, relative to the run's folder; None without one."""
    fork = config.get("fork") if isinstance(config, dict) else None
    if not isinstance(fork, dict):
        return None
    parent, step = fork.get("folder"), fork.get("step")
    if not isinstance(parent, str) or not isinstance(step, int):
        return None
    return Parent(Path(os.path.normpath(folder / parent)), step)


def state_of(attempt: Attempt) -> State:
    """Return a run's state from its newest attempt, which may have been read some time ago."""
    if attempt.ended is not None:
        return attempt.end_state or "crashed"
    process = ProcessName(attempt.host, attempt.pid, attempt.process_started)
    return writing_state(process, attempt.heartbeat, time.time())


def training_seconds(attempts: Sequence[Attempt], progress: Progress | None) -> float:
    """Return the seconds of training over all attempts, without the pauses of the newest one."""
    ends = [attempt.heartbeat if attempt.ended is None else attempt.ended for attempt in attempts]
    seconds = sum(max(end - a.started, 0.0) for a, end in zip(attempts, ends, strict=True))
    if progress is not None and attempts and progress.attempt == attempts[-1].id:
        paused = progress.data.get("paused_seconds", 0.0)
        seconds -= paused if isinstance(paused, int | float) else 0.0
        if progress.activity == "paused":  # the store counts a pause only when it ends
            seconds -= max(ends[-1] - progress.time, 0.0)
    return max(seconds, 0.0)


def _nan_for_null(value: float | None) -> float:
    """Return a value that SQLite stores: NaN as NULL."""
    return math.nan if value is None else value


def _point(row: Sequence[Any]) -> Point:
    """Convert the columns `_POINT`."""
    step, epoch, when, value, attempt = row
    return Point(step, epoch, when, _nan_for_null(value), attempt)


def _bucket(row: tuple[Any, ...]) -> Bucket:
    bucket = Bucket._make(row)
    bucket = bucket._replace(sum=_nan_for_null(bucket.sum))
    if bucket.nonfinite_step is not None:
        bucket = bucket._replace(nonfinite=_nan_for_null(bucket.nonfinite))
    return bucket


def _plot_points(bucket: Bucket) -> Iterator[Extreme]:
    """Iterate over the points of a bucket that a plot must show: min, max and the first non-finite value."""
    for step, when, value in (
        (bucket.min_step, bucket.min_time, bucket.min),
        (bucket.max_step, bucket.max_time, bucket.max),
        (bucket.nonfinite_step, bucket.nonfinite_time, bucket.nonfinite),
    ):
        if step is not None and when is not None and value is not None:
            yield Extreme(step, when, value)


def group(entries: list[Bucket], groups: int) -> list[Bucket]:
    """Merge neighbouring buckets into at most `groups` buckets of about equal numbers of points."""
    if len(entries) <= groups:
        return entries
    total = sum(bucket.points for bucket in entries)
    groups_of_buckets: list[list[Bucket]] = [[] for _ in range(groups)]
    points_before = 0
    for bucket in entries:
        groups_of_buckets[points_before * groups // total].append(bucket)
        points_before += bucket.points
    return [merge(members) for members in groups_of_buckets if members]


def marked_points(buckets: list[Bucket], first: Point | None, last: Point | None) -> Points:
    """Return the buckets' points that a plot must show, and the series' ends: by step, each once."""
    points = [Extreme(point.step, point.time, point.value) for point in (first, last) if point]
    for bucket in buckets:
        points += _plot_points(bucket)
    # NaN is not equal to itself, so compare values as text to remove duplicates.
    unique = {(point.step, point.time, str(point.value)): point for point in points}
    return _columns(sorted(unique.values(), key=lambda point: point[:2]))


def mean_points(buckets: list[Bucket]) -> Points:
    """Return the mean of each bucket's finite values, at the bucket's middle step; NaN if it has none."""
    columns = Points([], [], [])
    for bucket in buckets:
        if bucket.finite:
            mean = bucket.sum / bucket.finite
            if not math.isfinite(mean):  # the sum overflowed; the values themselves are finite
                mean = (bucket.min or 0.0) / 2 + (bucket.max or 0.0) / 2
            when = ((bucket.min_time or 0.0) + (bucket.max_time or 0.0)) / 2
        else:
            mean, when = math.nan, bucket.nonfinite_time or 0.0
        columns.steps.append((bucket.first_step + bucket.last_step) // 2)
        columns.times.append(when)
        columns.values.append(mean)
    return columns


def _columns(points: list[Extreme]) -> Points:
    return Points(
        [point.step for point in points], [point.time for point in points], [point.value for point in points]
    )
