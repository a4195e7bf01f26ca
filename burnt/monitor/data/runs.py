"""In-memory views of runs: `RunView` for one run, `RunLibrary` for all runs below some folders.

Nothing here draws, and `refresh` never raises because of what is on the disk: a run that cannot be read has
an `error`. `refresh` runs in a worker thread and reads only what has changed; a run whose files are unchanged
costs four `stat` calls. Data that the list of runs does not show is read when a screen asks for it.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from burnt.errors import BurntError, RunError
from burnt.monitor.data.downsampled_series import DownsampledSeries
from burnt.monitor.format import (
    better_direction,
    error_text,
    fork_text,
    fraction,
    main_metric,
    parse_number,
    problem_text,
    seconds_of,
    series_label,
)
from burnt.store import (
    Attempt,
    Event,
    Extreme,
    LogLine,
    Parent,
    Points,
    Progress,
    RunReader,
    Series,
    SystemSample,
    find_runs,
)
from burnt.store.reader import Head, NewestIds, marked_points, mean_points, state_of, training_seconds
from burnt.store.schema import DATABASE, unreadable
from burnt.store.search import RunFacts, settings_of
from burnt.store.tags import Note, event_notes, read_notes, read_tags, tags_stamp
from burnt.store.write_lease import SILENT_SECONDS

ViewState = Literal["running", "finished", "stopped", "crashed", "stale", "unreadable", "deleted"]

LIVE = ("running", "stale")

_Row = TypeVar("_Row", LogLine, SystemSample)

_LOG = logging.getLogger(__name__)

_MAX_LOG_LINES = 20_000
_MAX_LOG_CHARACTERS = 16_000_000
_MAX_SAMPLES = 1_800  # an hour
_RETRY_SECONDS = 5.0

# Maximum share of the time spent on searching the folders for runs.
_MAX_SCAN_SHARE = 0.005
_MIN_SCAN_SECONDS = 2.0
_IDLE_REFRESH_SECONDS = 2.0
_DETAIL_BUCKETS = 400  # read for a zoomed range


class Checkpoint(NamedTuple):
    """A folder in a run's `checkpoints/`, with the step and metric values from its event."""

    name: str
    step: int | None
    bytes: int
    written: float
    values: dict[str, float]


