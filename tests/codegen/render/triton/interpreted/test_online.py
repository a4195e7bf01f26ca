"""Online reductions in Triton: looped, chunked, and with infinities and NaN."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.render.triton.tile_config import TileConfig
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build
from tests.codegen.compare import check_outcome
from tests.codegen.schedule.test_online import check_specials, four_of_rows, online, randn, specials, spread

CONFIGS = {
    "loops": TileConfig(2, 16),
    "one row": TileConfig(1, 8),
    "chunks": TileConfig(1, 8, chunks=4),
    "chunks of rows": TileConfig(4, 4, chunks=8),
    "groups": TileConfig(2, 64, warps=1),  # of four elements, which have a maximum together
    "chunks of groups": TileConfig(2, 32, warps=1, chunks=2),
    "whole": TileConfig(1, 1024),
}


def fused(fn: Callable[..., object], name: str) -> Function:
    config = CONFIGS[name]
    choose = functools.partial(build, choose=lambda form: config)
    return Function(fn, target=dataclasses.replace(TRITON, build=choose))


def check(fn: Callable[[Tensor], tuple[Tensor, ...]], name: str, x: Tensor) -> None:
    function = fused(fn, name)
    check_outcome(function, [x], gradient=False, least=float(x.abs().max()))
    assert set(online(function)) == {"exp", "squares"}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 97), (2, 130), (130,)])
def test_rows(name: str, shape: tuple[int, ...]) -> None:
    if shape == (1, 1):
        with pytest.warns(UserWarning, match="degrees of freedom"):
            assert fused(four_of_rows, name)(randn(1, 1) + 3)[0].isnan().all()
        return
    check(four_of_rows, name, randn(*shape) * 3 + 2)


@pytest.mark.parametrize("name", ["loops", "chunks of rows"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    check(four_of_rows, name, randn(3, 61, dtype=dtype))


@pytest.mark.parametrize("name", ["loops", "chunks", "chunks of rows"])
def test_columns_and_loops_within_loops(name: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.var(0), torch.logsumexp(x, 0)

    check(fn, name, randn(50, 33))
    check(fn, name, randn(50, 2, 17).transpose(1, 2))

    def inner(x: Tensor) -> tuple[Tensor, ...]:
        return x.var((0, 2)), torch.logsumexp(x, (0, 2))

    check(inner, name, randn(7, 3, 11))


@pytest.mark.parametrize("name", ["loops", "chunks", "chunks of rows"])
def test_drifting_elements(name: str) -> None:
    ramp, far = torch.linspace(-200, 200, 90), torch.full((90,), 1000.0)

    for change in (ramp, -ramp, far, (torch.arange(90) > 60) * 1e4):
        check(spread, name, randn(3, 90) + change)


@pytest.mark.parametrize("name", CONFIGS)
def test_infinities_and_nan(name: str) -> None:
    check_specials(fused(specials, name), 70)
