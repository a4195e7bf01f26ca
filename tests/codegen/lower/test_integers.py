"""Divisions, shifts and powers of integers on every target, also those that floats cannot represent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen import fuse
from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM

PRINTERS = [
    pytest.param(
        fuse, id="C", marks=pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
    ),
    pytest.param(
        lambda fn: Function(fn, target=METAL_SHIM),
        id="Metal",
        marks=pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with"),
    ),
]


def all_of_them(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    divisor, few = b | 1, b & 3
    divided = a // divisor, a % divisor, torch.div(a, divisor, rounding_mode="trunc"), torch.fmod(a, divisor)
    return *divided, a << few, a >> few, a**few, a // 7, a % 7


DTYPES = torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64


def of_wide_unsigned(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The operations that torch has for unsigned integers of more than 8 bits."""
    chosen = a & b, a | b, a != 5, a.to(torch.bool)
    wide = a.to(torch.int64) - 3, a.to(torch.int8), a.to(torch.float32) * 0.5
    narrow = (b.to(torch.float32) * 1e-6).to(a.dtype), torch.cat([a, b]), a[b.to(torch.int64) % len(a)]
    return a * b, a.sum(), a.view(20, -1).sum(1), a.cumsum(0), *chosen, *wide, *narrow


WIDE = torch.uint16, torch.uint32, torch.uint64


def unsigned_as_torch_has_them(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    source, bits = torch.Generator().manual_seed(0), torch.iinfo(dtype).bits
    a, b = (torch.randint(-(2**62), 2**62, (400,), generator=source) for _ in range(2))
    a[:4] = torch.tensor([-1, 0, 1, 5])  # the largest of each dtype
    a, b = (t.bitwise_and(2**bits - 1 if bits < 64 else -1).to(dtype) for t in (a, b))
    b[7:20] = a[7:20]
    fused = compiled(of_wide_unsigned)
    assert fused.fallback_reason(a, b) is None
    for i, (ours, theirs) in enumerate(zip(fused(a, b), of_wide_unsigned(a, b), strict=True)):
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist(), f"result {i}"


def as_torch_has_them(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    source, info = torch.Generator().manual_seed(0), torch.iinfo(dtype)
    a, b = (torch.randint(info.min, info.max, (400,), generator=source).to(dtype) for _ in range(2))
    a[:4] = torch.tensor([info.min, info.max, 0, 1]).to(dtype)
    fused = compiled(all_of_them)
    assert fused.fallback_reason(a, b) is None
    for i, (ours, theirs) in enumerate(zip(fused(a, b), all_of_them(a, b), strict=True)):
        assert torch.equal(ours, theirs), f"result {i}"


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compiled", PRINTERS)
def test_as_torch_has_them(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    as_torch_has_them(compiled, dtype)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("compiled", PRINTERS)
def test_a_choice_of_unsigned_numbers_where_torch_has_it(
    compiled: Callable[..., Any], dtype: torch.dtype
) -> None:
    """torch 2.11 raises; where eager torch raises, the fused function raises, too."""
    a, b = (torch.arange(6).add(start).to(dtype) for start in (0, 1))

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a & 1 == 0, a, b) & 3

    fused = compiled(choose)
    try:
        expected = choose(a, b)
    except NotImplementedError:
        with pytest.raises(NotImplementedError, match="where_cpu"):
            fused(a, b)
    else:
        assert expected.tolist() == [0, 2, 2, 0, 0, 2]
        assert fused.fallback_reason(a, b) is None
        assert fused(a, b).tolist() == expected.tolist()


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("compiled", PRINTERS)
def test_unsigned_as_torch_has_them(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    unsigned_as_torch_has_them(compiled, dtype)
