"""Pooling compared with torch: values, indices and gradients for all kinds of windows; and its schedules."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import fuse
from burnt.codegen.explanation import explain
from burnt.codegen.frontend.trace import trace
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.codegen.schedule.capabilities import Capabilities
from burnt.codegen.schedule.scheduler import TorchCall, schedule
from tests.codegen.compare import source_of

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


# Generate pooling also where torch's kernel is known to be faster.
GENERATED = dataclasses.replace(C, why_torch_call=lambda node: None)


def values(*shape: int, seed: int = 0, odd: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random numbers with ties; with `odd` also NaN and runs of -inf."""
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).round() / 3
    if odd and x.numel() > 20:
        flat = x.view(-1)
        flat[3] = flat[7] = flat[8] = math.nan
        flat[10:19] = -math.inf
    return x.to(dtype)


def same(fn: Callable[..., Any], x: Tensor, *, single: bool = True, rtol: float = 1e-5) -> CompiledPlan:
    """Compare a function of one tensor and its gradient with torch; return the plan without gradients."""
    ours, theirs = (x.detach().clone().requires_grad_(x.is_floating_point()) for _ in range(2))
    fused = Function(fn, target=GENERATED)
    result, alone, expected = fused(ours), fused(x.detach()), fn(theirs)
    result, alone, expected = (r if isinstance(r, tuple) else (r,) for r in (result, alone, expected))
    for a, b, c in zip(result, alone, expected, strict=True):
        for one in (a, b):
            torch.testing.assert_close(one, c, equal_nan=True, rtol=rtol, atol=rtol)
            assert one.stride() == c.stride()
    plans = fused.plan(ours), fused.plan(x.detach())
    for plan in plans:
        assert plan is not None, fused.fallback_reason(ours)
        assert not any(isinstance(step, TorchCall) for step in plan.plan.steps)
    if x.is_floating_point():
        pull = torch.randn(expected[0].shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        result[0].backward(pull)
        expected[0].backward(pull)
        torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True, rtol=10 * rtol, atol=10 * rtol)
        ((backward),) = plans[0].backward_plans.values()
        assert backward is not None
        assert not any(isinstance(step, TorchCall) for step in backward.plan.plan.steps)
    return plans[1]


def kinds(plan: CompiledPlan) -> list[str]:
    return [s.kind if isinstance(s, Kernel) else str(s.node.target) for s in plan.plan.steps]


MAXIMA = {
    "3s1p1": ((2, 3, 9, 40), (3, 1, 1)),
    "3s2p1": ((2, 3, 9, 41), (3, 2, 1)),
    "2s2": ((2, 3, 8, 10), (2, 2)),
    "5s2p2d2": ((1, 2, 23, 31), (5, 2, 2, 2)),
    "ceil": ((1, 2, 7, 12), (3, 2, 1, 1, True)),
    "other along each axis": ((1, 2, 13, 17), ((3, 2), (1, 3), (1, 0), (2, 1))),
    "stride beyond the kernel": ((1, 2, 13, 17), (2, 5)),
    "larger than the input": ((2, 2, 2, 3), (4, 1, 2)),
    "of one": ((2, 3, 5, 6), (1, 1)),
    "every second": ((2, 3, 5, 6), (1, 2)),
    "all of it": ((2, 3, 5, 6), ((5, 6), 1)),
    "without a batch": ((3, 9, 11), (3, 2, 1)),
    "one dimension": ((2, 3, 50), (3, 2, 1)),
    "one dimension, dilated": ((2, 3, 50), (3, 2, 1, 2, True)),
    "three dimensions": ((1, 2, 7, 8, 20), (3, 2, 1)),
    "three dimensions, uneven": ((1, 2, 7, 8, 9), ((2, 1, 3), 2, (1, 0, 1), (1, 1, 2), True)),
}


def max_pool(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d][_rank(x) - 1]
    return pool(x, *args[:4], ceil_mode=len(args) > 4, return_indices=True)


def _rank(x: Tensor) -> int:
    return {(3, 50): 1, (9, 11): 2}.get(tuple(x.shape[-2:]), x.dim() - 2)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MAXIMA)
