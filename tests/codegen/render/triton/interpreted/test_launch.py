"""Functions run as Triton kernels: run-time numbers, checks, explanations, fallbacks."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnt import _torch
from burnt.codegen.function import Function
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.tile_config import TileConfig
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build
from burnt.errors import InputIndexError
from tests.codegen.render.triton.products import always

fuse = functools.partial(Function, target=TRITON)


def test_run_time_numbers():
    fused = fuse(lambda x, a, b: x * a + b)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int32):
        x = torch.arange(7).to(dtype)
        plan = fused.plan(x, 0.1, 3.0)
        for a, b in ((0.1, 3.0), (1 / 3, -1e-3)):
            torch.testing.assert_close(fused(x, a, b), x * a + b)
        assert fused.plan(x, 0.7, 1.0) is plan


def test_partial_sums_of_a_product_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch):
    allocate, allocated, alive = _torch.empty_on_cpu, [], []

    def record(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        alive.append(sum(tensor() is not None for tensor in allocated))
        tensor = allocate(shape, strides, dtype)
        if len(shape) == 1:
            allocated.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(_torch, "empty_on_cpu", record)
    target = always(MatmulConfig.of("32x32x32 w4 s2 k2"))
    fused = Function(lambda x, a, b: ((x @ a).relu() @ b).relu(), target=target)
    x, a, b = (torch.randint(-2, 3, shape).float() for shape in ((32, 64), (64, 64), (64, 32)))
    torch.testing.assert_close(fused(x, a, b), ((x @ a).relu() @ b).relu())
    assert len(allocated) == 2
    assert not any(alive)


def test_an_index_out_of_range_fails_and_is_not_read():
    fused = fuse(lambda w, i: F.embedding(i, w) * 2)
    w = torch.randn(10, 8)
    good = torch.tensor([[0, 9, 3]])
    assert torch.equal(fused(w, good), w[good] * 2)
    for bad in (10, -1, 1 << 40):
        with pytest.raises(InputIndexError, match=f"embedding: index {bad} is out of range"):
            fused(w, torch.tensor([[1, bad, 2]]))
        assert torch.equal(fused(w, good), w[good] * 2)


def test_a_check_in_an_unselected_branch_does_not_fail():
    w, i = torch.randn(5, 3), torch.tensor([1, 4])
    fused = fuse(lambda w, i: F.pad(F.embedding(i, w), (0, 1, 1, 0), value=7.0))
    assert torch.equal(fused(w, i), F.pad(w[i], (0, 1, 1, 0), value=7.0))
    fused = fuse(lambda w: torch.cat([w * 2, F.embedding(torch.arange(5), w)]))
    assert torch.equal(fused(w), torch.cat([w * 2, w]))


def test_unsupported_ops_fall_back():
    fused = fuse(lambda x: torch.fft.fft(x).real + 1)
    x = torch.randn(8)
    torch.testing.assert_close(fused(x), torch.fft.fft(x).real + 1)


def test_argmax_propagates_nan_and_returns_the_first():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 3, nan], [-inf, -inf, -inf, -inf], [5, 7, 7, -inf], [inf, inf, 0, 0]])
    fused = fuse(lambda x: (x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1)))
    for ours, theirs in zip(fused(x), (x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1)), strict=True):
        assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9))
    y = x.t().repeat(1, 4)  # memory runs along the rows
    for ours, theirs in zip(fused(y.t()), (y.amax(0), y.amin(0), y.argmax(0), y.argmin(0)), strict=True):
        assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_integers(dtype):
    x = (
        torch.randint(0, 2, (9, 11)).to(dtype)
        if dtype == torch.bool
        else torch.randint(-128, 127, (9, 11)).to(dtype)
    )
    programs = [
        lambda x: x.sum(0),
        lambda x: x.any(1),
        lambda x: x.all(0),
        lambda x: x.amax(1),
        lambda x: x == 3,
    ]
    if dtype != torch.bool:
        programs += [
            lambda x: x * x - x,
            lambda x: x.sum(1, dtype=dtype),
            lambda x: -x,
            lambda x: x.argmin(1),
        ]
        programs += [lambda x: x.prod(0), lambda x: torch.maximum(x, x.flip(0)), lambda x: x.sign() + x.abs()]
    for program in programs:
        fused = fuse(program)
        assert torch.equal(fused(x), program(x))
        assert fused.fallback_reason(x) is None


def test_pools_and_their_gradients():
    x = torch.randn(2, 3, 9, 11, requires_grad=True)
    for program in (
        lambda x: F.max_pool2d(x, 3, 2, 1).relu(),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 4),
    ):
        fused = fuse(program)
        ours, theirs = fused(x), program(x)
        torch.testing.assert_close(ours, theirs)
        pull = torch.randn_like(theirs)
        torch.testing.assert_close(
            torch.autograd.grad(ours, x, pull, retain_graph=True), torch.autograd.grad(theirs, x, pull)
        )


@pytest.mark.parametrize(
    "program",
    [
        torch.rand_like,
        torch.randn_like,
        lambda x: F.dropout(x, 0.3),
        lambda x: torch.randint_like(x, 0, 10),
        lambda x: torch.rand_like(x.double()),
    ],
)
def test_random_numbers_are_those_of_other_targets(program):
    x = torch.randn(37, 11)
    torch.manual_seed(3)
    ours = fuse(program)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(ours, Function(program, target=C)(x), rtol=1e-6, atol=1e-6)


NARROW = dataclasses.replace(TRITON, build=functools.partial(build, choose=lambda form: TileConfig(4, 8)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((37, 11), TRITON),
        ((3, 5000), TRITON),
        ((2000, 5), TRITON),
        ((9, 21), NARROW),
        pytest.param((37, 45), NARROW, marks=pytest.mark.full),
    ],
)
def test_scans(shape, target, axis):
    x = torch.randn(shape).round(decimals=1)
    x[0, 1] = x[0, 3]
    programs = [
        lambda x: x.cumsum(axis) * 2,
        lambda x: (x * 0.1 + 1).cumprod(axis),
        lambda x: x.logcumsumexp(axis),
        lambda x: torch.cummax(x, axis),
        lambda x: torch.cummin(x, axis),
        lambda x: x.flip(axis).cumsum(axis).flip(axis),
        lambda x: x.to(torch.int32).cumsum(axis),
    ]
    for program in programs:
        fused = Function(program, target=target)
        ours, theirs = fused(x), program(x)
        assert fused.fallback_reason(x) is None
        for a, b in zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    nan = x.clone()
    nan[1, 2] = float("nan")
    ours, theirs = fuse(lambda x: torch.cummax(x, axis))(nan), torch.cummax(nan, axis)
    assert torch.equal(ours[1], theirs[1])
