"""Launch kernels through a CUDA driver that runs nothing: arguments, grids, shared memory, the launcher.

The driver replaces Triton's for a whole process, so each test starts its own process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from tests import forked
from tests.gpu import first
from tests.null import driver

ROOT = Path(__file__).parents[4]
WHY_NOT = driver.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

# Of every kind of launch: by hand, generated with descriptors, of many tensors.
SAMPLE = ["flash d64, causal", "product gelu, persistent, descriptors", "adamw, bfloat16"]


def python(*command: str, seconds: float) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-4000:]
    return result.stdout


def launch(names: list[str], seconds: float) -> dict[str, str]:
    pattern = "^(" + "|".join(map(re.escape, names)) + ")$"
    options = ["--device", "null", "--jobs", "1", "--seconds", "120", "-k", pattern]
    done = forked.run(
        "import runpy; runpy.run_module('tests.gpu.first', run_name='__main__')", *options, timeout=seconds
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    lines = done.stdout.splitlines()
    return {line.split(" s  ", 1)[1].split("  ")[0]: line for line in lines[:-1]}


def test_a_sample_is_launched() -> None:
    found = launch(SAMPLE, 600)
    assert sorted(found) == sorted(SAMPLE)
    for name, line in found.items():
        launches, kernels = re.search(r"(\d+) launches, \d+ of (\d+) kernels", line).groups()  # type: ignore[union-attr]
        assert int(launches) >= int(kernels) > 0, name


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_every_case_is_launched() -> None:
    names = [name for name in first.CASES if not name.startswith(first.LAST)]
    assert sorted(launch(names, 2400)) == sorted(names)


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_generated_kernels_are_launched() -> None:
    output = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "null", "tests/gpu/test_codegen.py",
        seconds=2400,
    )  # fmt: skip
    assert re.search(r"^\d+ passed", output.splitlines()[-1]), output[-3000:]


LIMITS = """
import torch
from tests.null import driver
driver.install()
from burnt.kernels.ops.embedding.backward_triton import add_runs

def launch(grid, x=torch.zeros(4, 8), **options):
    keys = torch.arange(4)
    add_runs[grid](x, keys, keys, x, x, keys, 4, 8, -1, True, 8, 16, **options)
    return driver.last_launch()

def refused(words, *args, **options):
    try:
        launch(*args, **options)
    except Exception as error:
        assert words in str(error), error
    else:
        raise SystemExit(f"launched, though {words}")

seen = launch((3, 2), num_warps=2)
assert (seen.launches, list(seen.grid), list(seen.block)) == (1, [3, 2, 1], [64, 1, 1])
assert launch((1 << 20,)).launches == 2
refused("a grid beyond 65535 in y", (1, 70_000))
refused("a grid beyond 65535 in z", (1, 1, 70_000))
try:
    add_runs[(1,)](torch.zeros(4), LENGTH=8)
except TypeError as error:
    assert "missing" in str(error)
assert driver.last_launch().launches == 2
assert [kernel.name for kernel in driver.compiled()] == ["add_runs"] * 2
print("as expected")
"""


def test_what_a_driver_refuses_is_refused() -> None:
    done = forked.run(LIMITS)
    assert done.stdout == "as expected\n", done.stderr


SHARED = """
import torch, triton
from tests.null import driver
driver.install()
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.function import Function
from tests.codegen.render.triton.products import always

a, b = torch.zeros(256, 512).bfloat16(), torch.zeros(512, 256).bfloat16()
fits = Function(lambda a, b: torch.relu(a @ b), target=always(MatmulConfig.of("128x128x64 w8 s3")))
fits(a, b)
assert driver.last_launch().shared > 48 << 10
large = Function(lambda a, b: torch.relu(a @ b), target=always(MatmulConfig.of("256x256x128 w8 s4")))
import warnings
warnings.simplefilter("error")
try:
    large(a, b)
except Exception as error:
    assert "shared memory" in repr(error) + repr(error.__cause__), error
else:
    raise SystemExit("launched with more shared memory than there is")
print("as expected")
"""


def test_more_shared_memory_than_there_is_is_refused() -> None:
    done = forked.run(SHARED)
    assert done.stdout.endswith("as expected\n"), done.stderr


@pytest.mark.full
def test_it_says_why_it_cannot_be_installed() -> None:
    code = "from tests.null import driver; driver.install()"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert "the null driver cannot be installed: this process runs Triton's interpreter" in result.stderr
