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

        self._times = cpu_times
        self._at, self._own, self._idle = self._now()

    def _now(self) -> tuple[float, float, float]:
        times = self._times()
        return time.monotonic(), time.process_time(), times.idle + getattr(times, "iowait", 0.0)

    def read(self) -> tuple[float, float]:
        """Seconds of a core that this process has used, and how many cores would be idle without it."""
        (at, own, idle), now = (self._at, self._own, self._idle), self._now()
        self._at, self._own, self._idle = now
        spent = now[1] - own
        return spent, (now[2] - idle + spent) / max(now[0] - at, 1e-6)


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
        failed: Callable[[Exception], Any],
    ) -> None:
        self.source: DataScreen | None = None
        self.rounds = 0  # how often it has looked and what it found was shown
        self._library = library
        self._seconds = seconds
        self._deliver, self._failed = deliver, failed
        self._wake, self._shown = threading.Event(), threading.Event()
        self._meter: CpuMeter | None = None
        self._stopping = self._looking = False
        # A daemon: leaving the app must not wait for a disk that does not answer.
        self._thread = threading.Thread(target=self._work, name="burnt-monitor-reader", daemon=True)

    def start(self) -> None:
        """Begin, with a look at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after what is being read just now."""
        self._stopping = True
        self._wake.set()
        self._shown.set()

    def wake(self, *, look: bool = False) -> None:
        """Read now: something else is on the screen.

        Args:
            look: for new runs as well.
        """
        self._looking |= look
        self._wake.set()

    def shown(self) -> None:
        """What was delivered is on the screen."""
        self._shown.set()

    def _work(self) -> None:
        while not self._stopping:
            try:
                self._look()
            except Exception as error:  # of one run or pane; the others are shown nevertheless
                self._failed(error)
            self.rounds += 1
            self._wake.wait(self.pause())
            self._wake.clear()

    def pause(self) -> float:
        """Seconds until the next look, by what this process has used since the last one, to draw as well."""
        if self._meter is None:  # the first look, which had to import what it draws with, says nothing
            self._meter = CpuMeter()
            return self._seconds
        spent, idle = self._meter.read()
        if idle >= _MIN_IDLE_CORES:
            return self._seconds
        return max(self._seconds, min(spent / _MAX_CPU_SHARE, _MAX_INTERVAL_SECONDS))

    def _look(self) -> None:
        looking, self._looking = self._looking, False
        if looking:
            self._library.drop_deleted()
        changed = self._library.refresh(look=looking) or looking
        source = self.source
        show = None if source is None else source.load(changed)
        if source is not None and show is not None and not self._stopping:
            # The next look waits until this one is shown, so that a slow terminal gets fewer.
            self._shown.clear()
            self._deliver(source, show)
            self._shown.wait(_SHOW_TIMEOUT_SECONDS)
