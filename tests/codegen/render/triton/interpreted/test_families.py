"""The ops of `burnt.kernels` in Triton, run by the interpreter: values and gradients against float64."""

from __future__ import annotations

import pytest
import torch

from burnt import kernels
from burnt.codegen.function import Function
from burnt.codegen.runtime.triton_backend import TRITON
from tests.codegen.compare import outcome
from tests.codegen.render.metal.test_families import FAMILIES, SAMPLE, check

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

SHORT = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("name", SAMPLE)
def test_families(name: str) -> None:
    check(name, torch.float32, TRITON)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("name", ["softmax", "rms_norm and residual"])
def test_families_in_16_bits(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, TRITON)


@pytest.mark.sample(0, full=44)
@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, *SHORT], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_more_families(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, TRITON)


def test_dropout() -> None:
    fused = Function(lambda x: kernels.dropout.reference(x, 0.25, True), target=TRITON)
    result, gradient = outcome(fused, (torch.ones(64, 53),))
    assert result.unique().tolist() == [0.0, float(torch.tensor(1 / 0.75))]
    assert 0.2 < float((result == 0).float().mean()) < 0.3
    assert torch.equal(gradient == 0, (result == 0))
