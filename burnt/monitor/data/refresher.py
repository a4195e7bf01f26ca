"""The thread that reads: a slow disk holds it up, and never the keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from burnt.monitor.data.runs import RunLibrary

__all__ = ["DataScreen", "Refresher"]

_SHOW_TIMEOUT_SECONDS = 5.0
# Of a core, at most, on a machine whose cores are all busy: the threads of a training's step wait for each
# other, so that what one of its cores loses the training loses. And how long it waits for that.
_MAX_CPU_SHARE, _MAX_INTERVAL_SECONDS = 0.006, 5.0
# As much of a core must be idle, or else all of them are busy.
_MIN_IDLE_CORES = 0.5


class DataScreen(Protocol):
    """What shows something that has to be read."""

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """Read, in the reading thread; returns what shows it, in the app's, or None for nothing new.

        Args:
            changed: whether a run has changed since the last call.
        """


class CpuMeter:
    """What happened to the machine's cores between two readings."""

    def __init__(self) -> None:
        from psutil import cpu_times  # takes longer to import than the first screen has

        self._cpu_times = cpu_times
        self._time, self._own_seconds, self._idle_seconds = self._sample()

    def _sample(self) -> tuple[float, float, float]:
        times = self._cpu_times()
        return time.monotonic(), time.process_time(), times.idle + getattr(times, "iowait", 0.0)

    def read(self) -> tuple[float, float]:
        """Seconds of a core that this process has used, and how many cores would be idle without it."""
        (at, own, idle), new = (self._time, self._own_seconds, self._idle_seconds), self._sample()
        self._time, self._own_seconds, self._idle_seconds = new
        used = new[1] - own
        return used, (new[2] - idle + used) / max(new[0] - at, 1e-6)


class Refresher:
    """Refreshes a library at an interval and lets what is on the screen read what it needs.

    Args:
        library: the runs.
        seconds: between two looks; more where all cores are busy and a look takes long.
        deliver: called in the reading thread with a source and something to be called, and awaited if it
            wants that, in the app's thread, which then calls `shown`.
        failed: the same with an exception that nothing here expected; the next look comes all the same.
    """

    def __init__(
        self,
        library: RunLibrary,
        seconds: float,
        deliver: Callable[[DataScreen, Callable[[], Any]], Any],
        report_error: Callable[[Exception], Any],
    ) -> None:
        self.screen: DataScreen | None = None
        self.rounds = 0  # how often it has looked and what it found was shown
        self._library = library
        self._seconds = seconds
        self._deliver, self._report_error = deliver, report_error
        self._wake_event, self._shown_event = threading.Event(), threading.Event()
        self._cpu_meter: CpuMeter | None = None
        self._is_stopping = self._rescan_requested = False
        # A daemon: leaving the app must not wait for a disk that does not answer.
        self._thread = threading.Thread(target=self._run, name="burnt-monitor-reader", daemon=True)

    def start(self) -> None:
        """Begin, with a look at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after what is being read just now."""
        self._is_stopping = True
        self._wake_event.set()
        self._shown_event.set()

    def wake(self, *, rescan: bool = False) -> None:
        """Read now: something else is on the screen.

        Args:
            look: for new runs as well.
        """
        self._rescan_requested |= rescan
        self._wake_event.set()

    def mark_shown(self) -> None:
        """What was delivered is on the screen."""
        self._shown_event.set()

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._refresh()
            except Exception as error:  # of one run or pane; the others are shown nevertheless
                self._report_error(error)
            self.rounds += 1
            self._wake_event.wait(self.next_interval())
            self._wake_event.clear()

    def next_interval(self) -> float:
        """Seconds until the next look, by what this process has used since the last one, to draw as well."""
        if self._cpu_meter is None:  # the first look, which had to import what it draws with, says nothing
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
            # The next look waits until this one is shown, so that a slow terminal gets fewer.
            self._shown_event.clear()
            self._deliver(screen, show)
            self._shown_event.wait(_SHOW_TIMEOUT_SECONDS)
