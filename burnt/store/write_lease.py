"""`WriteLease`: which attempt may change a run's folder; which process writes, and whether it lives.

A training that stood still for a while (Ctrl-Z, a suspended laptop, a disk that hangs) may have been resumed
by another process when it goes on. So it changes files of the folder while it holds its lease only, and
`run.db` in transactions that call `WriteLease.check`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from burnt.errors import RunError, TakenOverError
from burnt.store.schema import DATABASE, connect

_LOCK_MILLISECONDS = 1_000


class WriteLease:
    """The right of one attempt to write a run, until another process resumes it.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> with RunWriter.create(tempfile.mkdtemp()) as run, run.lease.hold():
    ...     run.folder.joinpath("notes").mkdir()
    """

    def __init__(self, folder: str | os.PathLike[str], attempt: int) -> None:
        self.folder, self.attempt = Path(folder), attempt
        self._path = self.folder / DATABASE
        self._file = self._identity()

    @property
    def is_folder_gone(self) -> bool:
        """Whether the run's file is missing or another one: the folder was deleted or moved."""
        try:
            return self._identity() != self._file
        except FileNotFoundError:
            return True
        except OSError:  # a failing disk does not mean that the file is gone
            return False

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Change files of the folder in this block: no process can resume the run meanwhile.

        Keep it short, and do not wait in it for the run's writer, which cannot write either. It raises a
        TakenOverError if another process has resumed the run, a RunError if the folder was deleted or moved.
        """
        if self.is_folder_gone:
            raise RunError("the run's folder was deleted or moved", where=str(self.folder))
        with contextlib.ExitStack() as stack:
            # If run.db cannot be read, nobody can resume the run either. A failing disk or a lock that some
            # program holds must not end the training.
            with contextlib.suppress(sqlite3.Error):
                connection = stack.enter_context(contextlib.closing(connect(self._path, "rw")))
                connection.execute(f"PRAGMA busy_timeout = {_LOCK_MILLISECONDS}")
                with contextlib.suppress(sqlite3.OperationalError):
                    connection.execute("BEGIN IMMEDIATE")  # as `begin_attempt` does; closing ends it
                self.check(connection)
            yield

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise a TakenOverError if another process has resumed the run."""
        other = connection.execute(
            "SELECT id, host, pid, started, resumed_from_step FROM attempt WHERE id > ? ORDER BY id LIMIT 1",
            (self.attempt,),
        ).fetchone()
        if other is None:
            return
        attempt, host, pid, started, step = other
        raise TakenOverError(
            f"attempt {attempt} took over the run, which this process no longer writes",
            where=str(self.folder),
            expected=f"attempt {self.attempt}: pid {os.getpid()}",
            found=f"attempt {attempt}: pid {pid} on {host}, since {time.ctime(started)}, from "
            + (f"step {step} on" if step else "the beginning"),
            hint="this process was silent for more than 10 s (suspended, or its disk hung), and the run was "
            "resumed meanwhile: nothing is left to do here",
        )

    def _identity(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino


# Which process writes a run, and whether it is still alive. A process is identified by host, pid and
# start time, because pids are reused. Times of another host are compared with this host's clock: the
# clocks must agree within seconds, as with NTP.

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