def test_max_pool(name: str) -> None:
    shape, args = MAXIMA[name]
    same(lambda x, args=args: max_pool(x, *args), values(*shape, odd=True))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8])
def test_max_pool_of_other_dtypes(dtype: torch.dtype) -> None:
    x = values(2, 3, 9, 13).abs().mul(3).to(dtype)
    same(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x, rtol=1e-2)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda x: torch.cat([x, x], 3)[..., ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pools_of_other_layouts(layout: str) -> None:
    x = LAYOUTS[layout](values(2, 3, 12, 22, odd=True))
    for fn in (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    ):
        fused = fuse(fn)
        result, expected = fused(x), fn(x)
        assert fused.plan(x) is not None
        torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


MEANS = {
    "3s2": ((2, 3, 9, 41), (3, 2), {}),
    "padding counted": ((2, 3, 9, 40), (3, 1, 1), {}),
    "padding not counted": ((2, 3, 9, 40), (3, 1, 1), {"count_include_pad": False}),
    "ceil, padding counted": ((2, 3, 10, 41), (4, 3, 2), {"ceil_mode": True}),
    "ceil, not counted": ((2, 3, 10, 41), (4, 3, 2), {"ceil_mode": True, "count_include_pad": False}),
    "a divisor": ((2, 3, 10, 12), (3, 2, 1), {"divisor_override": 5}),
    "other along each axis": ((1, 2, 13, 17), ((3, 2), (1, 3), (1, 0)), {}),
    "stride beyond the kernel": ((1, 2, 13, 17), (2, 5), {}),
    "large": ((2, 3, 40, 50), (37, 3, 5), {"count_include_pad": False}),
    "one dimension": ((2, 3, 50), (4, 2, 1), {"count_include_pad": False}),
    "three dimensions": ((1, 2, 7, 8, 20), (3, 2, 1), {"divisor_override": 7}),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MEANS)
def test_avg_pool(name: str) -> None:
    shape, args, options = MEANS[name]
    pool = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][len(shape) - 3]
    same(functools.partial(lambda x, **options: pool(x, *args, **options), **options), values(*shape))


def test_avg_pool_of_16_bits_is_summed_in_32() -> None:
    x = values(2, 3, 20, 33, dtype=torch.bfloat16)
    result = fuse(lambda x: F.avg_pool2d(x, 5, 1, 2))(x)
    torch.testing.assert_close(result, F.avg_pool2d(x.float(), 5, 1, 2).bfloat16(), rtol=0, atol=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 10, 12), (5, 4)), ((2, 3, 10, 12), (3, 7)), ((2, 3, 7, 7), (1, 1)), ((2, 3, 5), (8,)),
        ((2, 3, 5), (3,)), ((3, 2, 5), (3, 2)), ((1, 2, 5, 6, 7), (2, 5, 9)), ((2, 2, 2, 3), (5, 3)),
    ],
)  # fmt: skip
def test_adaptive_pools(shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    mean = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d][len(size) - 1]
    largest = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d][len(size) - 1]
    same(lambda x, mean=mean, size=size: mean(x, size), values(*shape))
    same(
        lambda x, largest=largest, size=size: largest(x, size, return_indices=True), values(*shape, odd=True)
    )


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 6))]
)
def test_pools_of_random_windows(seed: int) -> None:
    chance = random.Random(seed)
    rank = chance.choice([1, 2, 2, 3])
    kernel = tuple(chance.randint(1, 4) for _ in range(rank))
    stride = tuple(chance.randint(1, 4) for _ in range(rank))
    padding = tuple(chance.randint(0, k // 2) for k in kernel)
    dilation = tuple(chance.choice([1, 1, 2]) for _ in range(rank))
    shape = (2, 2, *(chance.choice([9, 12, 13, 40]) for _ in range(rank)))
    pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d][rank - 1]
    args = kernel, stride, padding, dilation, chance.random() < 0.5, True
    same(lambda x, pool=pool, args=args: pool(x, *args), values(*shape, seed=seed, odd=True))
    mean = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][rank - 1]
    rest = kernel, stride, padding, args[4], chance.random() < 0.5
    same(lambda x, mean=mean, rest=rest: mean(x, *rest), values(*shape, seed=seed))


