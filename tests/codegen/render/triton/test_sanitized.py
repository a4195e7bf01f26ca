"""No generated kernel reaches outside of its tensors: a symbolic look at some, where it can be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton_viz", reason="pip install 'burnt[sanitize]'")

ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.codegen.render.triton.sanitize", *options],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


INSIDE = (
    "gelu", "softmax", "layer_norm", "transposed", "padded", "columns", "rope", "gelu, backward",
    "softmax, backward", "layer_norm, backward", "max_pool, backward", "linear and gelu, backward",
)  # fmt: skip
# What the sanitizer cannot run or cannot see, and says so; the interpreter's tests and the GPU's have these.
GIVEN_UP = {
    "few rows": "Concretize for op idiv",
    "linear and gelu": "functions that a kernel is given",
    "convolution": "functions that a kernel is given",
    "attention": "input and other must have equal ranks",
    "lstm": "unsupported operand type(s)",
    "optimizer step": "'SymbolicExprDataWrapper' object has no attribute 'view'",
    "embedding, backward": "Unsupported const value type",
}


def test_kernels_stay_inside() -> None:
    done = run()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    for name in INSIDE:
        assert said[name] == "nothing outside", done.stdout
    for name, why in GIVEN_UP.items():
        assert why in said[name], done.stdout
    assert {*INSIDE, *GIVEN_UP} == set(said)


@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm, backward", "linear and gelu, backward"])
def test_a_missing_mask_is_found(name: str) -> None:
    done = run("--broken", name)
    assert done.returncode != 0
    assert "ILLEGAL MEMORY ACCESS" in done.stdout
