"""Divisions, shifts and powers of whole numbers on every printer, also where a float has too few digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen import fuse
from burnt.codegen.function import Function
from burnt.codegen.toolchain import find_compiler
from tests.codegen.metal import shim
from tests.codegen.metal.shim import METAL_SHIM

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


def as_torch_has_them(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    source, info = torch.Generator().manual_seed(0), torch.iinfo(dtype)
    a, b = (torch.randint(info.min, info.max, (400,), generator=source).to(dtype) for _ in range(2))
    a[:4] = torch.tensor([info.min, info.max, 0, 1]).to(dtype)
    made = compiled(all_of_them)
    assert made.why_plain(a, b) is None
    for i, (ours, theirs) in enumerate(zip(made(a, b), all_of_them(a, b), strict=True)):
        assert torch.equal(ours, theirs), f"result {i}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compiled", PRINTERS)
def test_as_torch_has_them(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    as_torch_has_them(compiled, dtype)
