"""What the app knows of runs: `RunView` of one run, `RunLibrary` of those below some folders.

Nothing here draws, and nothing here raises because of what lies on the disk: a run that cannot be read has
an `error`. `refresh` reads what has changed, in a worker thread; a run whose files are as they were costs
two calls of `stat`. What a screen asks for beyond the line of a list is read when it is asked for.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

from burnt.errors import BurntError, RunError
from burnt.monitor.data.downsampled_series import DownsampledSeries
from burnt.monitor.format import better_direction, fraction, main_metric, parse_number, problem_text
from burnt.train.store import (
    Artefact,
    ArtefactName,
    Attempt,
    Event,
    Extreme,
    LogLine,
    Points,
    Progress,
    RunReader,
    RunSummary,
    Series,
    SystemSample,
    find_runs,
)
from burnt.train.store.liveness import SILENT_SECONDS, State
from burnt.train.store.reader import Head, NewestIds, marked_points, mean_points, state_of
from burnt.train.store.schema import DATABASE, unreadable

__all__ = ["LIVE", "Checkpoint", "RunLibrary", "RunView", "ViewState"]

ViewState = Literal["running", "finished", "stopped", "crashed", "stale", "unreadable", "deleted"]

LIVE = ("running", "stale")

_Row = TypeVar("_Row", LogLine, SystemSample)

_LOG = logging.getLogger(__name__)

_MAX_LOG_LINES = 20_000
_MAX_LOG_CHARACTERS = 16_000_000
_MAX_SAMPLES = 1_800  # an hour
_RETRY_SECONDS = 5.0
_PACE_WINDOW_SECONDS = 180.0  # the time to the end is told by the pace of so long

# A walk through the folders takes at most this share of the time.
_MAX_SCAN_SHARE = 0.005
_MIN_SCAN_SECONDS = 2.0
_IDLE_REFRESH_SECONDS = 2.0


class Checkpoint(NamedTuple):
    """A folder in a run's `checkpoints/`, and what its event tells of it."""

    name: str
    step: int | None
    bytes: int
    written: float
    values: dict[str, float]


