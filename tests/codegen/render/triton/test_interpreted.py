"""Numerics of generated Triton kernels, run by Triton's interpreter.

The interpreter is selected when Triton is imported, so its tests run in their own processes: few, since each
imports torch and collects its tests, which takes longer than most of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")
pytest.importorskip("ml_dtypes")

FOLDER = Path(__file__).parent / "interpreted"
ROOT = Path(__file__).parents[4]
SEED = os.environ.get("BURNT_SEED", "0")  # what is drawn by it, in `--full`, has passed with it alone
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))


def run(files: Sequence[str], *options: str, seconds: float) -> None:
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
        "--maxfail=5",
        *(str(FOLDER / file) for file in files),
        *options,
    ]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert result.returncode in (0, 5), result.stdout[-6000:] + result.stderr[-2000:]
    assert result.returncode == 0 or "not full" not in options, f"{files} hold no tests"


# Minutes each. The random programs, which run on every change, cover several kinds of reductions.
RARELY = ["test_online.py", "test_tuning.py"]
OFTEN = [file for file in FILES if file not in RARELY]


@pytest.mark.timeout(900)
def test_in_the_interpreter() -> None:
    run(OFTEN, "-m", "not full", seconds=900)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_in_the_interpreter_what_takes_minutes() -> None:
    run(RARELY, "-m", "not full", seconds=900)


@pytest.mark.full
@pytest.mark.parametrize("files", [FILES[i::6] for i in range(6)], ids=lambda files: f"{files[0]}-{SEED}")
@pytest.mark.timeout(7200)
def test_in_the_interpreter_at_length(files: list[str]) -> None:
    run(files, "-m", "full and not beyond", seconds=7200)
