"""Lowers the priority of viewer processes, so that they do not slow the training down."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil

NICENESS = 19


def set_lowest_priority(pid: int = 0) -> None:
    """Give a process, with all its threads, the lowest priority; 0 is this process.

    Sets nice 19 and, on Linux, also the scheduling class SCHED_IDLE: any other task gets the core at once,
    where it would wait a few milliseconds for a task that is only nice. This cannot be undone. On Windows it
    sets the priority class IDLE.
    """
    if sys.platform == "win32":
        with contextlib.suppress(psutil.Error):  # the process has ended
            psutil.Process(pid or os.getpid()).nice(psutil.IDLE_PRIORITY_CLASS)
        return
    # On Linux each thread has its own priority.
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    threads: list[int] = [pid]
    with contextlib.suppress(OSError):  # no /proc, or the process has ended
        threads = [int(task.name) for task in tasks.iterdir()]
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread has ended
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
            if hasattr(os, "SCHED_IDLE"):
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
