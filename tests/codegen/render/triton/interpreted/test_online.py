"""Online reductions in Triton: looped, chunked, and with infinities and NaN."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel, OnlineReduction
from burnt.codegen.render.triton.tile_config import TileConfig
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build

CONFIGS = {
    "loops": TileConfig(2, 16),
    "one row": TileConfig(1, 8),
    "chunks": TileConfig(1, 8, chunks=4),
    "chunks of rows": TileConfig(4, 4, chunks=8),
    "whole": TileConfig(1, 1024),
}


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def fused(fn: Callable[..., object], name: str) -> Function:
    config = CONFIGS[name]
    choose = functools.partial(build, choose=lambda form: config)
    return Function(fn, target=dataclasses.replace(TRITON, build=choose))


def spread(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(-1), torch.logsumexp(x, -1), torch.softmax(x, -1), x.mean(-1)


def check(function: Function, fn: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> None:
    for ours, eager, truth in zip(function(x), fn(x), fn(x.double()), strict=True):
        assert ours.dtype == eager.dtype
        error = float((eager.double() - truth.double()).abs().max())
        slack = 4 * error + 4 * torch.finfo(eager.dtype).eps * float(
            max(truth.double().abs().max(), x.abs().max())
        )
        assert float((ours.double() - truth.double()).abs().max()) <= slack
    (entry,) = function._entries.values()
    assert entry.forward is not None
    steps = [s for k in entry.forward.plan.steps if isinstance(k, Kernel) for s in k.steps]
    assert {step.kind for step in steps if isinstance(step, OnlineReduction)} == {"exp", "squares"}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 97), (2, 130), (130,)])
def test_rows(name: str, shape: tuple[int, ...]) -> None:
    if shape == (1, 1):
        with pytest.warns(UserWarning, match="degrees of freedom"):
            assert bool(fused(spread, name)(randn(1, 1) + 3)[0].isnan().all()) == bool(
                spread(randn(1, 1))[0].isnan().all()
            )
        return
    check(fused(spread, name), spread, randn(*shape) * 3 + 2)


@pytest.mark.parametrize("name", ["loops", "chunks of rows"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    check(fused(spread, name), spread, randn(3, 61, dtype=dtype))


@pytest.mark.parametrize("name", ["loops", "chunks", "chunks of rows"])
def test_columns_and_loops_within_loops(name: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.var(0), torch.logsumexp(x, 0)

    check(fused(fn, name), fn, randn(50, 33))
    check(fused(fn, name), fn, randn(50, 2, 17).transpose(1, 2))

    def inner(x: Tensor) -> tuple[Tensor, ...]:
        return x.var((0, 2)), torch.logsumexp(x, (0, 2))

    check(fused(inner, name), inner, randn(7, 3, 11))


@pytest.mark.parametrize("name", ["loops", "chunks", "chunks of rows"])
def test_drifting_elements(name: str) -> None:
    ramp, far = torch.linspace(-200, 200, 90), torch.full((90,), 1000.0)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.var(-1), torch.logsumexp(x, -1)

    for change in (ramp, -ramp, far, (torch.arange(90) > 60) * 1e4):
        check(fused(fn, name), fn, randn(3, 90) + change)


@pytest.mark.parametrize("name", CONFIGS)
def test_infinities_and_nan(name: str) -> None:
    x, infinity = randn(8, 70), float("inf")
    x[0] = -infinity
    x[1, :50] = -infinity
    x[2, 40:] = -infinity
    x[3, 0] = infinity
    x[4, -1] = infinity
    x[5, 30] = float("nan")
    x[6] = infinity
    x[7], x[7, -1] = -infinity, 2.5

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        peak = x.amax(-1, keepdim=True)
        return torch.logsumexp(x, -1), (x - peak).exp().sum(-1), x.var(-1)

    for ours, eager in zip(fused(fn, name)(x), fn(x), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-5, atol=1e-5)