def test_gradient_from_given_indices() -> None:
    x = values(2, 3, 9, 13)
    out, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)

    def fn(pull, x, indices):
        return torch.ops.aten.max_pool2d_with_indices_backward(
            pull, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices
        )

    torch.testing.assert_close(fuse(fn)(out, x, indices), fn(out, x, indices))


# --- schedules --------------------------------------------------------------------------------------------


def test_a_pool_and_what_follows_are_one_kernel() -> None:
    assert kinds(same(lambda x: F.relu(F.max_pool2d(x * 2, 3, 2, 1)), values(2, 3, 9, 40))) == ["pooling"]
    assert kinds(same(lambda x: F.avg_pool2d(x, 3, 2) + 1, values(2, 3, 9, 40))) == ["pooling"]
    plan = same(lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1)), values(2, 3, 9, 40))
    assert kinds(plan) == ["pooling"]
    assert kinds(same(lambda x: F.max_pool1d(x, 3, 2, 1) * 2, values(2, 3, 50))) == ["elementwise"]


@pytest.mark.full
def test_pools_of_pools_and_of_costly_values_go_through_memory() -> None:
    plan = same(lambda x: F.max_pool2d(F.max_pool2d(x, 5, 1, 2), 5, 1, 2), values(2, 3, 9, 40))
    assert kinds(plan) == ["pooling", "pooling"]
    plan = same(lambda x: F.max_pool2d(torch.exp(x), 5, 1, 2), values(2, 3, 9, 40))
    assert kinds(plan) == ["elementwise", "pooling"]
    plan = same(lambda x: F.max_pool2d(torch.softmax(x, -1), 3, 1, 1), values(2, 3, 9, 40))
    assert kinds(plan) == ["reduction", "pooling"]


def test_reductions_of_pools() -> None:
    same(lambda x: F.max_pool2d(x, 3, 2, 1).sum((2, 3)), values(2, 3, 9, 40))
    same(lambda x: torch.softmax(F.avg_pool2d(x, 3, 2, 1), 1), values(2, 3, 9, 40))


@pytest.mark.parametrize("window", [(3, 2, 1), (5, 1, 2)])
def test_without_scratch_a_pool_is_one_kernel(window: tuple[int, int, int]) -> None:
    def fn(x):
        return F.relu(F.max_pool2d(x, *window))

    traced, _ = trace(fn, [values(2, 3, 9, 40)])
    plan = schedule(traced, [], Capabilities())
    assert [step.kind for step in plan.steps if isinstance(step, Kernel)] == ["elementwise"]


def test_loops_have_no_tests_in_the_middle() -> None:
    source = source_of(same(lambda x: F.max_pool2d(x, 3, 2, 1), values(2, 3, 9, 40)))
    body = source[source.rindex("\nvoid ") :]
    loops = body.split("#pragma omp simd")[1:]
    assert len(loops) == 2
    for loop in loops:
        assert "?" not in loop[: loop.index("}")]


def body_of(source: str, kernel: int = -1) -> str:
    return source.split("\nvoid ")[1:][kernel]


@pytest.mark.sample(2)
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2), (5, 3, 2), (3, 4), (5, 2, 2, 2), (3, 5, 1)])
def test_gradients_by_phases_of_the_stride(window: tuple[int, ...]) -> None:
    same(lambda x, window=window: F.max_pool2d(x, *window), values(2, 3, 21, 43, odd=True))
    same(lambda x, window=window: F.max_pool2d(x, *window), values(1, 8, 64, 80, odd=True))
    if len(window) < 4:
        same(lambda x, window=window: F.avg_pool2d(x, *window), values(1, 3, 24, 41))
    fused = Function(lambda x, window=window: F.max_pool2d(x, *window), target=GENERATED)
    body = body_of(source_of(backward_of(fused, values(1, 8, 64, 80).requires_grad_())))
    divides = "/" in body or " % " in body
    assert divides == (window[1] > 4)  # longer strides would need too much code