class RunView:
    """A cached view of one run, updated by `refresh`.

    The attributes hold the state at the last `refresh`; `label` is the run's name in lists, `style_index`
    that of its line style in `curves.RUN_STYLES`. `refresh` and the reading methods (`points`, `best`,
    `reading`, `log_lines`, `system_samples`, `checkpoints`) are thread-safe; call them in a worker. They
    raise `RunError` if the run cannot be read, and `MetricError` if there is no such series.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> with RunWriter.create(folder) as run:
    ...     run.log(1, 1, {"loss": 0.5})
    >>> view = RunView(folder)
    >>> view.refresh(), view.refresh()
    (True, False)
    >>> view.state, view.series(), view.points("loss").values
    ('finished', [Series(name='loss', split='train')], [0.5])
    """

    def __init__(
        self, folder: str | os.PathLike[str], label: str | None = None, style_index: int = 0
    ) -> None:
        self.folder = Path(folder)
        self.label = str(folder) if label is None else label
        self.style_index = style_index
        self.error: RunError | None = None
        self.state: ViewState = "unreadable"
        self.name = self.folder.name
        self.created = math.nan
        self.attempts: Sequence[Attempt] = ()
        self.progress: Progress | None = None
        self.heads: dict[Series, Head] = {}
        self.metric: Series | None = None
        self.metric_best: Extreme | None = None
        self.newest = NewestIds(0, 0, 0, 0)
        self.document: Any = None  # of ``config.json``; `config` is what people look at of it
        self.config: dict[str, Any] | None = None
        self.settings: dict[str, Any] = {}
        self.parent: Parent | None = None
        self.parentage = ""  # such as "fork of digits@120"
        self._parent_view: RunView | None = None
        self.sweep_text = ""  # of the run that stands for a sweep in the list, such as "best of 12/20 trials"
        self.tags: Sequence[str] = ()
        self.notes: Sequence[Note] = ()
        self.events: Sequence[Event] = ()
        self.version = 0
        self._lock = threading.RLock()
        self._reader: RunReader | None = None
        self._num_followers = 0
        self._was_followed = False
        self._stamp: object = None
        self._read_at = -math.inf
        self._last_state: object = None
        self._series_cache: dict[Series, DownsampledSeries] = {}
        self._best_cache: dict[Series, tuple[int, Extreme | None]] = {}
        self._tags_stamp: object = None
        self.file_notes: Sequence[Note] = ()  # of the folder, not of the events
        self._event_notes: list[Note] = []
        self._newest_note_event = 0  # events up to this id were searched for notes
        self._log_lines: list[LogLine] = []
        self._samples: list[SystemSample] = []

    # --- state at the last refresh

    def series(self) -> list[Series]:
        """Return the metrics that have at least one value."""
        return list(self.heads)

    @property
    def is_live(self) -> bool:
        """Whether a process is writing the run."""
        return self.state in LIVE

    @property
    def activity(self) -> str:
        """What the training is doing, such as ``"validating"``; empty after it has ended."""
        return self.progress.activity if self.is_live and self.progress is not None else ""

    @property
    def problem(self) -> str:
        """One line on why the run cannot be read or did not finish normally; empty if neither."""
        if self.error is not None:
            return error_text(self.error)
        newest = self.attempts[-1] if self.attempts else None
        if newest is not None and (text := problem_text(self.state, newest.end_reason, newest)):
            return text
        return self.warning

    @property
    def warning(self) -> str:
        """Which validation losses are not finite; empty if none."""
        bad = [
            f"{series_label(series)} is {head.point.value} at step {head.point.step:,}"
            for series, head in self.heads.items()
            if series.name == "loss" and series.split != "train" and not math.isfinite(head.point.value)
        ]
        return ", ".join(bad)

    @property
    def state_text(self) -> str:
        """The state for people: also ``"paused"``, and ``"stopped early"`` by early stopping."""
        if self.state == "running" and self.activity == "paused":
            return "paused"
        reason = self.attempts[-1].end_reason if self.attempts else None
        is_early = self.state == "stopped" and (reason or "").startswith("stopped early")
        return "stopped early" if is_early else self.state

    @property
    def fraction(self) -> float | None:
        """Fraction of the training that is done, 0 to 1; None if the total is unknown or no longer counts."""
        return None if self.state_text == "stopped early" else fraction(self.progress)

    @property
    def eta(self) -> float | None:
        """Estimated seconds until the end, from the pace of the newest attempt; None if unknown."""
        progress, fraction = self.progress, self.fraction
        if not self.is_live or progress is None or fraction is None or not self.attempts:
            return None
        if progress.activity == "paused":
            return None
        seconds = seconds_of(progress)
        ends = [] if seconds is None else [max(seconds[1] - seconds[0], 0.0)]
        if progress.total_steps or not ends:
            newest = self.attempts[-1]
            # The pauses of the training do not count.
            paused = parse_number(progress.data.get("paused_seconds")) or 0.0
            elapsed = progress.time - paused - newest.started
            done, left = fraction, 1.0 - fraction
            if progress.total_steps:
                done = progress.step - (newest.resumed_from_step or 0)
                left = progress.total_steps - progress.step
            if done > 0 and elapsed > 0:
                ends.append(max(elapsed / done * left, 0.0))
        return min(ends, default=None)

    @property
    def active_seconds(self) -> float:
        """Total training time in seconds over all attempts, without the pauses of the newest one."""
        return training_seconds(self.attempts, self.progress)

    @property
    def attempt_spans(self) -> list[tuple[float, float]]:
        """(start, end) of each attempt in Unix seconds; the last heartbeat if it has not ended."""
        return [(a.started, a.heartbeat if a.ended is None else a.ended) for a in self.attempts]

    @property
    def epoch_ends(self) -> list[tuple[int, int]]:
        """(step, epoch) at each completed epoch, without those a resume discarded; only of followed runs."""
        visible_until = {attempt.id: attempt.visible_until for attempt in self.attempts}
        ends = [
            (event.step, event.data["epoch"])
            for event in self.events
            if event.kind == "epoch"
            and event.step is not None
            and event.step <= visible_until.get(event.attempt, 0)
            and isinstance(event.data.get("epoch"), int)
        ]
        return sorted(set(ends))

    # --- reading

    @property
    def reader(self) -> RunReader:
        with self._lock:
            if self._reader is None:
                self._reader = RunReader(self.folder)
            return self._reader

    def follow(self) -> None:
        """Keep the file open and read events from the next `refresh` on, because a screen shows the run."""
        self._num_followers += 1

    def parent_view(self) -> RunView | None:
        """Return a refreshed view of the run that this one was forked from; None without a readable one."""
        if self.parent is None:
            return None
        if self._parent_view is None or self._parent_view.folder != self.parent.folder:
            self._parent_view = RunView(self.parent.folder, self.parent.folder.name)
            self._parent_view.follow()  # for its epochs
        self._parent_view.refresh()
        return self._parent_view if self._parent_view.error is None else None

    def unfollow(self) -> None:
        """Undo one `follow`; after the last, the next `refresh` clears what was cached for screens."""
        self._num_followers -= 1

    @property
    def is_followed(self) -> bool:
        return self._num_followers > 0

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            if self._parent_view is not None:
                self._parent_view.close()
                self._parent_view = None

    def refresh(self) -> bool:
        """Read what has changed; return whether anything shown has changed."""
        with self._lock:
            try:
                self._refresh()
            except RunError as error:
                self._set_error(error)
            except Exception as error:
                # Other programs may write to a run's file, so its content can be invalid in unforeseen ways.
                self._set_error(_unexpected_error(self.label, error))
            self.parentage = "" if self.parent is None else fork_text(self.parent)
            if self._reader is not None and not self.is_live and not self._was_followed:
                self.close()
            state = (
                self.state,
                None if self.error is None else str(self.error),
                self.progress,
                [attempt._replace(heartbeat=0.0) for attempt in self.attempts],
                self.heads,
                self.newest,
                self._was_followed,
                self.tags,
                self.notes,
                self.parentage,
            )
            changed = state != self._last_state
            self._last_state = state
            self.version += changed
        return changed

    def _refresh(self) -> None:
        self._refresh_tags()
        if self._was_followed != bool(self._num_followers):
            self._was_followed = bool(self._num_followers)
            if self._was_followed:
                self._stamp = None
            else:
                self._clear_cache()
        now = time.monotonic()
        try:
            stamp = _database_stamp(self.folder)
        except PermissionError as error:
            raise unreadable(self.folder / DATABASE, error) from None
        if stamp is None:
            self.close()
            # Only a run that was seen before counts as deleted; otherwise it does not exist yet.
            if not self.attempts and self._stamp is None:
                raise RunError(f"{self.label} holds no run", expected=DATABASE)
            self.state, self.error = "deleted", RunError(f"{self.label} was deleted")
            return
        if stamp == self._stamp and not self._should_reread(now):
            if self.is_live:
                self.state = state_of(self.attempts[-1])
                if self.state == "crashed":
                    self._read(stamp, now)  # it may have closed the run just before it exited
            return
        if self._stamp is not None and isinstance(self._stamp, tuple) and stamp[0][0] != self._stamp[0][0]:
            self._forget()  # the file was replaced by another one
            self.close()
        self._read(stamp, now)

    def _refresh_tags(self) -> None:
        stamp = tags_stamp(self.folder)
        if stamp != self._tags_stamp:
            self._tags_stamp = stamp
            self.tags, self.file_notes = read_tags(self.folder), read_notes(self.folder)
            self._merge_notes()

    def _merge_notes(self) -> None:
        self.notes = sorted([*self.file_notes, *self._event_notes], key=lambda note: note.time)

    def _should_reread(self, now: float) -> bool:
        """Whether to read the database even though its files look unchanged."""
        if self.error is not None:
            return now - self._read_at > _RETRY_SECONDS
        # Network file systems may report stale modification times; reading the database takes its locks.
        is_silent = self.is_live and time.time() - self.attempts[-1].heartbeat > SILENT_SECONDS / 2
        return is_silent and now - self._read_at > 1.0

    def _read(self, stamp: object, now: float) -> None:
        self._read_at, self._stamp = now, stamp
        reader = self.reader
        attempts = reader.attempts()
        if self.attempts and _attempt_identity(attempts[0]) != _attempt_identity(self.attempts[0]):
            # Another run replaced this one; the new file may even have the same inode.
            self._forget()
            self.attempts = ()
        if len(attempts) != len(self.attempts):
            self._best_cache.clear()
            self.name, self.created, self.document = reader.name, reader.created, reader.config()
            self.config = None
            if self.document is not None:  # "load" is for building the model again, not for people
                document = _as_mapping(self.document)
                self.config = {name: value for name, value in document.items() if name != "load"}
            self.settings, self.parent = settings_of(self.config), reader.parent()
        self.progress, self.heads, self.newest = reader.progress(), reader.heads(), reader.newest_ids()
        if self.progress is not None:
            self.progress = self.progress._replace(data=_as_mapping(self.progress.data))
        self.attempts = attempts
        self.metric = main_metric(list(self.heads), self.config)
        self.metric_best = None if self.metric is None else self._find_best(self.metric)
        if self.newest.event > self._newest_note_event:
            self._event_notes += event_notes(reader.events("note", after=self._newest_note_event))
            self._newest_note_event = self.newest.event
            self._merge_notes()
        after = self.events[-1].id if self.events else 0
        if self._was_followed and self.newest.event > after:
            new_events = (
                event._replace(data=_as_mapping(event.data)) for event in reader.events(after=after)
            )
            self.events = [*self.events, *new_events]
        # Read last: a process that closed the run during this read must not look crashed.
        self.state = reader.state()
        self.error = None

    def _set_error(self, error: RunError) -> None:
        self.close()
        if error.__cause__ is not None and str(error) != str(self.error):
            _LOG.error("%s", error, exc_info=error)
        self.state, self.error = "unreadable", error

    def _forget(self) -> None:
        """Drop what was read of another run in this folder."""
        self._clear_cache()
        self._event_notes, self._newest_note_event = [], 0

    def _clear_cache(self) -> None:
        self._series_cache.clear()
        self._best_cache.clear()
        self._log_lines, self._samples, self.events = [], [], ()

    @contextmanager
    def reading(self) -> Iterator[RunReader]:
        """Lend the run's reader, which is closed afterwards unless it is needed again soon."""
        with self._lock:
            was_closed = self._reader is None
            try:
                yield self.reader
            except (BurntError, BrokenPipeError):  # of `| head`, while it prints what it reads
                raise
            except Exception as error:
                raise _unexpected_error(self.label, error) from error
            finally:
                if was_closed and not self._was_followed and not self.is_live:
                    self.close()

    def points(
        self, name: str, split: str = "train", *, means: bool = False, steps: tuple[int, int] | None = None
    ) -> Points:
        """Return a series downsampled to a few thousand points, or only some steps of it in more detail.

        With `means` they are the means of at most 1,024 buckets instead of both ends and the extremes.
        Smoothed curves need them: the average of extremes depends on the noise, not on the mean.
        """
        with self.reading() as reader:
            if steps is None:
                key = Series(name, split)
                series = self._series_cache.setdefault(key, DownsampledSeries(key))
                series.refresh(reader)
                return series.means() if means else series.points()
            buckets = reader.outline(name, split, _DETAIL_BUCKETS, steps=steps).buckets
        return mean_points(buckets) if means else marked_points(buckets, None, None)

    def best(self, series: Series) -> Extreme | None:
        with self.reading():
            return self._find_best(series)

    def facts(self) -> RunFacts:
        """Return what a search compares with a run; its `best` reads the store."""

        def best(series: Series) -> float | None:
            try:
                found = self.best(series)
            except BurntError:  # the run's row shows the error
                return None
            return None if found is None else found.value

        progress = self.progress
        numbers = {
            "step": progress and progress.step,
            "epoch": progress and progress.epoch,
            "took": self.active_seconds if self.attempts else None,
            "age": None if math.isnan(self.created) else time.time() - self.created,
        }
        return RunFacts(
            (self.label, self.name, str(self.folder)),
            self.state,
            self.tags,
            [note.text for note in self.notes],
            self.settings,
            {series: head.point.value for series, head in self.heads.items()},
            best,
            {name: value for name, value in numbers.items() if value is not None},
        )

    def _find_best(self, series: Series) -> Extreme | None:
        direction = better_direction(series.name, self.config)
        head = self.heads.get(series)
        if direction is None or head is None:
            return None
        cached = self._best_cache.get(series)
        if cached is None or cached[0] != head.written:
            cached = head.written, self.reader.best(*series, higher=direction == "higher")
            self._best_cache[series] = cached
        return cached[1]

    def log_lines(self) -> Sequence[LogLine]:
        """Return the newest 20,000 log lines (16 million characters at most), oldest first."""
        with self.reading() as reader:
            lines = _extend_rows(self._log_lines, self.newest.log_line, reader.log_lines, _MAX_LOG_LINES)
            if lines is not self._log_lines:
                first, characters_left = len(lines), _MAX_LOG_CHARACTERS
                while first > 0 and (characters_left := characters_left - len(lines[first - 1].text)) >= 0:
                    first -= 1
                self._log_lines = lines[min(first, len(lines) - 1) :]
            return self._log_lines

    def system_samples(self) -> Sequence[SystemSample]:
        """Return the system samples of the last hour, oldest first."""
        with self.reading() as reader:
            newest = self.newest.system_sample
            self._samples = _extend_rows(self._samples, newest, reader.system_samples, _MAX_SAMPLES)
            return self._samples

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints on disk, oldest first."""
        events_by_path = {
            str(event.data.get("path")): event for event in self.events if event.kind == "checkpoint"
        }
        checkpoints = []
        for folder in sorted((self.folder / "checkpoints").glob("step-*")):
            try:
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                written = folder.stat().st_mtime
            except OSError:  # the training has removed it in the meantime
                continue
            event = events_by_path.get(folder.name)
            values = event.data.get("values") if event is not None else None
            step = event.step if event is not None else None
            checkpoints.append(Checkpoint(folder.name, step, size, written, _as_mapping(values or {})))
        return checkpoints


class RunLibrary:
    """All runs at and below some folders; `refresh` also discovers new ones.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> root = tempfile.mkdtemp()
    >>> library = RunLibrary([root])
    >>> library.refresh(), library.views
    (False, [])
    >>> RunWriter.create(f"{root}/digits").close("finished")
    >>> library.refresh(rescan=True), [view.label for view in library.views]
    (True, ['digits'])
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        self.folders = [Path(folder) for folder in folders]
        self.views: list[RunView] = []
        self._views_by_path: dict[str, RunView] = {}  # by absolute path
        self._next_style_index = 0
        self._scanned_at = self._refreshed_all_at = -math.inf
        self._scan_interval = 0.0

    def refresh(self, *, rescan: bool = False) -> bool:
        """Search for new runs and read what has changed; return whether anything shown has changed.

        `rescan` searches the folders even if they were searched a moment ago.
        """
        now = time.monotonic()
        new_views: list[RunView] = []
        if rescan or now - self._scanned_at >= self._scan_interval:
            new_views = self._find_new_runs()
            self._scanned_at = time.monotonic()
            self._scan_interval = max(_MIN_SCAN_SECONDS, (self._scanned_at - now) / _MAX_SCAN_SHARE)
        # Runs that are neither live nor shown are refreshed less often; they may be resumed or deleted.
        skip_idle = not rescan and now - self._refreshed_all_at < _IDLE_REFRESH_SECONDS
        to_refresh = [view for view in self.views if not skip_idle or view.is_live or view.is_followed]
        if not skip_idle:
            self._refreshed_all_at = now
        changed = [view.refresh() for view in [*to_refresh, *new_views]]
        if new_views:
            # Line styles go by age, so a run keeps its style across sessions. Unreadable runs have NaN.
            new_views.sort(key=lambda view: (math.isnan(view.created), view.created))
            for view in new_views:
                view.style_index = self._next_style_index
                self._next_style_index += 1
                self._views_by_path[os.path.abspath(view.folder)] = view
            self.views = [*self.views, *new_views]
        return any(changed)

    def _find_new_runs(self) -> list[RunView]:
        new_views: dict[str, RunView] = {}  # by path, as the searched folders may be nested
        for root in self.folders:
            for folder in find_runs(root):
                path = os.path.abspath(folder)
                if path not in self._views_by_path and path not in new_views:
                    new_views[path] = RunView(folder, self._make_label(root, folder))
        return list(new_views.values())

    def _make_label(self, root: Path, folder: Path) -> str:
        """Return a label that is unique among the runs, without their common parent folder."""
        if folder == root:
            return str(folder)
        return str(folder if len(self.folders) > 1 else folder.relative_to(root))

    def drop_deleted(self) -> None:
        """Remove deleted runs from the list; a scan finds them again if they reappear."""
        for view in self.views:
            if view.state == "deleted":
                view.close()
                del self._views_by_path[os.path.abspath(view.folder)]
        self.views = [view for view in self.views if view.state != "deleted"]

    def close(self) -> None:
        for view in self.views:
            view.close()


