"""Tests whose work is done by two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
        "PYTHONPATH": str(ROOT),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, str(file), kind, str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [worker.communicate(timeout=300) for worker in workers]  # of both, before either is judged
    for worker, (out, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors[-3000:]
        assert "equal" in out