class RunView:
    """One run, as far as it is known.

    Args:
        folder: the run's folder.
        label: what the run is called in lists; the folder's path by default.
        colour: its number among the looks of runs, `burnt.monitor.plotting.curves.RUN_STYLES`.

    `refresh` and what reads (`points`, `best`, `artefacts`, `log_lines`, `system_samples`, `checkpoints`) may
    be called from any thread, and belong into a worker; the attributes are what the last `refresh` found.

    >>> import tempfile
    >>> from burnt.train.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> with RunWriter.create(folder) as run:
    ...     run.log(1, 1, {"loss": 0.5})
    >>> view = RunView(folder)
    >>> view.refresh(), view.refresh()
    (True, False)
    >>> view.state, view.series(), view.points("loss").values
    ('finished', [Series(name='loss', split='train')], [0.5])
    """

    def __init__(self, folder: str | os.PathLike[str], label: str | None = None, colour: int = 0) -> None:
        self.folder = Path(folder)
        self.label = str(folder) if label is None else label
        self.colour = colour
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
        self.config: dict[str, Any] | None = None
        self.events: Sequence[Event] = ()
        self.version = 0
        self._lock = threading.RLock()
        self._reader: RunReader | None = None
        self._paces: deque[tuple[float, int]] = deque()
        self._paced = 0
        self._followers = 0
        self._followed = False
        self._stamp: object = None
        self._read_at = -math.inf
        self._seen: object = None
        self._traces: dict[Series, DownsampledSeries] = {}
        self._bests: dict[Series, tuple[int, Extreme | None]] = {}
        self._log: list[LogLine] = []
        self._samples: list[SystemSample] = []

    # --- what is known

    def series(self) -> list[Series]:
        """The metrics that have a value, by name."""
        return list(self.heads)

    @property
    def live(self) -> bool:
        """Whether a process writes the run."""
        return self.state in LIVE

    @property
    def activity(self) -> str:
        """What the training does just now; empty when it does nothing any more."""
        return self.progress.activity if self.live and self.progress is not None else ""

    @property
    def summary(self) -> RunSummary | None:
        """The run in one line; None if it cannot be read."""
        if self.error is not None or not self.attempts:
            return None
        newest = self.attempts[-1]
        return RunSummary(
            self.folder,
            self.name,
            self.created,
            cast(State, self.state),
            newest.end_reason,
            len(self.attempts),
            newest.host,
            newest.pid,
            newest.heartbeat,
            sum(attempt.dropped for attempt in self.attempts),
            self.progress,
            {series: head.point for series, head in self.heads.items()},
        )

    @property
    def note(self) -> str:
        """Why the run cannot be read, or ended otherwise than it should, on one line; or empty."""
        if self.error is not None:
            return f"{self.error.what}: {self.error.found}" if self.error.found else self.error.what
        summary = self.summary
        return "" if summary is None else problem_text(summary)

    @property
    def fraction(self) -> float | None:
        """The share that is done, 0 to 1; None where the end is not known."""
        return fraction(self.progress)

    @property
    def eta(self) -> float | None:
        """Seconds to the end at the pace of the last minutes; None where that cannot be told."""
        progress, share = self.progress, self.fraction
        if not self.live or progress is None or share is None or not self.attempts:
            return None
        if progress.activity == "paused":
            return None
        if not progress.total_steps:
            passed, done, left = _active_time(progress) - self.attempts[-1].started, share, 1.0 - share
        else:
            since, step = self._paces[0]
            passed, done = _active_time(progress) - since, progress.step - step
            left = progress.total_steps - progress.step
        return None if done <= 0 or passed <= 0 else max(passed / done * left, 0.0)

    def _note_pace(self) -> None:
        """Remember when which step was reached: from the start of the attempt, then for some minutes."""
        newest, progress = self.attempts[-1], self.progress
        if len(self.attempts) != self._paced:
            self._paced = len(self.attempts)
            self._paces = deque([(newest.started, newest.resumed_from_step or 0)])
        if progress is None or progress.attempt != newest.id:
            return
        worked = _active_time(progress)
        if progress.activity == "paused":
            self._paces = deque([(worked, progress.step)])
        elif progress.step > self._paces[-1][1] and worked - self._paces[-1][0] >= _PACE_WINDOW_SECONDS / 20:
            self._paces.append((worked, progress.step))
        while len(self._paces) > 2 and worked - self._paces[1][0] > _PACE_WINDOW_SECONDS:
            self._paces.popleft()

    @property
    def seconds(self) -> float:
        """How long the run was worked on, over all its attempts, without the newest one's pauses."""
        return max(sum(max(end - begin, 0.0) for begin, end in self.spans) - self._paused_seconds, 0.0)

    @property
    def _paused_seconds(self) -> float:
        progress = self.progress
        if progress is None or not self.attempts or progress.attempt != self.attempts[-1].id:
            return 0.0
        paused = float(progress.data.get("paused_seconds", 0.0))
        if progress.activity == "paused":  # this pause is counted when it is over
            paused += max(self.spans[-1][1] - progress.time, 0.0)
        return paused

    @property
    def spans(self) -> list[tuple[float, float]]:
        """When each attempt began and ended, or last gave a sign of life; Unix seconds."""
        return [(a.started, a.heartbeat if a.ended is None else a.ended) for a in self.attempts]

    @property
    def epoch_ends(self) -> list[tuple[int, int]]:
        """(steps, epochs) done at the end of each epoch, as far as they hold; known of a followed run."""
        until = {attempt.id: attempt.visible_until for attempt in self.attempts}
        ends = [
            (event.step, event.data["epoch"])
            for event in self.events
            if event.kind == "epoch"
            and event.step is not None
            and event.step <= until.get(event.attempt, 0)
            and isinstance(event.data.get("epoch"), int)
        ]
        return sorted(set(ends))

    # --- reading

    @property
    def reader(self) -> RunReader:
        """The run's reader, opened if it was not.

        Raises:
            RunError: the run cannot be read.
        """
        with self._lock:
            if self._reader is None:
                self._reader = RunReader(self.folder)
            return self._reader

    def follow(self) -> None:
        """From the next `refresh` on, keep the file open and read events too: a screen shows the run."""
        self._followers += 1

    def unfollow(self) -> None:
        """The opposite of `follow`; what was read for screens is forgotten with the last of them."""
        self._followers -= 1

    @property
    def followed(self) -> bool:
        """Whether a screen shows the run."""
        return self._followers > 0

    def close(self) -> None:
        """Let go of the file; whatever reads opens it again."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def refresh(self) -> bool:
        """Read what has changed; returns whether there is something else to show."""
        with self._lock:
            try:
                self._refresh()
            except Exception as error:
                # Anybody may write into a run's file, and its content may be odd in ways nobody thought of.
                self._fail(_unexpected_error(self.label, error))
            seen = (
                self.state,
                None if self.error is None else str(self.error),
                self.progress,
                [attempt._replace(heartbeat=0.0) for attempt in self.attempts],
                self.heads,
                self.newest,
                self._followed,
            )
            changed = seen != self._seen
            self._seen = seen
            self.version += changed
        return changed

    def _refresh(self) -> None:
        if self._followed != bool(self._followers):
            self._followed = bool(self._followers)
            if self._followed:
                self._stamp = None
            else:
                self._forget()
                if not self.live:
                    self.close()
        now = time.monotonic()
        try:
            stamp = _database_stamp(self.folder)
        except PermissionError as error:
            self.close()
            self._fail(unreadable(self.folder / DATABASE, error))
            return
        if stamp is None:
            self.close()
            # The folder is looked at first: a run is deleted when somebody deleted it, not before it began.
            if self.attempts or self._stamp is not None:
                self.state, self.error = "deleted", RunError(f"{self.label} was deleted")
            else:
                self._fail(RunError(f"{self.label} holds no run", expected=DATABASE))
            return
        if stamp == self._stamp and not self._due(now):
            if self.live:
                self.state = state_of(self.attempts[-1])
                if self.state == "crashed":
                    self._read(stamp, now)  # it may have closed the run before it went
            return
        if self._stamp is not None and isinstance(self._stamp, tuple) and stamp[0][0] != self._stamp[0][0]:
            self._forget()  # another file took its place
            self.close()
        self._read(stamp, now)

    def _due(self, now: float) -> bool:
        """Whether to read although the files look unchanged."""
        if self.error is not None:
            return now - self._read_at > _RETRY_SECONDS
        # Times of files on a network may be old; the database itself is read through their locks.
        silent = self.live and time.time() - self.attempts[-1].heartbeat > SILENT_SECONDS / 2
        return silent and now - self._read_at > 1.0

    def _read(self, stamp: object, now: float) -> None:
        self._read_at = now
        try:
            reader = self.reader
            attempts = reader.attempts()
            if self.attempts and _attempt_identity(attempts[0]) != _attempt_identity(self.attempts[0]):
                # Another run took its place, in a file that may even have the number of the one before.
                self._forget()
                self._paced, self.attempts = 0, ()
            if len(attempts) != len(self.attempts):
                self._bests.clear()
                self.name, self.created, self.config = reader.name, reader.created, reader.config()
                if self.config is not None:
                    self.config = _as_mapping(self.config)
            self.progress, self.heads, self.newest = reader.progress(), reader.heads(), reader.newest_ids()
            if self.progress is not None:
                self.progress = self.progress._replace(data=_as_mapping(self.progress.data))
            self.attempts = attempts
            self._note_pace()
            self.metric = main_metric(list(self.heads), self.config)
            self.metric_best = None if self.metric is None else self._best(self.metric)
            if self._followed and self.newest.event:
                after = self.events[-1].id if self.events else 0
                if self.newest.event > after:
                    fresh = [
                        event._replace(data=_as_mapping(event.data)) for event in reader.events(after=after)
                    ]
                    self.events = [*self.events, *fresh]
            # Asked last, since a process that closed the run meanwhile must not seem crashed.
            self.state = reader.state()
            self.error, self._stamp = None, stamp
        except RunError as error:
            self._fail(error)
            self._stamp = stamp
        except Exception as error:
            self._fail(_unexpected_error(self.label, error))
            self._stamp = stamp
        if not self.live and not self._followed:
            self.close()

    def _fail(self, error: RunError) -> None:
        self.close()
        if error.__cause__ is not None and str(error) != str(self.error):
            _LOG.error("%s", error, exc_info=error)
        self.state, self.error = "unreadable", error

    def _forget(self) -> None:
        self._traces.clear()
        self._bests.clear()
        self._log, self._samples, self.events = [], [], ()

    @contextmanager
    def _reading(self) -> Iterator[RunReader]:
        with self._lock:
            opened = self._reader is None
            try:
                yield self.reader
            except BurntError:
                raise
            except Exception as error:
                raise _unexpected_error(self.label, error) from error
            finally:
                if opened and not self._followed and not self.live:
                    self.close()

    def points(self, name: str, split: str = "train", max_points: int | None = None) -> Points:
        """The shape of a series: at most some thousand points, among them both ends and the extremes.

        Args:
            name: the metric.
            split: what it was computed on.
            max_points: at least 8; so many at most.

        Raises:
            MetricError: there is no such series.
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            if max_points is not None:
                return reader.points(name, split, max_points)
            return self._trace(Series(name, split), reader).points()

    def means(self, name: str, split: str = "train") -> Points:
        """The course of a series as at most some hundred means: what a smoothed curve starts from.

        The points of `points` are extremes where a series is long, and their average lies where the noise
        is widest, not where the values are.

        Raises:
            MetricError: there is no such series.
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            return self._trace(Series(name, split), reader).means()

    def _trace(self, series: Series, reader: RunReader) -> DownsampledSeries:
        trace = self._traces.get(series) or DownsampledSeries(series)
        trace.refresh(reader)
        self._traces[series] = trace
        return trace

    def points_between(self, series: Series, first: int, last: int, max_buckets: int) -> Points:
        """A part of a series in more detail than `points` has.

        Args:
            series: which one.
            first: step; shown from there.
            last: step; up to there, included.
            max_buckets: of each, the extremes are points.

        Raises:
            MetricError: there is no such series.
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            buckets = reader.outline(*series, max_buckets, steps=(first, last)).buckets
        return marked_points(buckets, None, None)

    def means_between(self, series: Series, first: int, last: int, max_buckets: int) -> Points:
        """As `points_between`, for `means`."""
        with self._reading() as reader:
            return mean_points(reader.outline(*series, max_buckets, steps=(first, last)).buckets)

    def best(self, series: Series) -> Extreme | None:
        """The best value of a series; None where nobody knows which way is better.

        Raises:
            MetricError: there is no such series.
            RunError: the run cannot be read.
        """
        with self._reading():
            return self._best(series)

    def _best(self, series: Series) -> Extreme | None:
        way = better_direction(series.name, self.config)
        head = self.heads.get(series)
        if way is None or head is None:
            return None
        known = self._bests.get(series)
        if known is None or known[0] != head.written:
            known = head.written, self.reader.best(*series, higher=way == "higher")
            self._bests[series] = known
        return known[1]

    def artefacts(self, kind: str | None = None, name: str | None = None) -> list[Artefact]:
        """As `RunReader.artefacts`.

        Raises:
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            return reader.artefacts(kind, name)

    def artefact_names(self) -> list[ArtefactName]:
        """As `RunReader.artefact_names`.

        Raises:
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            return reader.artefact_names()

    def artefact(self, id: int) -> Artefact | None:
        """As `RunReader.artefact`.

        Raises:
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            return reader.artefact(id)

    def log_lines(self) -> Sequence[LogLine]:
        """The newest 20,000 lines of the log, fewer if they are very long, oldest first.

        Raises:
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            lines = _extend_rows(self._log, self.newest.log_line, reader.log_lines, _MAX_LOG_LINES)
            if lines is not self._log:
                first, left = len(lines), _MAX_LOG_CHARACTERS
                while first > 0 and (left := left - len(lines[first - 1].text)) >= 0:
                    first -= 1
                self._log = lines[min(first, len(lines) - 1) :]
            return self._log

    def system_samples(self) -> Sequence[SystemSample]:
        """The samples of the machine's state of the last hour, oldest first.

        Raises:
            RunError: the run cannot be read.
        """
        with self._reading() as reader:
            newest = self.newest.system_sample
            self._samples = _extend_rows(self._samples, newest, reader.system_samples, _MAX_SAMPLES)
            return self._samples

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that are there, oldest first."""
        told = {str(event.data.get("path")): event for event in self.events if event.kind == "checkpoint"}
        found = []
        for folder in sorted((self.folder / "checkpoints").glob("step-*")):
            try:
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                written = folder.stat().st_mtime
            except OSError:  # a training that runs has removed it meanwhile
                continue
            event = told.get(folder.name)
            values = event.data.get("values") if event is not None else None
            step = event.step if event is not None else None
            found.append(Checkpoint(folder.name, step, size, written, _as_mapping(values or {})))
        return found


class RunLibrary:
    """The runs at and below folders; new ones are found while it is open.

    Args:
        folders: where to look.

    >>> import tempfile
    >>> from burnt.train.store import RunWriter
    >>> root = tempfile.mkdtemp()
    >>> library = RunLibrary([root])
    >>> library.refresh(), library.views
    (False, [])
    >>> RunWriter.create(f"{root}/digits").close("finished")
    >>> library.refresh(look=True), [view.label for view in library.views]
    (True, ['digits'])
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        self.folders = [Path(folder) for folder in folders]
        self.views: list[RunView] = []
        self._known: dict[str, RunView] = {}  # by absolute path
        self._colours = 0
        self._walked = self._asked_all = -math.inf
        self._pause = 0.0

    def refresh(self, *, look: bool = False) -> bool:
        """Look for runs, and read what has changed; returns whether there is something else to show.

        Args:
            look: for new runs as well, although it was done a moment ago.
        """
        now = time.monotonic()
        fresh: list[RunView] = []
        if look or now - self._walked >= self._pause:
            fresh = self._look()
            self._walked = time.monotonic()
            self._pause = max(_MIN_SCAN_SECONDS, (self._walked - now) / _MAX_SCAN_SHARE)
        # What nobody writes or looks at is asked for less often: it may be resumed or deleted.
        resting = not look and now - self._asked_all < _IDLE_REFRESH_SECONDS
        asked = [view for view in self.views if not resting or view.live or view.followed]
        if not resting:
            self._asked_all = now
        changed = [view.refresh() for view in [*asked, *fresh]]
        if fresh:
            # Colours go by age, so that a run has the same one tomorrow. NaN is of those that are unreadable.
            fresh.sort(key=lambda view: (math.isnan(view.created), view.created))
            for view in fresh:
                view.colour = self._colours
                self._colours += 1
                self._known[os.path.abspath(view.folder)] = view
            self.views = [*self.views, *fresh]
        return any(changed)

    def _look(self) -> list[RunView]:
        fresh: dict[str, RunView] = {}  # folders to look in may lie in each other
        for root in self.folders:
            for folder in find_runs(root):
                path = os.path.abspath(folder)
                if path not in self._known and path not in fresh:
                    fresh[path] = RunView(folder, self._label(root, folder))
        return list(fresh.values())

    def _label(self, root: Path, folder: Path) -> str:
        """A path that tells the runs apart, without what all of them share."""
        if folder == root:
            return str(folder)
        return str(folder if len(self.folders) > 1 else folder.relative_to(root))

    def drop_deleted(self) -> None:
        """Forget the runs that were deleted; they are found again when they are back."""
        for view in self.views:
            if view.state == "deleted":
                view.close()
                del self._known[os.path.abspath(view.folder)]
        self.views = [view for view in self.views if view.state != "deleted"]

    def close(self) -> None:
        """Let go of all files."""
        for view in self.views:
            view.close()


