"""`RunWriter`: writes the run of a training.

The calling thread only appends a small tuple to a queue. One daemon thread owns the connection and every half
second writes the queued items in one transaction. A failing disk never stops the training: the batch is
retried, and when the queue is full, samples are dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import operator
import os
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from burnt._files import sync_folder
from burnt.errors import MetricError, RunError, TakenOverError
from burnt.store.opening import (
    begin_attempt,
    choose_exists,
    create_database,
    folder_taken,
    holds_nothing,
    numbered_folders,
)
from burnt.store.pyramid import (
    INTO_ARTEFACT,
    INTO_BUCKET,
    INTO_EVENT,
    INTO_LOG,
    INTO_POINT,
    INTO_PROGRESS,
    INTO_SERIES,
    INTO_SYSTEM,
    Batch,
    Pyramid,
    Row,
    insert,
)
from burnt.store.schema import DATABASE, MAX_INTEGER, RANKS, TRIAL, clean_text, connect, to_json, write_errors
from burnt.store.write_lease import HEARTBEAT_SECONDS, WriteLease

EndState = Literal["finished", "stopped", "crashed"]
_FLUSH_SECONDS = 0.5
_WAKE_ITEMS = 2_000  # the thread is woken early by this many queued items
_BATCH_ITEMS = 4_096  # items in one transaction
_QUEUE_ITEMS = 65_536  # samples are dropped when the queue is this long
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
_SYNC_SECONDS = 60.0  # how long `sync` waits for a slow disk, and for one that fails
_FAILING_SYNC_SECONDS = 2.0
_LOG_TRIES = 20  # to move the log into run.db, 10 ms apart

_SAMPLES = ("log", INTO_LOG, INTO_SYSTEM)  # the kinds of items that may be dropped
_FOLDERS = ("checkpoints", "logs", "control")


class RunWriter:
    """Writes one run, from one process. Create it with `RunWriter.create`.

    Every method except `flush` and `close` returns at once and may be called from any thread. As a context
    manager, it closes the run as finished, or as stopped or crashed if the block raises.

    >>> import tempfile
    >>> from burnt.store import RunReader
    >>> folder = tempfile.mkdtemp()
    >>> with RunWriter.create(folder, config={"lr": 0.1}) as run:
    ...     for step in range(1, 4):
    ...         run.log(step, 1, {"loss": 1 / step})
    >>> RunReader(folder).last("loss").value
    0.3333333333333333
    """

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        attempt: int,
        *,
        on_error: Callable[[str], None] | None,
    ) -> None:
        self.folder = folder
        self.attempt = attempt
        self.lease = WriteLease(folder, attempt)
        self._path = folder / DATABASE
        self._connection: sqlite3.Connection | None = connection
        self._on_error = on_error
        self._queue: deque[Row] = deque()
        self._capacity = _QUEUE_ITEMS
        self._progress: Row | None = None
        self._progress_written: Row | None = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._dropped = 0
        self._warnings: list[str] = []
        self._closed = False
        self._ending: tuple[float, EndState, str | None] | None = None
        self._deadline = float("inf")
        self._series = {
            (name, split): (number, Pyramid())
            for number, name, split in connection.execute("SELECT id, name, split FROM series")
        }
        self._series_count = len(self._series)
        self._resumed_step, self._rows_there = _rows_of_resumed_step(connection, attempt)
        self._failing_since: float | None = None
        self._failures = 0
        self._gave_up = self._file_missing = False
        self._taken_over: TakenOverError | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"burnt-run-{folder.name}", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        exists: str | None = None,
        resume: bool = False,
        resumed_from_step: int | None = None,
        since: float | None = None,
        on_error: Callable[[str], None] | None = None,
    ) -> RunWriter:
        """Start a run in a folder, or a new attempt of the run that the folder holds.

        Args:
            folder: the run folder; created if it is missing.
            name: the name shown by viewers; by default the folder's name.
            config: anything that JSON can hold, and paths; written to ``config.json`` and to the attempt.
            exists: what to do if the folder holds a run: ``"error"`` (the default); ``"number"``: use the
                first free folder of NAME, NAME-2, NAME-3, ...; ``"resume"``: continue the run. A run without
                a finished step and a checkpoint is replaced, unless files of the user are in its folder.
            resume: the same as ``exists="resume"``.
            resumed_from_step: the step of the checkpoint that the run resumes from. Rows of earlier attempts
                with a higher step are superseded: they stay in the file but are not shown. Rows of this very
                step stay valid, and what is logged again there is left out. None: the attempt starts from the
                beginning, and all metric rows of earlier attempts are superseded.
            since: when the checkpoint was chosen, in Unix seconds: nobody may have written the run later.
            on_error: called from the writing thread with a message, once each time that writing starts to
                fail.

        Raises:
            ConfigError: `exists` is invalid, or given with `resume`.
            RunError: the folder holds a run that is neither continued nor replaced; a live process is writing
                the run, or one has written it `since`; the folder cannot be written; run.db is damaged or was
                written by a newer burnt.
        """
        exists = choose_exists(exists, resume)
        if resumed_from_step is not None:
            resumed_from_step = _count(resumed_from_step)
        try:
            text = None if config is None else json.dumps(config, indent=2, default=_path_text)
        except (TypeError, ValueError) as error:
            raise RunError("the config cannot be written as JSON", found=str(error)) from error
        for candidate in numbered_folders(Path(folder)):
            try:
                connection, attempt = cls._open(
                    candidate, name, exists == "resume", resumed_from_step, text, since
                )
            except RunError as error:
                if exists != "number" or error.errno != errno.EEXIST:
                    raise
            else:
                return cls(candidate, connection, attempt, on_error=on_error)
        raise AssertionError("numbers never end")

    @staticmethod
    def _open(
        folder: Path,
        name: str | None,
        resume: bool,
        resumed_from_step: int | None,
        config: str | None,
        since: float | None,
    ) -> tuple[sqlite3.Connection, int]:
        """Begin a run or an attempt in a folder; an error with the errno EEXIST says that it is taken."""
        path = folder / DATABASE
        name = folder.resolve().name if name is None else name
        replaced_by = None
        if path.exists() and not resume:
            since = time.time()
            if not holds_nothing(folder):
                raise folder_taken(
                    f"{folder} already holds a run",
                    where=str(path),
                    hint='continue it with resume=True, or choose another folder (exists="number" does)',
                )
            replaced_by = name
        unrelated = _unrelated_names(folder) if not path.exists() else []
        if unrelated:
            raise folder_taken(
                f"{folder} holds files that are not a run",
                where=str(folder),
                expected="a new or empty folder, or one that holds a run",
                found=", ".join(unrelated[:5]) + (", ..." if len(unrelated) > 5 else ""),
                hint="use a separate folder for the run, such as runs/NAME",
            )
        with write_errors(
            "the run folder cannot be written",
            folder,
            "choose a folder that this user can write to, on a disk with space left",
        ):
            new = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
            for part in _FOLDERS:
                (folder / part).mkdir(parents=True, exist_ok=True)
            is_new = replaced_by is not None or not path.exists()
            if not path.exists():
                create_database(path, name)
            for changed in (folder, *(made.parent for made in new)):
                sync_folder(changed)
            begun = begin_attempt(path, resume, resumed_from_step, config, since, replaced_by=replaced_by)
            if is_new and (folder / RANKS).exists():
                shutil.rmtree(folder / RANKS)  # of the run that this one replaces
            return begun

    def log(self, step: int, epoch: int | None, values: Mapping[str, float], split: str = "train") -> None:
        """Write metric values.

        Args:
            step: optimizer steps done so far: 1 after the first step.
            epoch: the epoch that it belongs to.
            values: name -> number; NaN and infinities are stored.
            split: the data that it was computed on, such as ``"train"``.

        Raises:
            MetricError: a value is not a number.
            RunError: the run is closed.
        """
        step, epoch = _count(step), _optional_count(epoch)
        try:
            numbers = [(name, float(value)) for name, value in values.items()]
        except (TypeError, ValueError, OverflowError) as error:
            raise MetricError(
                "a metric's value is not a number",
                where=f"{split}, step {step}",
                found=", ".join(f"{key}={value!r}" for key, value in values.items()),
                hint="log floats, such as tensor.item() or the mean of a list",
            ) from error
        if step == self._resumed_step:
            numbers = [(name, value) for name, value in numbers if (name, split) not in self._rows_there]
        self._put_sample("log", step, epoch, split, numbers)

    def event(self, kind: str, step: int | None = None, **data: object) -> None:
        """Write an event: something that happened once, such as a saved checkpoint or a changed rate.

        Args:
            kind: a word by which viewers filter.
            step: steps done when it happened.
            data: details, as JSON; types that JSON lacks are converted with `str`.
        """
        self._put(INTO_EVENT, _optional_count(step), clean_text(kind), to_json(data))

    def log_line(self, text: str, level: str = "info") -> None:
        """Write a line of text."""
        self._put_sample(INTO_LOG, clean_text(level), clean_text(text))

    def system(self, sample: Mapping[str, float]) -> None:
        """Write a sample of the machine's state, name -> number; see `burnt.train.reporting.system`."""
        self._put_sample(INTO_SYSTEM, to_json(dict(sample)))

    def record_table(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], step: int | None = None
    ) -> None:
        """Write a table, such as a confusion matrix.

        Raises:
            RunError: a row has another length than `columns`.
        """
        table = [list(row) for row in rows]
        for number, row in enumerate(table):
            if len(row) != len(columns):
                raise RunError(
                    f"row {number} of table {name!r} does not fit its columns",
                    expected=f"{len(columns)} values",
                    found=f"{len(row)} values",
                )
        self._put_artefact("table", name, step, to_json({"columns": list(columns), "rows": table}))

    def record_histogram(
        self, name: str, counts: Sequence[float], edges: Sequence[float], step: int | None = None
    ) -> None:
        """Write a histogram.

        Args:
            name: the name of the histogram.
            counts: one number per bin.
            edges: the bin edges, ascending; one more than `counts`.
            step: steps done when it was computed.

        Raises:
            RunError: the number of edges is not the number of counts plus one.
        """
        if len(edges) != len(counts) + 1:
            raise RunError(
                f"histogram {name!r} needs one more edge than counts",
                expected=f"{len(counts) + 1} edges",
                found=f"{len(edges)} edges",
            )
        data = {"counts": list(map(float, counts)), "edges": list(map(float, edges))}
        self._put_artefact("histogram", name, step, to_json(data))

    def record_image(self, name: str, png_bytes: bytes, step: int | None = None) -> None:
        """Write an image.

        Raises:
            RunError: the bytes are not a PNG file.
        """
        if bytes(png_bytes[:8]) != b"\x89PNG\r\n\x1a\n":
            raise RunError(
                f"image {name!r} is not a PNG file",
                expected="bytes that start with the PNG signature",
                found=f"{bytes(png_bytes[:8])!r}, {len(png_bytes)} bytes",
            )
        self._put_artefact("image", name, step, bytes(png_bytes))

    def progress(
        self,
        step: int,
        epoch: int | None,
        *,
        total_steps: int | None = None,
        total_epochs: int | None = None,
        activity: str = "training",
        **data: object,
    ) -> None:
        """Write the training's progress; it overwrites the attempt's single progress row.

        Args:
            step: optimizer steps done.
            epoch: the current epoch.
            total_steps: total number of steps, if known.
            total_epochs: total number of epochs, if known.
            activity: ``"training"``, ``"validating"``, ``"paused"``, ...
            data: further details, as JSON.
        """
        self._check_open()
        totals = _optional_count(total_steps), _optional_count(total_epochs)
        position = _count(step), _optional_count(epoch)
        now, text = time.time(), clean_text(activity)
        self._progress = (self.attempt, now, *position, *totals, text, to_json(data))

    @property
    def warnings(self) -> list[str]:
        """Errors while writing, oldest first; empty if there were none."""
        return list(self._warnings)

    @property
    def dropped(self) -> int:
        """The number of samples (`log`, `log_line`, `system`) lost because writing was too slow or failed."""
        return self._dropped

    @property
    def gone(self) -> bool:
        """Whether the run's file is missing or another one: the folder was deleted or moved."""
        return self.lease.is_folder_gone

    def check(self) -> None:
        """Raise if another process was found to have resumed the run; looks at no file.

        Raises:
            TakenOverError: with its process. Nothing is written any more.
        """
        if self._taken_over is not None:
            raise self._taken_over

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything written so far is in the file.

        Args:
            timeout: maximum seconds to wait.

        Returns:
            Whether everything was written in time. False at once if the run was deleted or moved.
        """
        if self._gave_up or self.gone:
            return False
        return self._request("flush").wait(timeout)

    def sync(self) -> Callable[[], bool]:
        """Begin to make everything written so far survive a power cut.

        Returns:
            A function that waits for it, and returns whether it does; False if the disk fails.
        """
        done = self._request("sync")
        began = time.monotonic()

        def wait() -> bool:
            while not done.wait(0.1):
                waited = time.monotonic() - began
                most = _SYNC_SECONDS if self._failing_since is None else _FAILING_SYNC_SECONDS
                if self._gave_up or self.gone or waited > most:
                    return False
            return True

        return wait

    def close(self, state: EndState, reason: str | None = None, timeout: float = 10.0) -> None:
        """Write the queued items and how the attempt ended. A second call does nothing.

        Args:
            state: ``"finished"``, ``"stopped"`` (by a user or a rule) or ``"crashed"``.
            reason: the reason, for people.
            timeout: maximum seconds to wait for a failing disk; losses are reported in `warnings`.
        """
        if state not in ("finished", "stopped", "crashed"):
            raise RunError("invalid end state", expected="finished, stopped or crashed", found=repr(state))
        with self._lock:
            if self._closed:
                return
            self._closed = True
        now = time.time()
        reason = None if reason is None else clean_text(reason)
        self._queue.append((INTO_EVENT, now, None, "end", to_json({"state": state, "reason": reason})))
        self._deadline = time.monotonic() + timeout
        self._ending = (now, state, reason)
        self._wake.set()
        self._thread.join(timeout + 1.0)
        atexit.unregister(self._at_exit)
        if not self._ended:
            self._warnings.append(f"the end of the run was not written to {self._path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close("finished")
        elif issubclass(kind, KeyboardInterrupt):
            self.close("stopped", "interrupted")
        else:
            self.close("crashed", f"{kind.__name__}: {error}")

    # --- on the calling thread

    def _put(self, kind: str, *content: Any) -> None:
        """Queue an item: ``"log"``, ``"flush"``, ``"sync"``, or a statement and its later columns."""
        self._check_open()
        self._queue.append((kind, time.time(), *content))

    def _request(self, kind: Literal["flush", "sync"]) -> threading.Event:
        """Return an event that is set once everything queued so far is written."""
        done = threading.Event()
        self._put(kind, done)
        self._wake.set()
        return done

    def _put_sample(self, kind: str, *content: Any) -> None:
        queued = len(self._queue)
        if queued >= self._capacity:
            self._check_open()
            self._drop(1)
            return
        self._put(kind, *content)
        if queued == _WAKE_ITEMS:
            self._wake.set()

    def _put_artefact(self, kind: str, name: str, step: int | None, data: str | bytes) -> None:
        if step is not None and step == self._resumed_step and (name, kind) in self._rows_there:
            return
        self._put(INTO_ARTEFACT, _optional_count(step), kind, clean_text(name), data)

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(
                "the run is already closed", where=str(self.folder), hint="close it after the last write"
            )

    def _drop(self, count: int) -> None:
        with self._lock:  # the training, the sampler and the writing thread all update the count
            self._dropped += count

    def _at_exit(self) -> None:
        # A forked child inherits this handler but not the writing thread, so it writes nothing.
        self.close("crashed", "the process ended without closing the run")

    # --- on the writing thread

    def _run(self) -> None:
        try:
            ended = self._write_until_closed()
        except Exception as error:  # a bug in the store is reported and must not stop the training
            self._give_up(f"{self._path} is no longer written: {type(error).__name__}: {error}")
            ended = False
        self._ended = ended
        self._disconnect(ended=ended)

    def _write_until_closed(self) -> bool:
        """Write batches until the run is closed; return whether the end of the attempt was written."""
        batch: Batch | None = None
        last_heartbeat = time.monotonic()
        while True:
            failing = self._failing_since is not None
            if not failing and len(self._queue) < _BATCH_ITEMS and self._ending is None:
                self._wake.wait(_FLUSH_SECONDS)
                self._wake.clear()
            ending = self._ending
            if batch is None:
                batch = self._next_batch()
            heartbeat_due = time.monotonic() - last_heartbeat >= HEARTBEAT_SECONDS
            if batch or heartbeat_due or ending is not None:
                last = ending is not None and not self._queue
                if self._write(batch, ending if last else None):
                    batch = None
                    last_heartbeat = time.monotonic()
                    if last:
                        return True
                elif self._gave_up:
                    return False
                elif time.monotonic() > self._deadline or (ending is not None and self._file_missing):
                    self._drop(batch.samples + sum(item[0] in _SAMPLES for item in self._queue))
                    return False
                else:
                    delay = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS)) - 1]
                    self._wake.wait(min(delay, max(self._deadline - time.monotonic(), 0.01)))
                    self._wake.clear()
            else:
                batch = None

    def _next_batch(self) -> Batch:
        """Take the next items from the queue and convert them to rows."""
        batch = Batch()
        progress = self._progress
        if progress is not None and progress is not self._progress_written:
            self._progress_written = progress
            batch.add(INTO_PROGRESS, progress)
        while self._queue and batch.items < _BATCH_ITEMS:
            kind, when, *content = self._queue.popleft()
            batch.items += 1
            batch.samples += kind in _SAMPLES
            if kind == "log":
                self._add_metrics(batch, when, *content)
            elif kind in ("flush", "sync"):
                batch.flushed.append(content[0])
                batch.is_synced |= kind == "sync"
            else:
                batch.add(kind, (self.attempt, when, *content))
        return batch

    def _add_metrics(
        self,
        batch: Batch,
        when: float,
        step: int,
        epoch: int | None,
        split: str,
        values: list[tuple[str, float]],
    ) -> None:
        for name, value in values:
            series, pyramid = self._series.get((name, split)) or self._open_series(batch, name, split)
            batch.add(INTO_POINT, (series, self.attempt, pyramid.count, step, epoch, when, value))
            for level, position, bucket in pyramid.add(step, when, value):
                batch.add(INTO_BUCKET, (series, self.attempt, level, position, *bucket))

    def _open_series(self, batch: Batch, name: str, split: str) -> tuple[int, Pyramid]:
        key = clean_text(str(name)), clean_text(str(split))
        series = self._series.get(key)
        if series is None:
            self._series_count += 1
            series = self._series[key] = self._series_count, Pyramid()
            batch.add(INTO_SERIES, (self._series_count, *key))
        self._series[name, split] = series  # also under the original name
        return series

    def _write(self, batch: Batch, ending: tuple[float, EndState, str | None] | None) -> bool:
        """Write a batch in one transaction; return whether it succeeded."""
        try:
            self._file_missing = self.gone  # SQLite would keep writing to a deleted file
            if self._file_missing:
                raise sqlite3.OperationalError("the file is gone")
            if self._connection is None:
                self._connection = connect(self._path, "rw")
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            self.lease.check(connection)
            batch.insert(connection)
            if self._failing_since is not None:
                data = to_json(
                    {"since": self._failing_since, "error": self._warnings[-1], "dropped": self._dropped}
                )
                insert(connection, INTO_EVENT, [(self.attempt, time.time(), None, "write_error", data)])
            connection.execute(
                "UPDATE attempt SET heartbeat = ?, dropped = ? WHERE id = ?",
                (time.time(), self._dropped, self.attempt),
            )
            if ending is not None:
                connection.execute(
                    "UPDATE attempt SET ended = ?, end_state = ?, end_reason = ? WHERE id = ?",
                    (*ending, self.attempt),
                )
            connection.execute("COMMIT")
        except TakenOverError as error:
            self._taken_over = error
            self._give_up(error.what)
            return False
        except sqlite3.DatabaseError as error:
            # A full disk, a lost mount or a damaged file: the training continues; a new connection may work.
            self._disconnect(ended=False)
            self._failures += 1
            if self._failing_since is None:
                self._failing_since = time.time()
                self._report(
                    f"Warning: the run folder {self.folder} was deleted or moved. Metrics and checkpoints "
                    "are not saved any more, unless it is restored."
                    if self._file_missing
                    else f"Warning: cannot write {self._path}, retrying: {error}"
                )
            return False
        self._failing_since = None
        self._failures = 0
        if batch.is_synced:
            self._sync_log(connection)
        for done in batch.flushed:
            done.set()
        return True

    def _sync_log(self, connection: sqlite3.Connection) -> None:
        """Wait for the disk, and move the log into run.db itself as far as readers let it.

        Not in the transaction, whose lock keeps others from the run while the disk is slow. With a rollback
        journal, each transaction does it.
        """
        with contextlib.suppress(OSError, sqlite3.Error):  # such a disk fails the checkpoint as well
            if os.path.exists(log := f"{self._path}-wal"):
                with open(log, "rb+") as file:
                    os.fsync(file.fileno())
            for _ in range(_LOG_TRIES):  # a reader is there for milliseconds
                _, pages, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if moved == pages:
                    break
                time.sleep(0.01)

    def _disconnect(self, *, ended: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # After a failure, closing may fail too; ignore that.
        with contextlib.suppress(sqlite3.Error):
            if ended:
                # Merge the log, so that an ended run is a single file, readable from read-only media. If a
                # reader is connected, the log stays, which works as well.
                connection.execute("PRAGMA busy_timeout = 0")
                with contextlib.suppress(sqlite3.OperationalError):
                    connection.execute("PRAGMA journal_mode = DELETE")
            elif connection.in_transaction:
                connection.execute("ROLLBACK")
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def _give_up(self, message: str) -> None:
        self._gave_up = True
        self._capacity = 0  # from now on, all samples are dropped
        self._report(message)

    def _report(self, message: str) -> None:
        self._warnings.append(message)
        if self._on_error is not None:
            try:
                self._on_error(message)
            except Exception as error:  # a user's callback must not end the writing thread
                self._warnings.append(f"on_error raised {error!r}")


def _rows_of_resumed_step(
    connection: sqlite3.Connection, attempt: int
) -> tuple[int | None, set[tuple[str, str]]]:
    """Return the step that an attempt resumes from, and which series and artefacts have rows of it.

    A process that was killed may have written some after the checkpoint of that step.
    """
    ((step,),) = connection.execute(
        "SELECT resumed_from_step FROM attempt WHERE id = ?", (attempt,)
    ).fetchall()
    if step is None:
        return None, set()
    # Positions ascend with the steps: the last visible one tells, without a look at all points.
    last = (
        "(SELECT p.step FROM point AS p WHERE p.series = s.id AND p.attempt = a.id"
        " AND p.step <= a.visible_until ORDER BY p.position DESC LIMIT 1)"
    )
    rows = connection.execute(
        f"SELECT DISTINCT s.name, s.split FROM series AS s, attempt AS a WHERE a.id < ? AND {last} = ?"
        " UNION SELECT name, kind FROM artefacts WHERE step = ?",
        (attempt, step, step),
    )
    return step, set(rows.fetchall())


def _unrelated_names(folder: Path) -> list[str]:
    """Return the names in a folder that are not a run's, without hidden ones; [] if it cannot be read."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    known = (*_FOLDERS, RANKS, "config.json", TRIAL)
    return [name for name in names if not name.startswith(".") and name not in known]


def _path_text(value: object) -> str:
    if isinstance(value, os.PathLike):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r}"[:200])


def _count(number: int) -> int:
    try:
        count = operator.index(number)
    except TypeError:
        count = -1
    if not 0 <= count <= MAX_INTEGER:
        raise RunError(
            "a step or epoch is not a count", expected=f"an int from 0 to {MAX_INTEGER}", found=repr(number)
        )
    return count


def _optional_count(number: int | None) -> int | None:
    return None if number is None else _count(number)
