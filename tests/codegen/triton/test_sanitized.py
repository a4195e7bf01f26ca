"""No generated kernel reaches outside of its tensors: a symbolic look at some, where it can be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton_viz", reason="pip install 'burnt[sanitize]'")

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.codegen.triton.sanitize", *options],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_families_stay_inside() -> None:
    done = run()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for name in ("gelu", "softmax", "layer_norm", "transposed", "padded", "columns", "rope"):
        assert f"{name}: nothing outside" in done.stdout, done.stdout


def test_a_missing_mask_is_found() -> None:
    done = run("--broken")
    assert done.returncode != 0
    assert "ILLEGAL MEMORY ACCESS" in done.stdout
