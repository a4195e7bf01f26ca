"""Numerics of generated Triton kernels, run by Triton's interpreter.

The interpreter is selected when Triton is imported, so its tests run in their own processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")
pytest.importorskip("ml_dtypes")

FOLDER = Path(__file__).parent / "interpreted"
ROOT = Path(__file__).parents[4]
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))


def run(file: str, *options: str, seconds: float) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    # Do not mix this process's coverage with the outer run's.
    environment.pop("COV_CORE_SOURCE", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-x",
        str(FOLDER / file),
        *options,
    ]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert result.returncode in (0, 5), result.stdout[-6000:] + result.stderr[-2000:]
    assert result.returncode == 0 or "full" in options, f"{file} holds no tests"


# Minutes each. The random programs, which run on every change, cover several kinds of reductions.
RARELY = {"test_online.py", "test_tuning.py"}


@pytest.mark.parametrize(
    "file", [pytest.param(f, marks=pytest.mark.full) if f in RARELY else f for f in FILES]
)
@pytest.mark.timeout(900)
def test_in_the_interpreter(file: str) -> None:
    run(file, "-m", "not full", seconds=900)


@pytest.mark.full
@pytest.mark.parametrize("file", FILES)
@pytest.mark.timeout(7200)
def test_in_the_interpreter_at_length(file: str) -> None:
    run(file, "-m", "full", seconds=7200)
