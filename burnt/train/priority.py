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
    with contextlib.suppress(OSError):  # it, or one of its threads, has ended
        for name in [task.name for task in tasks.iterdir()] if tasks.exists() else [pid]:
            os.setpriority(os.PRIO_PROCESS, int(name), NICENESS)
            if hasattr(os, "SCHED_IDLE"):
                os.sched_setscheduler(int(name), os.SCHED_IDLE, os.sched_param(0))