def _extend_rows(
    known: list[_Row], newest: int, read: Callable[..., Sequence[_Row]], most: int
) -> list[_Row]:
    """The known rows of a table and those written since, so many of the newest; `known` if there are none."""
    after: int = known[-1].id if known else 0
    if newest <= after:
        return known
    rows = list(known)
    rows += read(after=after, newest=most)
    return rows[-most:]


def _active_time(progress: Progress) -> float:
    """The time of a progress on a clock that stands still while the training is paused."""
    return progress.time - (parse_number(progress.data.get("paused_seconds")) or 0.0)


def _attempt_identity(attempt: Attempt) -> tuple[object, ...]:
    """What tells a run from another in the same folder, of its first attempt."""
    return attempt.host, attempt.pid, attempt.process_started, attempt.started


def _as_mapping(data: Any) -> dict[str, Any]:
    """An object of the run store's JSON; what is another thing than documented is its only value."""
    return data if isinstance(data, dict) else {"?": data}


def _unexpected_error(label: str, error: Exception) -> RunError:
    """What says that reading met something that nothing here thought of."""
    found = RunError(f"{label} cannot be read", found=f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def _database_stamp(folder: Path) -> tuple[tuple[int, int, int], tuple[int, int, int] | None] | None:
    """What changes when a run's database is written; None when there is none.

    Raises:
        PermissionError: the folder may not be looked into.
    """
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
