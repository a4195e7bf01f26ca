"""Lowerings of reductions: values at the edges of a dtype's range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen import Function
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.stages import stages

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

DEVIATIONS: dict[str, Callable[[Tensor], Any]] = {
    "of all": lambda x: x.std(),
    "of rows": lambda x: x.std(1, keepdim=True),
    "of columns": lambda x: x.std(0, correction=0),
    "next to the mean": lambda x: torch.std_mean(x, 1),
    "in an expression": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_standard_deviation_whose_square_leaves_the_range_of_float32(name: str) -> None:
    fn = DEVIATIONS[name]
    fused = Function(fn, always_generate=True)
    values = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        for scale in (1e-30, 1e-23, 1.0, 1e20, 1e30):
            x = (values * scale).to(dtype)
            tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 2e-2, "atol": 0.0}
            for found, expected in zip(as_tuple(fused(x)), as_tuple(fn(x.double())), strict=True):
                assert found.dtype == dtype
                torch.testing.assert_close(found.double(), expected, **tolerance)
    assert fused.fallback_reason(x) is None


@pytest.mark.parametrize("scale", [1e-23, 1e20])
def test_the_gradient_of_such_a_standard_deviation(scale: float) -> None:
    x = (torch.arange(8.0) * scale).requires_grad_()
    fused = Function(lambda x: x.std(), always_generate=True)
    (found,) = torch.autograd.grad(fused(x), x)
    double = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(double.std(), double)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0.0)


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("target", ["triton", "metal"])
def test_a_standard_deviation_takes_no_float64_on_other_targets(target: str) -> None:
    source = stages(lambda x: x.std(-1), torch.ones(4, 8), target=target).source
    assert "float64" not in source
    assert "double" not in source


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "mean": torch.mean, "nansum": torch.nansum, "nanmean": torch.nanmean,
    "amax": torch.amax, "amin": torch.amin, "all": torch.all, "any": torch.any,
    "std": torch.std, "var": torch.var, "var_mean": torch.var_mean, "logsumexp": torch.logsumexp,
    "norm": torch.norm, "vector_norm": torch.linalg.vector_norm,
    "count_nonzero": lambda x, dim, keepdim: torch.count_nonzero(x, dim),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_over_no_axes(name: str) -> None:
    """all and any reduce none, the others all. A warning, as of a lowering that fails, is an error here."""
    reduction = REDUCTIONS[name]
    x = torch.tensor([[0.5, -0.0, 2.0], [torch.nan, 1.0, -1.0]])
    x = x.nan_to_num() if "nan" not in name else x
    for keepdim in False, True:

        def reduce(x: Tensor, keepdim: bool = keepdim) -> Any:
            return reduction(x, dim=(), keepdim=keepdim)

        fused = Function(reduce, always_generate=True)
        if name == "logsumexp" and not keepdim:
            continue  # torch's call fails
        torch.testing.assert_close(fused(x), reduce(x), equal_nan=True)
        if name in ("all", "any"):
            assert fused(x.byte()).dtype == torch.uint8
            torch.testing.assert_close(fused(x.byte()), reduce(x.byte()))
        elif name != "count_nonzero":
            leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
            pairs = zip((fused, reduce), leaves, strict=True)
            grads = [torch.autograd.grad(as_tuple(fn(leaf))[0].sum(), leaf) for fn, leaf in pairs]
            torch.testing.assert_close(*grads, equal_nan=True)


def test_two_passes_over_columns_each_read_what_is_computed_once_for_a_column() -> None:
    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.sum(0)
        return x * total.sin(), x[1:] + total.cos()

    x = torch.randn(18, 17)
    fused = Function(scaled, always_generate=True)  # a warning is an error here
    for found, expected in zip(fused(x), scaled(x), strict=True):
        torch.testing.assert_close(found, expected)
