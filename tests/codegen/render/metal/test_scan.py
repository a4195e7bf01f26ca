"""Scans in Metal, run on the shim, compared with torch in every loop structure; what is fused with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.render.metal import kernel as metal_kernel
from tests.codegen.lower.test_scan import FUSED, every, kinds, values
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")

# Shape, axis, and what the source contains, and does not contain.
STRUCTURES: dict[str, tuple[tuple[int, ...], int, tuple[str, ...], tuple[str, ...]]] = {
    "columns": ((70, 41), 0, (), ("shuffle", "barrier")),
    "columns of several": ((3, 17, 20), 1, (), ("shuffle", "barrier")),
    "short rows": ((41, 13), 1, (), ("shuffle", "barrier")),
    "rows": ((37, 53), 1, ("shuffle_up", "at.x / 32"), ("barrier",)),
    "many long rows": ((35, 261), 1, ("shuffle_up", "at.x / 32"), ("barrier",)),
    "few long rows": ((3, 1029), 1, ("shuffle_up", "barrier", "at.x / 256"), ()),
    "few long columns": ((523, 9), 0, ("shuffle_up", "barrier", "at.x / 256"), ()),
    "one row": ((800,), 0, ("shuffle_up", "barrier"), ()),
}


def same(fused: Function, x: Tensor, *args: int, rtol: float = 1e-5) -> None:
    assert fused.fallback_reason(x, *args) is None
    torch.testing.assert_close(
        fused(x, *args), fused.__wrapped__(x, *args), equal_nan=True, rtol=rtol, atol=rtol
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows count as many from a number on that a test can afford."""
    monkeypatch.setattr(metal_kernel, "_MANY_ROWS", 30)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", STRUCTURES)
def test_every_scan_in_every_structure(name: str) -> None:
    shape, axis, contained, absent = STRUCTURES[name]
    fused = Function(every, target=METAL_SHIM)
    same(fused, values(*shape, odd=True), axis)
    plan = fused.plan(values(*shape), axis)
    assert plan is not None
    assert kinds(plan)[0] == "scan"
    (source,) = plan.texts.values()
    assert all(part in source for part in contained), source
    assert not any(part in source for part in absent), source
    # Finite elements only: shows values that a lane wrongly takes from others.
    same(fused, values(*shape), axis)


@pytest.mark.sample
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(5, 300), (300, 5)], ids=str)
def test_scans_of_other_dtypes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def all_of(x):
        more = [] if x.dtype == torch.bool else [*x.cummax(1), *x.cummin(1)]
        return [x.cumsum(1), x.cumprod(1), x.cumsum(1, dtype=torch.int32), *more]

    x = values(*shape).abs().to(dtype)
    x = x * 3_000_000_001 if dtype == torch.int64 else x
    same(Function(all_of, target=METAL_SHIM), x, rtol=2e-2 if dtype.itemsize == 2 else 1e-6)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [(2, 20_000), (40, 5_000), (5_000, 40)], ids=str)
def test_sums_are_compensated(shape: tuple[int, ...]) -> None:
    """Equal numbers are all rounded in the same direction, so errors of plain summation accumulate."""
    x, axis = torch.full(shape, 0.1), 0 if shape[0] > shape[1] else 1
    truth = x.double().cumsum(axis)
    found = Function(lambda x: x.cumsum(axis), target=METAL_SHIM)(x)
    assert float(((found - truth) / truth).abs().max()) <= 2**-23
    truth = x.double().logcumsumexp(axis)
    found = Function(lambda x: x.logcumsumexp(axis), target=METAL_SHIM)(x)
    assert float(((found - truth) / truth).abs().max()) <= 2**-21


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FUSED)
def test_what_fuses_with_a_scan(name: str) -> None:
    fn, expected = FUSED[name]
    fused = Function(fn, target=METAL_SHIM)
    same(fused, values(37, 53))
    plan = fused.plan(values(37, 53))
    assert plan is not None
    assert kinds(plan) == expected


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(21, 33), (2, 600)], ids=str)
def test_gradients(shape: tuple[int, ...]) -> None:
    def fn(x):
        return x.cumsum(1).tanh(), x.cumsum(0) * 2, x.logcumsumexp(1), x.cummax(1)[0]

    fused = Function(fn, target=METAL_SHIM)
    grads = []
    for run in (fn, fused):
        x = values(*shape).requires_grad_()
        results = run(x)
        grads.append(torch.autograd.grad(results, x, [values(*shape) for _ in results])[0])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    plan = fused.plan(values(*shape).requires_grad_())
    assert plan is not None
    assert all(isinstance(step, Kernel) for step in plan.plan.steps)


def test_a_third_shape_needs_no_compiler() -> None:
    fused = Function(lambda x: (x.cumsum(1), x.cummax(1)), target=METAL_SHIM)
    for columns in (300, 301):
        same(fused, values(5, columns))
    before = shim.shader.cache_info().misses
    same(fused, values(7, 411))
    assert shim.shader.cache_info().misses == before


def test_infinities_alone() -> None:
    for x in (torch.full((2, 40), -math.inf), torch.full((2, 40), math.inf)):
        same(Function(lambda x: (x.logcumsumexp(1), x.cumsum(1), x.cummax(1)), target=METAL_SHIM), x)


def test_the_rounding_error_is_rescaled_with_its_sum() -> None:
    x = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0)).repeat(1, 90)
    x[-1] = 20
    found = Function(lambda x: x.logcumsumexp(0), target=METAL_SHIM)(x)
    torch.testing.assert_close(found, x.double().logcumsumexp(0).float(), rtol=2e-7, atol=0)
