"""Which process writes a run, and whether it still lives.

A process is named by host, id and start time, because ids are reused. Times of another host are compared
with this host's clock: the two must agree within seconds, as NTP keeps them.
"""

from __future__ import annotations

import os
import socket
from typing import Literal, NamedTuple

State = Literal["running", "finished", "stopped", "crashed", "stale"]

HEARTBEAT_SECONDS = 2.0
SILENT_SECONDS = 10.0

# psutil counts start times from the boot time, which follows the clock when that is set right.
_START_TOLERANCE_SECONDS = 2.0


class ProcessName(NamedTuple):
    """The identity of a process across hosts and reused ids."""

    host: str
    pid: int
    started: float

    @classmethod
    def own(cls) -> ProcessName:
        """The calling process."""
        import psutil

        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @property
    def local(self) -> bool:
        """Whether the process is one of this host."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether the process exists; to be asked on its own host only."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            # A killed process stays in the table as a zombie until its parent asks for its exit status.
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return bool(abs(process.create_time() - self.started) <= _START_TOLERANCE_SECONDS)
        except (psutil.NoSuchProcess, ValueError):  # the latter: a negative id, of a damaged file
            return False
        except psutil.AccessDenied:  # it exists, and its start time is hidden from this user
            return True


def writing_state(
    process: ProcessName, heartbeat: float, now: float
) -> Literal["running", "crashed", "stale"]:
    """The state of an attempt that has no end.

    Args:
        process: who writes it.
        heartbeat: when it last wrote, Unix seconds of its host.
        now: Unix seconds of this host.
    """
    silent = now - heartbeat > SILENT_SECONDS
    if process.local:
        if not process.alive():
            return "crashed"
        return "stale" if silent else "running"
    return "crashed" if silent else "running"
