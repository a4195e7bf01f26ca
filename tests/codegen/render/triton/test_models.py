"""Triton plans of a transformer's encoder, by `burnt.compile`: compiled for GPUs that are not present, and
launched through a driver that runs nothing. `interpreted/test_models.py` runs them by the interpreter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import select_config
from tests import forked
from tests.codegen.render.triton.ahead import SHARED, TARGETS, compiled, limits_of
from tests.codegen.render.triton.encoder import kernels_of_step
from tests.codegen.render.triton.test_ahead import AROUND_A_CALL
from tests.null import driver

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.full, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    ("target", "dtype"),
    [*((target, torch.float32) for target in TARGETS), ("sm_90", torch.bfloat16), ("gfx942", torch.bfloat16)],
    ids=str,
)
def test_kernels_of_an_encoder_compile(target: str, dtype: torch.dtype, tmp_path: Path) -> None:
    limits = limits_of(target)
    kernels = kernels_of_step(dtype)
    printed = [print_kernel(k, select_config(structure_of(k), limits)) for k in kernels]
    texts = {
        re.sub(rf"\b{kernel.name}", "kernel", source.text): source
        for kernel, source in zip(kernels, printed, strict=True)
    }
    assert len(texts) > 10
    for kernel in compiled(list(texts.values()), target, tmp_path):
        label = f"{target} {kernel.name}: {kernel.registers} registers"
        assert kernel.spilled <= AROUND_A_CALL, f"{label}, {kernel.spilled} bytes spilled"
        assert kernel.shared <= SHARED[target], label
        assert not kernel.doubles, f"{label}: {kernel.doubles}"


LAUNCHES = """
from tests.null import driver
driver.install()
import burnt
from tests.codegen.render.triton.encoder import step
_, x, found = step(dropout=0.1)
print(driver.last_launch().launches, len(driver.compiled()))
for ours in found:
    assert ours.dtype == x.dtype
"""


@pytest.mark.skipif(driver.why_not() is not None, reason=str(driver.why_not()))
def test_kernels_of_an_encoder_are_launched() -> None:
    done = forked.run(LAUNCHES, timeout=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    launches, kernels = map(int, done.stdout.split())
    assert launches >= kernels > 10
