"""Which process writes a run, and whether it is still alive.

A process is identified by host, pid and start time, because pids are reused. Times of another host are
compared with this host's clock: the clocks must agree within seconds, as with NTP.
"""

from __future__ import annotations

import os
import socket
from typing import Literal, NamedTuple

State = Literal["running", "finished", "stopped", "crashed", "stale"]

HEARTBEAT_SECONDS = 2.0
SILENT_SECONDS = 10.0

# psutil computes start times from the boot time, which changes when the clock is adjusted.
_START_TOLERANCE_SECONDS = 2.0


class ProcessName(NamedTuple):
    """Identifies a process across hosts and reused pids."""

    host: str
    pid: int
    started: float

    @classmethod
    def own(cls) -> ProcessName:
        """Return the name of the calling process."""
        import psutil

        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @property
    def is_local(self) -> bool:
        """Whether the process runs on this host."""
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether the process exists; valid on its own host only."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            # A killed process remains as a zombie until its parent reads its exit status.
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return bool(abs(process.create_time() - self.started) <= _START_TOLERANCE_SECONDS)
        except (psutil.NoSuchProcess, ValueError):  # ValueError: a negative pid in a damaged file
            return False
        except psutil.AccessDenied:  # it exists, but this user cannot read its start time
            return True


def writing_state(
    process: ProcessName, heartbeat: float, now: float
) -> Literal["running", "crashed", "stale"]:
    """Return the state of an attempt without a recorded end; `heartbeat` is its last write."""
    silent = now - heartbeat > SILENT_SECONDS
    if process.is_local:
        if not process.is_alive():
            return "crashed"
        return "stale" if silent else "running"
    return "crashed" if silent else "running"
