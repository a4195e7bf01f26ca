"""Generated kernels access no memory outside of their tensors (triton-viz's symbolic sanitizer)."""

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
# Cases the sanitizer cannot run or follow, with its message; interpreter and GPU tests cover them.
GIVEN_UP = {
    "few rows": "Concretize for op idiv",
    "linear and gelu": "functions passed to a kernel",
    "convolution": "functions passed to a kernel",
    "attention": "input and other must have equal ranks",
    "lstm": "unsupported operand type(s)",
    "optimizer step": "'SymbolicExprDataWrapper' object has no attribute 'view'",
    "embedding, backward": "Unsupported const value type",
}


def test_no_access_outside() -> None:
    result = run()
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    messages = dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)
    for name in INSIDE:
        assert messages[name] == "nothing outside", result.stdout
    for name, why in GIVEN_UP.items():
        assert why in messages[name], result.stdout
    assert {*INSIDE, *GIVEN_UP} == set(messages)


@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm, backward", "linear and gelu, backward"])
def test_a_missing_mask_is_found(name: str) -> None:
    result = run("--broken", name)
    assert result.returncode != 0
    assert "ILLEGAL MEMORY ACCESS" in result.stdout
