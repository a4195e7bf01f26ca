"""The thread that reads runs, so that a slow disk never blocks the keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from burnt.monitor.data.runs import RunLibrary

_SHOW_TIMEOUT_SECONDS = 5.0
# Maximum share of a core used while all cores are busy, and the longest interval that limit can cause. The
# threads of a training step wait for each other, so time taken from one core slows the whole training.
_MAX_CPU_SHARE, _MAX_INTERVAL_SECONDS = 0.006, 5.0
# All cores count as busy if less than this much of a core is idle.
_MIN_IDLE_CORES = 0.5


class DataScreen(Protocol):
    """A screen whose data is read in the reader thread."""

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reader thread: read new data, if a run has changed since the last call or for other reasons.

        Returns a function that shows the data, to be called in the app's thread; None if nothing is new.
        """


class CpuMeter:
    """Measures CPU use between two readings."""

    def __init__(self) -> None:
        from psutil import cpu_times  # imported late: it would delay the first screen

        self._cpu_times = cpu_times
        self._time, self._own_seconds, self._idle_seconds = self._sample()

    def _sample(self) -> tuple[float, float, float]:
        times = self._cpu_times()
        return time.monotonic(), time.process_time(), times.idle + getattr(times, "iowait", 0.0)

    def read(self) -> tuple[float, float]:
        """Return the core-seconds this process used, and how many cores would be idle without it."""
        (at, own, idle), new = (self._time, self._own_seconds, self._idle_seconds), self._sample()
        self._time, self._own_seconds, self._idle_seconds = new
        used = new[1] - own
        return used, (new[2] - idle + used) / max(new[0] - at, 1e-6)


class Refresher:
    """A thread that refreshes a library at an interval and reads the data of the current screen.

    Args:
        library: the runs.
        seconds: interval between two reads; longer while all cores are busy and a read takes long.
        deliver: called in the reader thread with a screen and a display function. The app's thread must call
            that function, await its result if it is awaitable, and then call `mark_shown`.
        report_error: called in the reader thread with an unexpected exception; reading continues.
    """

    def __init__(
        self,
        library: RunLibrary,
        seconds: float,
        deliver: Callable[[DataScreen, Callable[[], Any]], Any],
        report_error: Callable[[Exception], Any],
    ) -> None:
        self.screen: DataScreen | None = None
        self.rounds = 0  # number of completed reads, including their display
        self._library = library
        self._seconds = seconds
        self._deliver, self._report_error = deliver, report_error
        self._wake_event, self._shown_event = threading.Event(), threading.Event()
        self._cpu_meter: CpuMeter | None = None
        self._is_stopping = self._rescan_requested = False
        # A daemon thread: exiting the app must not wait for a disk that does not respond.
        self._thread = threading.Thread(target=self._run, name="burnt-monitor-reader", daemon=True)

    def start(self) -> None:
        """Start the thread; it reads immediately."""
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake_event.set()
        self._shown_event.set()

    def wake(self, *, rescan: bool = False) -> None:
        """Read now, without waiting for the interval; `rescan` also searches for new runs."""
        self._rescan_requested |= rescan
        self._wake_event.set()

    def mark_shown(self) -> None:
        self._shown_event.set()

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._refresh()
            except Exception as error:  # from one run or pane; the others must keep working
                self._report_error(error)
            self.rounds += 1
            self._wake_event.wait(self.next_interval())
            self._wake_event.clear()

    def next_interval(self) -> float:
        """Return the seconds until the next read, from the CPU time used since the last, drawing included."""
        if self._cpu_meter is None:  # the first read includes imports, so it is not representative
            self._cpu_meter = CpuMeter()
            return self._seconds
        used, idle = self._cpu_meter.read()
        if idle >= _MIN_IDLE_CORES:
            return self._seconds
        return max(self._seconds, min(used / _MAX_CPU_SHARE, _MAX_INTERVAL_SECONDS))

    def _refresh(self) -> None:
        rescan, self._rescan_requested = self._rescan_requested, False
        if rescan:
            self._library.drop_deleted()
        changed = self._library.refresh(rescan=rescan) or rescan
        screen = self.screen
        show = None if screen is None else screen.load(changed)
        if screen is not None and show is not None and not self._is_stopping:
            # Wait until the data is displayed, so that a slow terminal gets fewer updates.
            self._shown_event.clear()
            self._deliver(screen, show)
            self._shown_event.wait(_SHOW_TIMEOUT_SECONDS)