def _extend_rows(
    cached: list[_Row], newest: int, read: Callable[..., Sequence[_Row]], max_rows: int
) -> list[_Row]:
    """Append the new rows and keep the newest `max_rows`; return `cached` itself if there are none."""
    after: int = cached[-1].id if cached else 0
    if newest <= after:
        return cached
    rows = list(cached)
    rows += read(after=after, newest=max_rows)
    return rows[-max_rows:]


def _attempt_identity(attempt: Attempt) -> tuple[object, ...]:
    """Return what identifies a run by its first attempt, to detect another run in the same folder."""
    return attempt.host, attempt.pid, attempt.process_started, attempt.started


def _as_mapping(data: Any) -> dict[str, Any]:
    """Return a JSON object as a dict; anything else becomes the value of the key ``"?"``."""
    return data if isinstance(data, dict) else {"?": data}


def _unexpected_error(label: str, error: Exception) -> RunError:
    wrapped = RunError(f"{label} cannot be read", found=f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _database_stamp(folder: Path) -> tuple[tuple[int, int, int], tuple[int, int, int] | None] | None:
    """Return the stamps of a run's database and its WAL, which change on every write; None if missing."""
    path = os.path.join(folder, DATABASE)
    try:
        database = _file_stamp(path)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        return database, _file_stamp(f"{path}-wal")
    except OSError:
        return database, None


def _file_stamp(path: str) -> tuple[int, int, int]:
    stat = os.stat(path)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
