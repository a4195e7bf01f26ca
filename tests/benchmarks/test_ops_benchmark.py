"""benchmarks/ops.py runs, and lists every candidate."""

import subprocess
import sys
from pathlib import Path

import pytest

from burnt.codegen.runtime.c_compiler import find_compiler

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library has no rival")
def test_candidates_are_listed_beside_each_other() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/ops.py", "embedding", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("embedding ")]
    assert len(rows) == 12
    assert sum("sorted " in row for row in rows if " training " in row) == 6
    assert not any("sorted " in row for row in rows if " inference " in row)
    assert "microseconds a call" in done.stdout