@pytest.mark.full
def test_a_row_is_prefetched_one_iteration_ahead() -> None:
    wide, narrow = (1, 2, 40, 200), (1, 2, 40, 100)
    for window in (3, 2, 1), (3, 1, 1), (2, 2), (5, 2, 2, 2):
        fn = lambda x, window=window: F.max_pool2d(x, *window)  # noqa: E731
        asked = [
            line for line in source_of(same(fn, values(*wide))).splitlines() if "__builtin_prefetch(" in line
        ]
        assert len(asked) == 1, window  # one range, gaps between its rows included
        assert "__builtin_prefetch(" not in source_of(same(fn, values(*narrow)))
    # Of rows 2 i - 1, 2 i and 2 i + 1, an iteration at stride 2 shares one with the next, which reads 2 more.
    fn = lambda x: F.max_pool2d(x, 3, 2, 1)  # noqa: E731
    (line,) = (x for x in source_of(same(fn, values(*wide))).splitlines() if "__builtin_prefetch(" in x)
    assert "p < 400; p += 16" in line
    assert "+ 399] + p" in line


@pytest.mark.full
def test_reductions_over_strided_rows_prefetch_the_next_row() -> None:
    by_channel = lambda x: x.square().mean((0, 2), keepdim=True) - x  # noqa: E731
    lines = source_of(same(by_channel, values(8, 40, 300))).splitlines()
    # Once, since the second pass finds them in the cache.
    (asked,) = (i for i, line in enumerate(lines) if "__builtin_prefetch(" in line)
    assert "+ 1 < 8) {" in lines[asked - 1]
    # Not for rows that are short or contiguous, or exceed the cache.
    for shape in (8, 40, 100), (8, 1, 300), (2, 3, 40000):
        assert "__builtin_prefetch(" not in source_of(same(by_channel, values(*shape)))


def test_output_rows_are_prefetched_while_exp_is_computed() -> None:
    def asked(*shape: int) -> list[str]:
        source = source_of(same(lambda x: torch.softmax(x, 1), values(*shape)))
        return [line for line in source.splitlines() if "__builtin_prefetch(" in line]

    (line,) = asked(6, 3000)
    assert "p = block; p < end; p += 16" in line
    assert line.endswith("__builtin_prefetch(&b1[i0 * 3000] + p, 1);")
    # Not for rows that are short, or exceed the cache.
    assert not asked(6, 100)
    assert not asked(2, 40000)


def test_wide_pools_by_columns() -> None:
    for x in values(1, 700, 2, 40).permute(0, 2, 3, 1), values(1, 40, 2, 700).transpose(1, 3):
        same(lambda x: F.max_pool2d(x, 3, 2, 1), x)


def test_scratch_begins_where_the_middle_does() -> None:
    for padding, first in ((1, 15), (2, 14)):
        fn = lambda x, p=padding: F.max_pool2d(x, 5, 2, p)  # noqa: E731
        assert f"local0[i2 + {first}] = " in source_of(same(fn, values(1, 2, 40, 64)))


# --- gradients of maxima ----------------------------------------------------------------------------------


def saved_dtypes(plan: CompiledPlan) -> list[torch.dtype]:
    """Return the dtypes of what a forward saves."""
    return [node.meta["val"].dtype for node in plan.saved.nodes]


def backward_of(fused: Function, x: Tensor) -> CompiledPlan:
    """Return the plan of the gradient of a function's first result."""
    result = fused(x)
    first = result[0] if isinstance(result, tuple) else result
    first.sum().backward()
    plan = fused.plan(x)
    assert plan is not None
    (backward,) = plan.backward_plans.values()
    return backward.plan


def test_taps_are_saved_for_the_gradient() -> None:
    x = values(2, 3, 10, 200).requires_grad_()
    fused = fuse(lambda x: F.relu(F.max_pool2d(x * 2, 3, 2, 1)))
    plan = fused.plan(x)
    assert saved_dtypes(plan) == [torch.int32]
    assert len(plan.kernels) == 1
    backward = backward_of(fused, x)
    assert kinds(backward) == ["elementwise"]
    assert "gt" not in source_of(backward)  # only indices are compared
    assert saved_dtypes(fused.plan(x.detach())) == []


