"""benchmarks/optimizers.py runs, and compares steps that come to the same parameters."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_steps_are_listed_beside_those_of_torch() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/optimizers.py", "--quick", "--rows", "50 M|9 k"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "calm" in line]
    assert len(rows) == 3
    assert sum("target 1.4" in row for row in rows) == 1
