"""Tests whose work is done by two processes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests import forked

_WORKERS = """
import os, sys, torch
torch.set_num_threads(1)
program, kind = sys.argv[1:]
sys.path[0] = os.path.dirname(program)
children = []
for rank in range(2):
    if not (child := os.fork()):
        sys.argv = [program, kind, str(rank)]
        with open(program) as source:
            exec(compile(source.read(), program, "exec"), {"__name__": "__main__", "__file__": program})
        sys.stdout.flush()
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def by_two(script: str, folder: Path, kind: str) -> None:
    """Run a script as `script kind rank` in two processes that know each other's port; both print "equal"."""
    file = folder / "worker.py"
    file.write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(forked.ROOT),
    }
    done = forked.run(_WORKERS, file, kind, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
