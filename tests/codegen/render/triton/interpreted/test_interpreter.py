"""The corrections to Triton's interpreter."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from burnt.codegen.function import Function
from burnt.codegen.runtime import triton_launch
from burnt.codegen.runtime.triton_backend import TRITON

# With a kernel for every matmul.
PRODUCTS = dataclasses.replace(TRITON, why_torch_matmul=lambda node: None)
MASKED = {
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)), (37, 13)),
    "softmax": (lambda x: torch.softmax(x, -1), (5, 70)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), (7, 50), (50,)),
    "linear and gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (37, 50), (33, 50), (33,)),
}


@triton.jit
def _add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    a = tl.load(x + i, mask=inside, other=0).to(tl.float32)
    b = tl.load(y + i, mask=inside, other=0).to(tl.float32)
    tl.store(z + i, (a + b).to(tl.bfloat16), mask=inside)


def test_bfloat16_is_a_float():
    x, y = torch.randn(2, 37).bfloat16()
    z = torch.full((37,), float("nan"), dtype=torch.bfloat16)
    _add[(1,)](x, y, z, 37, BLOCK=64)
    assert torch.equal(z, (x.float() + y.float()).bfloat16())


@triton.jit
def _left_out(x, y, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if OTHER:
        tl.store(y + i, tl.load(x + i, mask=i < n, other=0))
    else:
        tl.store(y + i, tl.load(x + i, mask=i < n))


def test_masked_out_lanes_are_poisoned():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = torch.zeros(8, dtype=dtype)
        _left_out[(1,)](torch.ones(8, dtype=dtype), y, 5, OTHER=False, BLOCK=8)
        assert y[:5].eq(1).all()
        assert y[5:].isnan().all()
        _left_out[(1,)](torch.ones(8, dtype=dtype), y, 5, OTHER=True, BLOCK=8)
        assert y[5:].eq(0).all()
    y = torch.zeros(8, dtype=torch.int32)
    _left_out[(1,)](torch.ones(8, dtype=torch.int32), y, 5, OTHER=False, BLOCK=8)
    assert y[5:].eq(77).all()


@pytest.mark.parametrize(("nx", "ny"), [(7, 8), (8, 7)], ids=["load", "store"])
def test_accesses_outside_of_a_tensor_raise(nx, ny):
    """Though they stay in the storage."""
    x, y = torch.ones(2, 8)
    with pytest.raises(Exception, match="access outside of the tensors"):
        _left_out[(1,)](x[:nx], y[:ny], 8, OTHER=False, BLOCK=8)
    _left_out[(1,)](x[:7], y, 7, OTHER=False, BLOCK=8)


@pytest.mark.parametrize("case", ["gelu", "softmax", "layer_norm", "linear and gelu"])
def test_a_missing_mask_of_a_generated_kernel_is_found(case, monkeypatch):
    fn, *shapes = MASKED[case]
    args = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(Function(fn, target=PRODUCTS)(*args), fn(*args), rtol=1e-4, atol=1e-4)

    def unmasked(text):
        return load(re.sub(r", mask=in_\w+( & in_\w+)*(, other=0)?", "", text))

    load = triton_launch.load
    monkeypatch.setattr(triton_launch, "load", unmasked)
    with pytest.raises(Exception, match="access outside of the tensors"):
        Function(fn, target=PRODUCTS)(*args)


@triton.jit
def _fma(x, y, z, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


def test_fma_rounds_once():
    for dtype in (torch.float32, torch.float64):
        x = torch.rand(64, dtype=torch.float64).to(dtype) + 1
        out = torch.empty_like(x)
        product = x * x
        _fma[(1,)](x, x, -product, out, BLOCK=64)
        exact = [Fraction(float(a)) ** 2 - Fraction(float(p)) for a, p in zip(x, product, strict=True)]
        assert any(exact)
        assert out.tolist() == [float(e) for e in exact]


@triton.jit
def _larger(a, at, b, bt):
    take = a > b
    return tl.where(take, a, b), tl.where(take, at, bt)


@triton.jit
def _reduced(x, y, at, ROWS: tl.constexpr, COLS: tl.constexpr):
    i = tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, COLS)[None, :]
    value, place = tl.reduce((tl.load(x + i * COLS + j), j + 0 * i), 1, _larger, keep_dims=True)
    tl.store(y + i, value)
    tl.store(at + i, place)


def test_custom_reductions():
    x = torch.randn(4, 16)
    y, at = torch.empty(4), torch.empty(4, dtype=torch.int32)
    _reduced[(1,)](x, y, at, ROWS=4, COLS=16)
    assert torch.equal(y, x.amax(1))
    assert torch.equal(at.long(), x.argmax(1))


@triton.jit
def _tested(x, y, number, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    scalar = tl.full([], number, tl.float32)
    tl.store(y + i, ((tl.load(x + i) > 0) & (scalar > 0)).to(tl.int32))


def test_scalar_comparisons_combine_with_blocks():
    x = torch.randn(8)
    y = torch.empty(8, dtype=torch.int32)
    _tested[(1,)](x, y, 1.5, BLOCK=8)
    assert torch.equal(y.bool(), x > 0)


@triton.jit
def _inverted(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, ~tl.load(x + i))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool])
def test_inverted_integers(dtype):
    x = torch.tensor([0, 1, 2, 127]).to(dtype)
    y = torch.empty_like(x)
    _inverted[(1,)](x, y, BLOCK=4)
    assert torch.equal(y, ~x)
