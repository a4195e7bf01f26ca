"""Cumulative ops compared with torch, along every axis; and what is fused with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import Function, fuse
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.compiled_plan import CompiledPlan

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def values(*shape: int, odd: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2).round() / 2
    if odd and x.numel() > 30:
        flat = x.view(-1)
        flat[5] = flat[11] = math.nan
        flat[14:16] = -math.inf
        flat[20] = math.inf
    return x.to(dtype)


def same(fn: Callable[..., Any], x: Tensor, rtol: float = 1e-5) -> CompiledPlan:
    fused = fuse(fn)
    torch.testing.assert_close(fused(x), fn(x), equal_nan=True, rtol=rtol, atol=rtol)
    plan = fused.plan(x)
    assert plan is not None, fused.fallback_reason(x)
    return plan


def kinds(plan: CompiledPlan) -> list[str]:
    return [s.kind if isinstance(s, Kernel) else str(s.node.target) for s in plan.plan.steps]


def every(x: Tensor, axis: int) -> list[Tensor]:
    return [
        x.cumsum(axis), (x * 0.7).cumprod(axis), *x.cummax(axis), *x.cummin(axis), x.logcumsumexp(axis),
        *x.flip(axis).cummax(axis),
    ]  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 9), (33, 7), (70, 41), (3, 17, 20), (2, 3, 1)])
def test_every_scan_along_every_axis(shape: tuple[int, ...]) -> None:
    def all_of(x):
        return [result for axis in range(max(x.dim(), 1)) for result in every(x, axis)]

    same(all_of, values(*shape, odd=True))


@pytest.mark.parametrize("axis", [0, 1])
def test_scans_on_several_threads(axis: int) -> None:
    same(lambda x, axis=axis: every(x, axis), values(517, 131))


@pytest.mark.sample
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]
)
def test_scans_of_other_dtypes(dtype: torch.dtype) -> None:
    x = values(20, 31).abs().to(dtype)

    def all_of(x, axis: int):
        more = [] if x.dtype == torch.bool else [*x.cummax(axis), *x.cummin(axis)]
        return [x.cumsum(axis), x.cumprod(axis), x.cumsum(axis, dtype=torch.float64), *more]

    for axis in (0, 1):
        same(lambda x, axis=axis: all_of(x, axis), x, rtol=1e-2 if dtype.itemsize == 2 else 1e-6)


def test_sums_run_in_double() -> None:
    x = torch.full((3, 200_000), 0.1)
    truth = x.double().cumsum(1)
    for fn, given, expected in (
        (lambda x: x.cumsum(1), x, truth),
        (lambda x: x.cumsum(0), x.t().contiguous(), truth.t()),
    ):
        assert (fuse(fn)(given).double() - expected).abs().max() <= 2e-7 * truth.max()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[::2, 1::3],
    "expanded": lambda x: x[:1].expand(9, -1),
    "channels last": lambda x: x.reshape(2, 5, 7, 9).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scans_of_other_layouts(layout: str) -> None:
    x = LAYOUTS[layout](values(18, 35))
    result = fuse(lambda x: [x.cumsum(a) for a in range(x.dim())])(x)
    for axis, ours in enumerate(result):
        torch.testing.assert_close(ours, x.cumsum(axis), rtol=1e-5, atol=1e-5)
        assert ours.stride() == x.cumsum(axis).stride()


FUSED = {
    "what goes in": (lambda x: (x * 2 + 1).cumsum(0), ["scan"]),
    "what comes out": (lambda x: x.cumsum(1) * 2 - x, ["scan"]),
    "backwards": (lambda x: x.flip(0).cumsum(0).flip(0), ["scan"]),
    "two along one axis": (lambda x: (x.cumsum(1), (x * x).cumsum(1)), ["scan"]),
    "two of one element": (lambda x: x.cumsum(1) - x.cummax(1)[0], ["scan"]),
    "values and places": (lambda x: x.cummax(0), ["scan"]),
    "transposed": (lambda x: x.cumsum(0).t().contiguous(), ["scan"]),
    "of a scan": (lambda x: x.cumsum(1).cumsum(1), ["scan", "scan"]),
    "along two axes": (lambda x: x.cumsum(0) + x.cumsum(1), ["scan", "scan"]),
    "in both directions": (lambda x: x.cumsum(0) + x.flip(0).cumsum(0).flip(0), ["scan", "scan"]),
    "of which one is taken": (lambda x: x.cumsum(1)[:, -1] * 2, ["scan", "elementwise"]),
    "folded": (lambda x: x.cumsum(1).amax(0), ["scan", "reduction"]),
    "padded": (lambda x: F.pad(x.cumsum(1), (-1, 1)), ["scan", "elementwise"]),
    "shifted": (lambda x: x.cumsum(1).roll(1, 1), ["scan", "elementwise"]),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", FUSED)
def test_what_fuses_with_a_scan(name: str) -> None:
    fn, expected = FUSED[name]
    assert kinds(same(fn, values(37, 53))) == expected


def test_a_scan_of_what_is_normalised() -> None:
    same(lambda x: torch.softmax(x, -1).cumsum(-1), values(37, 53))
    same(lambda x: (x.cumsum(0), x.sum(0), x * 2), values(37, 53))


@pytest.mark.sample(1)
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients(axis: int) -> None:
    for fn in (
        lambda x: x.cumsum(axis),
        lambda x: x.cumprod(axis),
        lambda x: x.logcumsumexp(axis),
        lambda x: x.cummax(axis)[0] * 2,
        lambda x: x.cumsum(axis).tanh(),
    ):
        ours, theirs = (values(21, 33).requires_grad_() for _ in range(2))
        fused = fuse(fn)
        pull = values(21, 33)
        fused(ours).backward(pull)
        fn(theirs).backward(pull)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_sum_is_one_scan() -> None:
    x = values(21, 33).requires_grad_()
    fused = fuse(lambda x: x.cumsum(0))
    fused(x).sum().backward()
    plan = fused.plan(x)
    assert plan is not None
    (backward,) = plan.backward_plans.values()
    assert kinds(backward.plan) == ["scan"]


def test_a_long_running_product_is_differentiated_by_torch():
    fused = Function(lambda x: torch.cumprod(x, 0) * 2)
    x = (torch.rand(400, 3) + 0.5).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    result = fused(x)
    assert fused.plan(x) is not None
    result.sum().backward()
    fused.fn(twin).sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)
