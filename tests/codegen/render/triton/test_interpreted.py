"""Numerics of generated Triton kernels, run by Triton's interpreter.

The interpreter is chosen when Triton is imported, so its tests have processes of their own: few, since each
imports torch, and its tests are collected, which takes longer than most of them.
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
    # Coverage of the outer run would be mixed up with this one's.
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
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode in (0, 5), done.stdout[-6000:] + done.stderr[-2000:]
    assert done.returncode == 0 or "not full" not in options, f"{files} hold no tests"


# Minutes each. At every change the gate's programs fold several ways, all of them with one size of blocks.
RARELY = ["test_online.py", "test_tuning.py"]
OFTEN = [file for file in FILES if file not in RARELY]


@pytest.mark.parametrize("files", [OFTEN[::2], OFTEN[1::2]], ids=["one half", "the other"])
@pytest.mark.timeout(900)
def test_in_the_interpreter(files: list[str]) -> None:
    run(files, "-m", "not full", seconds=900)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_in_the_interpreter_what_takes_minutes() -> None:
    run(RARELY, "-m", "not full", seconds=900)


@pytest.mark.full
@pytest.mark.parametrize("files", [FILES[i::6] for i in range(6)], ids=lambda files: f"{files[0]}-{SEED}")
@pytest.mark.timeout(7200)
def test_in_the_interpreter_at_length(files: list[str]) -> None:
    run(files, "-m", "full and not beyond", seconds=7200)
