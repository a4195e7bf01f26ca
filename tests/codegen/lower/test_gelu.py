"""gelu of 16-bit tensors against the exact function, for every number."""

import math

import pytest
import scipy.special
import torch
import torch.nn.functional as F

from burnt.codegen import Function
from burnt.codegen.lower.gelu import _LOG2_TAIL

SIXTEEN = [torch.bfloat16, torch.float16]


def numbers(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return every[every.isfinite()]


def exact(x):
    wide = x.double()
    tail = torch.tensor(scipy.special.ndtr(wide.numpy()))
    density = torch.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    return (wide * tail), tail + (wide * density).nan_to_num()


def steps_between(a, b):
    ordered = [torch.where(r < 0, -(r & 0x7FFF), r) for r in (t.view(torch.int16).int() for t in (a, b))]
    return (ordered[0] - ordered[1]).abs()


def gelu(x):
    return F.gelu(x)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_a_result_is_at_most_a_step_from_the_exact_one(dtype):
    x = numbers(dtype)
    off = steps_between(Function(gelu)(x), exact(x)[0].to(dtype))
    assert off[x > -8].max() <= 1
    assert off.max() <= 16  # around 1e-37, where torch's formula gives 0


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_the_derivative_is_as_near_as_torchs(dtype):
    x = numbers(dtype).requires_grad_()
    (found,) = torch.autograd.grad(Function(gelu)(x).sum(), x)
    (torchs,) = torch.autograd.grad(F.gelu(x).sum(), x)
    slope = exact(x.detach())[1]
    near = x.abs() < 100  # beyond, torch's formula may be NaN
    error, torchs_error = ((t - slope)[near].abs().max() for t in (found, torchs))
    assert error <= 1.05 * torchs_error


def test_a_gpus_formula_for_infinity():
    x = torch.tensor([math.inf, -math.inf, math.nan])
    for dtype in SIXTEEN:
        assert Function(gelu)(x.to(dtype)).tolist()[:2] == [math.inf, 0]  # and not infinity times 0


def test_nan_and_other_dtypes():
    x = torch.tensor([math.nan, 0.0, -0.0, 1.0, -1.0])
    assert Function(gelu)(x.bfloat16())[0].isnan()
    torch.testing.assert_close(Function(gelu)(x), F.gelu(x), equal_nan=True, rtol=1e-6, atol=0)
    tanh = Function(lambda x: F.gelu(x, approximate="tanh"))
    torch.testing.assert_close(tanh(x.bfloat16()), F.gelu(x.bfloat16(), approximate="tanh"), equal_nan=True)


@pytest.mark.parametrize("off", [-(2.0**-22), 2.0**-22])
def test_the_error_of_a_gpus_exponential_does_not_show(off):
    x = numbers(torch.bfloat16)
    x = x[(x > -5) & (x < 50)]
    a = x.float().abs()
    log = torch.full_like(a, _LOG2_TAIL[-1])
    for coefficient in _LOG2_TAIL[-2::-1]:
        log = log * a + coefficient
    found = (x.float().clamp_min(0) - a * (torch.exp2(log) * (1 + off))).bfloat16()
    assert steps_between(found, exact(x)[0].bfloat16()).max() <= 1
