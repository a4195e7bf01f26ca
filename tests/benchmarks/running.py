"""Running a benchmark in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(name: str, *options: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def output_of(name: str, *options: str | os.PathLike[str]) -> str:
    """Run a benchmark to its end, and return what it prints."""
    done = run(name, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout
