"""Conversions between bytes, seen as float8, and floats, in generated C and Metal: equal to torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from burnt.codegen import explain, fuse
from burnt.codegen.lower import elementwise as float8_lowerings
from tests.codegen.lower.test_integers import PRINTERS

FORMATS = torch.float8_e4m3fn, torch.float8_e5m2
CODES = torch.arange(256, dtype=torch.uint8)


def around_ties(float8: torch.dtype) -> Tensor:
    """Every float8 number, each middle between two neighbours, and the floats next to them; random floats."""
    numbers = CODES.view(float8).float()
    finite = numbers[numbers.isfinite()].sort().values.double()
    beyond = finite[-1] + (finite[-1] - finite[-2]) * torch.tensor([0.5, 1.0, 1.5])
    points = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, beyond, -beyond]).float()
    bits = points.view(torch.int32)[:, None] + torch.arange(-3, 4, dtype=torch.int32)
    random = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0))
    rest = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-45])
    return torch.cat([bits.view(torch.float32).flatten(), random.to(torch.int32).view(torch.float32), rest])


def same_bits(ours: Tensor, theirs: Tensor) -> None:
    """NaN may have any sign."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    is_nan = theirs.isnan()
    assert torch.equal(ours.isnan(), is_nan)
    assert torch.equal(ours[~is_nan], theirs[~is_nan])
    assert torch.equal(ours[~is_nan].signbit(), theirs[~is_nan].signbit())


def compiled_to_kernels(compiled: Callable[..., Any], fn: Callable[..., Any], *args: Tensor) -> Any:
    fused = compiled(fn)
    assert fused.fallback_reason(*args) is None
    assert "library" not in str(explain(fused, *args))
    return fused(*args)


@pytest.mark.sample(1)
@pytest.mark.parametrize("compiled", PRINTERS)
@pytest.mark.parametrize("float8", FORMATS, ids=str)
def test_all_codes(compiled: Callable[..., Any], float8: torch.dtype) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):

        def decode(codes: Tensor, dtype: torch.dtype = dtype) -> tuple[Tensor, Tensor]:
            return codes.view(float8).to(dtype), (codes.to(torch.int8).view(float8).to(dtype) * 2 + 1)

        ours, theirs = compiled_to_kernels(compiled, decode, CODES), decode(CODES)
        for a, b in zip(ours, theirs, strict=True):
            same_bits(a, b)


@pytest.mark.sample(1)
@pytest.mark.parametrize("compiled", PRINTERS)
@pytest.mark.parametrize("float8", FORMATS, ids=str)
def test_numbers_around_every_tie(compiled: Callable[..., Any], float8: torch.dtype) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    name = "float8_e4m3fn" if float8 == torch.float8_e4m3fn else "float8_e5m2"
    x = around_ties(float8)

    def encode(x: Tensor) -> Tensor:
        return x.to(float8).view(torch.uint8)

    ours = compiled_to_kernels(compiled, encode, x)
    same_bits(ours.view(float8).float(), x.to(float8).float())
    with np.errstate(all="ignore"):
        theirs = torch.from_numpy(x.numpy().astype(getattr(ml_dtypes, name)).astype("float32"))
    in_range = x.isnan() | (x.abs() < 464)  # beyond, e4m3 is NaN there, and in torch before 2.13
    in_range |= float8 == torch.float8_e5m2
    same_bits(ours.view(float8).float()[in_range], theirs[in_range])
    for dtype in (torch.bfloat16, torch.float16):
        narrow = x.to(dtype)
        ours = compiled_to_kernels(compiled, encode, narrow)
        same_bits(ours.view(float8).float(), narrow.to(float8).float())


def test_what_is_too_large_is_nan_where_torch_has_it_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8_lowerings, "_saturates", lambda: False)
    x = torch.tensor([464.0, 465.0, -1e9, torch.inf, 1.0])
    result = fuse(lambda x: x.to(torch.float8_e4m3fn).view(torch.uint8))(x)
    assert result.tolist() == [0x7E, 0x7F, 0x7F, 0x7F, 0x38]


@pytest.mark.sample(1)
@pytest.mark.parametrize("compiled", PRINTERS)
def test_views_between_the_conversions(compiled: Callable[..., Any]) -> None:
    x = torch.randn(6, 8)

    def there_and_back(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = x.to(torch.float8_e4m3fn)
        rows = small.t()[1:5].reshape(4, 2, 3).float().amax(-1)
        return rows, small.to(torch.float8_e5m2).view(torch.int8), small.view(torch.uint8) & 15

    ours = compiled_to_kernels(compiled, there_and_back, x)
    for a, b in zip(ours, there_and_back(x), strict=True):
        assert torch.equal(a, b)


def test_float8_tensors_in_memory_are_torchs() -> None:
    """Arguments, results, and what another op reads: no generated kernel loads or stores them."""
    x = torch.randn(300)

    def fn(x: Tensor, small: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = (x * 2).to(torch.float8_e4m3fn)
        return result, result.float() + 1, small.float() * 3

    small = x.to(torch.float8_e5m2)
    for a, b in zip(fuse(fn)(x, small), fn(x, small), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.float(), b.float())


def test_views_of_bytes_share_memory() -> None:
    x = torch.arange(8, dtype=torch.uint8)
    y = fuse(lambda x: x.view(torch.int8))(x)
    x += 250
    assert torch.equal(y, x.view(torch.int8))