def test_torch_scatters_where_it_is_faster() -> None:
    for shape, window in (((2, 3, 9, 40), (3, 2, 1)), ((2, 3, 9, 200), (5, 1, 2))):
        x = values(*shape).requires_grad_()
        fused = fuse(lambda x, window=window: F.max_pool2d(x, *window))
        assert kinds(backward_of(fused, x)) == ["aten.max_pool2d_with_indices_backward.default"]
        expected = x.grad
        assert saved_dtypes(fused.plan(x)) == [torch.int64]
        assert kinds(fused.plan(x)) == ["elementwise"]
        x.grad = None
        F.max_pool2d(x, *window).sum().backward()
        torch.testing.assert_close(x.grad, expected)
    text = str(explain(fused, x, timed=False))
    assert "torch scatters, which is faster than a generated gather here" in text


def test_an_argument_used_only_for_its_shape_is_not_computed() -> None:
    x = values(2, 3, 9, 40).requires_grad_()
    backward = backward_of(fuse(lambda x: F.max_pool2d(torch.tanh(x), 3, 2, 1)), x)
    pool = "aten.max_pool2d_with_indices_backward.default"
    assert kinds(backward) == ["aten.empty_strided.default", pool, "elementwise"]


def test_torch_serves_windows_of_uneven_sizes_with_gradients() -> None:
    x = values(2, 3, 10, 13)
    for pool in (F.adaptive_max_pool2d, F.adaptive_avg_pool2d):
        fused = fuse(lambda x, pool=pool: pool(x, 4) * 2)
        assert "aten" not in " ".join(kinds(fused.plan(x)))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        backward = backward_of(fused, ours)
        assert any(isinstance(step, TorchCall) for step in backward.plan.steps)
        (pool(theirs, 4) * 2).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert "windows of different sizes" in str(explain(fused, ours, timed=False)) or pool is None
    even = fuse(lambda x: F.adaptive_avg_pool2d(x, (5, 13)))
    assert kinds(backward_of(even, x.clone().requires_grad_())) == ["elementwise"]


def test_returned_indices_are_reused_by_the_gradient() -> None:
    x = values(2, 3, 10, 200).requires_grad_()
    for wanted in (slice(None), slice(1)):
        fused = fuse(lambda x, wanted=wanted: F.max_pool2d(x, 3, 2, 1, return_indices=True)[wanted])
        backward = backward_of(fused, x)
        plan = fused.plan(x)
        assert (saved_dtypes(plan), plan.saved.reused_results) == (
            ([], [1]) if wanted == slice(None) else ([torch.int32], [])
        )
        assert kinds(backward) == ["elementwise"]


@pytest.mark.full
def test_two_pools_of_one_tensor_save_their_own_taps() -> None:
    def fn(x):
        return F.max_pool2d(x, 3, 1, 1) * F.max_pool2d(x, 2, 1, 1)[..., :-1, :-1] + F.max_pool2d(x, 3, 1, 1)

    x = values(2, 3, 6, 200)
    same(fn, x)
    plan = Function(fn, target=GENERATED).plan(x.requires_grad_())
    assert saved_dtypes(plan) == [torch.int32, torch.int32]


def test_rows_in_scratch_that_some_iterations_do_not_write() -> None:
    """Padding after pooling: an iteration without a row loads another one, from the start of scratch."""
    same(lambda x: F.pad(F.max_pool2d(x, 3, 1, 1), (0, 1, 1, 1)), values(2, 3, 6, 200))


def test_a_view_beside_a_call_is_no_copy() -> None:
    x = values(2, 3, 100)
    fused = fuse(lambda x: F.adaptive_avg_pool1d(x, 3))
    steps = [step.node.target for step in fused.plan(x).plan.steps]
    aten = torch.ops.aten
    assert steps == [aten.unsqueeze.default, aten._adaptive_avg_pool2d.default, aten.squeeze.dim]
    torch.testing.assert_close(fused(x), F.adaptive_avg_pool1d(x, 3))
    assert [s.kind for s in explain(fused, x, timed=False).steps] == ["view", "library", "view"]
    both = fuse(lambda x: (x.unsqueeze(0), F.adaptive_avg_pool1d(x, 3)))
    result = both(x)[0]
    torch.testing.assert_close(result, x.unsqueeze(0))
