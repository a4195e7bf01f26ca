"""Giving way to everything else on the machine, as what looks at a training must."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["NICENESS", "give_way"]

NICENESS = 19


def give_way(pid: int = 0) -> None:
    """Give a process, with all its threads, the lowest priority.

    Args:
        pid: of the process; 0 for this one.

    That is nice 19, and on Linux the class of idle tasks besides: whatever else wants a core gets it at once,
    where it would wait for a few milliseconds for a task that is merely nice. It cannot be taken back.
    """
    # On Linux the priority is each thread's own.
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    threads: list[int] = [pid]
    with contextlib.suppress(OSError):  # no such system, or it has ended
        threads = [int(task.name) for task in tasks.iterdir()]
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
            if hasattr(os, "SCHED_IDLE"):
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
