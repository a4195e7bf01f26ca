"""How kernels go through memory: shared passes, scratch, sums next to rows, what a backward is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.codegen import fuse
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel, PartialSum
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from tests.codegen.compare import check_outcome, outcome, randn, source_of

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def kernels(plan: CompiledPlan) -> list[Kernel]:
    return [step for step in plan.plan.steps if isinstance(step, Kernel)]


def forward_of(function: Function) -> CompiledPlan:
    (entry,) = function._entries.values()
    assert entry.forward is not None
    return entry.forward


def backward_of(function: Function) -> CompiledPlan:
    (result,) = forward_of(function).backward_plans.values()
    return result.plan


def check(fn: Callable[..., Any], *args: Any, gradient: bool = True) -> Function:
    """Compare with float64: results, and gradients."""
    function = fuse(fn)
    check_outcome(function, args, gradient=gradient, ulps=8)
    return function


# --- passes and scratch -----------------------------------------------------------------------------------


def test_reductions_of_the_same_rows_share_a_pass() -> None:
    function = check(lambda x: (x.sum(-1), x.amax(-1), x.square().sum(-1)), randn(40, 300), gradient=False)
    (kernel,) = kernels(forward_of(function))
    assert [len(steps) for steps in kernel.passes() if steps[0].inner] == [3]
    (text,) = forward_of(function).texts.values()
    assert text.count("b0[") == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.sum(-1), x.amax(0)),
        lambda x: (x + 1, x.t() * 2),
        lambda x: (x.cumsum(0), x.cumsum(1)),
        lambda x: (torch.softmax(x, 0), torch.softmax(x, 1)),
        lambda x: (torch.stack([x, x], 1).logsumexp((1, 2)), torch.stack([x, x], 1).logsumexp((0, 1))),
    ],
    ids=["folds", "elements", "scans", "softmax", "axes"],
)
def test_a_square_has_the_kernels_of_any_other_matrix(fn: Callable[..., Any]) -> None:
    """Its columns are not rows because there are as many: read along them they were 5 times as slow."""
    square, other = (check(fn, randn(rows, 200), gradient=False) for rows in (200, 210))
    assert len(kernels(forward_of(square))) == len(kernels(forward_of(other)))


def test_the_gradients_of_a_square_batch_have_the_kernels_of_any_other() -> None:
    result = [check(layer_norm, randn(rows, 200), randn(200, seed=1), randn(200)) for rows in (200, 210)]
    square, other = ([k.kind for k in kernels(backward_of(each))] for each in result)
    assert square == other


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.sum(-1), x.flip(0).amax(-1)),
        lambda x: (x[::2].sum(-1), x[1::2].amax(-1)),
        lambda x: (x[:100].sum(-1), x[::2].amax(-1)),
        lambda x: (x.sum(0), x.flip(1).amax(0)),
        lambda x: (x.sum(-1), x.roll(1, 0).amax(-1)),
        lambda x: (x + 1, x.roll(1, 0) * 2),
    ],
    ids=["flipped", "steps", "part", "columns", "rolled", "elements"],
)
def test_rows_in_another_order_share_a_kernel(fn: Callable[..., Any]) -> None:
    function = check(fn, randn(200, 200), gradient=False)
    assert len(kernels(forward_of(function))) == 1


def test_an_expensive_value_is_computed_once() -> None:
    function = check(lambda x: (torch.softmax(x, -1),), randn(40, 300), gradient=False)
    (kernel,) = kernels(forward_of(function))
    (text,) = forward_of(function).texts.values()
    assert len(kernel.scratch) == 1
    assert text.count("exp_f32(") == 1
    # The sum is divided by once.
    assert "/" not in text.split("const float r1")[1].replace("1 / r1", "")


def test_a_row_that_no_scratch_holds_lies_in_the_result_meanwhile() -> None:
    function = check(lambda x: (torch.softmax(x, -1),), randn(3, 200_000), gradient=False)
    (kernel,) = kernels(forward_of(function))
    (text,) = forward_of(function).texts.values()
    assert not kernel.scratch
    assert text.count("exp_f32(") == 1


def test_what_holds_under_a_test_alone_is_not_kept() -> None:
    """Scratch is filled without the test: at the edges, that would read what is not there."""

    def fn(x):
        y = x.exp()
        return (F.pad(y, (3, 4)).sum(-1, keepdim=True) + F.pad(y, (3, 4), value=1.0),)

    (kernel,) = kernels(forward_of(check(fn, randn(40, 30), gradient=False)))
    assert not kernel.scratch
    check(lambda x: (torch.softmax(F.pad(x.exp(), (3, 4)), -1),), randn(40, 30), gradient=False)


@pytest.mark.sample(4)
@pytest.mark.parametrize("columns", [8, 9, 40, 64, 100, 1000, 1030])
@pytest.mark.parametrize("rows", [1, 15, 17, 700])
def test_columns_in_tiles(rows: int, columns: int) -> None:
    def fn(x):
        return x.sum(0), x.amax(0), x.argmin(0), torch.softmax(x, 0), x.var(0, correction=0), (x > 2).any(0)

    x = randn(rows, columns)
    for ours, theirs in zip(fuse(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(40_000, 12), (2, 50_001), (130, 3, 500)])
def test_few_long_reductions_are_split_among_threads(shape: tuple[int, ...]) -> None:
    x = randn(*shape)
    x.view(-1)[[5, 7777]] = 9.0
    for axis in range(len(shape)):

        def fn(x, axis=axis):
            return x.sum(axis), x.argmax(axis), x.amin(axis), torch.logsumexp(x, axis)

        for ours, theirs in zip(fuse(fn)(x), fn(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    flat = fuse(lambda x: (x.argmax(), x.argmin(), x.sum()))
    assert int(flat(x)[0]) == 5
    x.view(-1)[9000] = float("nan")
    assert int(flat(x)[0]) == 9000
    assert int(flat(x)[1]) == 9000


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, weight, bias = randn(513, 700), randn(700, seed=1), randn(700, seed=2)
    long = randn(3, 100_003)
    total, norm = fuse(lambda x: (x.sum(-1), x.sum())), fuse(layer_norm)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([*total(long), *outcome(norm, (x, weight, bias))])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


# --- what lies across -------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(64, 64), (65, 130), (33, 200), (3, 70, 129)])
def test_transposes_by_squares(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (randn(*shape) * 3).to(dtype)
    y = (randn(*shape, seed=1) * 3).to(dtype)

    def fn(x, y):
        return x.transpose(-1, -2).contiguous() == y.transpose(0, -1).transpose(0, -1).transpose(-1, -2)

    assert torch.equal(fuse(fn)(x, y), fn(x, y))
    flipped = fuse(lambda x: torch.where(x.mT != 0, x.mT, x.mT).contiguous())
    assert torch.equal(flipped(x), x.mT)
    padded = fuse(lambda x: F.pad(x.mT, (2, 3)).contiguous())
    if dtype != torch.bool:
        assert torch.equal(padded(x), F.pad(x.mT, (2, 3)))


# --- sums next to rows -------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 8), (33, 9), (1000, 130), (5, 40, 72)])
def test_a_norms_gradients_are_one_pass_and_a_small_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = (randn(*s, seed=i, dtype=dtype) for i, s in enumerate((shape, shape[-1:], shape[-1:])))
    function = check(layer_norm, x, weight, bias)
    big, small = kernels(backward_of(function))
    assert big.num_chunks == min(64, x.numel() // shape[-1] // 16)
    assert sum(isinstance(step, PartialSum) for step in big.steps) == 2
    assert all(b.shape[0] == big.num_chunks for b in small.buffers_read)


def test_sums_join_elementwise_kernels() -> None:
    fn = lambda a, w, b: F.relu(a * w + b)  # noqa: E731
    function = check(fn, randn(300, 70), randn(70, seed=1), randn(70, seed=2))
    assert [k.kind for k in kernels(backward_of(function))] == ["reduction", "reduction"]
    # With few rows they are not worth it.
    function = check(fn, randn(20, 70), randn(70, seed=1), randn(70, seed=2))
    assert not any(k.num_chunks for k in kernels(backward_of(function)))


@pytest.mark.full
def test_sums_of_squares_of_the_same_extents() -> None:
    check(layer_norm, randn(64, 64), randn(64, seed=1), randn(64, seed=2))
    check(lambda x, w: torch.softmax(x * w, -1), randn(48, 48, 48), randn(48, seed=1))
    check(lambda x, w: x.mT * w, randn(64, 64), randn(64, seed=1))


# --- what is saved ----------------------------------------------------------------------------------------


def test_statistics_are_saved() -> None:
    function = fuse(layer_norm)
    function(randn(100, 80), randn(80), randn(80))
    assert not forward_of(function).saved.nodes  # no gradients are wanted
    function = check(layer_norm, randn(100, 80), randn(80, seed=1), randn(80, seed=2))
    nodes = forward_of(function).saved.nodes
    assert sorted(tuple(n.meta["val"].shape) for n in nodes) == [(100, 1), (100, 1)]
    # The input is gone through for sums over its gradient alone, not for its mean and deviation.
    assert "rsqrt" not in source_of(backward_of(function)).partition("void layer_norm_backward_0")[2]


@pytest.mark.full
def test_an_extreme_is_saved_where_its_backward_finds_it() -> None:
    """Not of sums that are recomputed, and may be rounded otherwise: nothing would equal it."""

    def saved(fn: Callable[..., Any]) -> list[str]:
        return [str(n.target) for n in forward_of(check(fn, randn(40, 50))).saved.nodes]

    assert saved(lambda x: x.exp().amax(-1) * 3) == ["aten.amax.default"]
    assert saved(lambda x: x.cumsum(0).exp().amax() * 3) == []
    assert saved(lambda x: x.sum(-1).amax() * 3) == []
    assert saved(lambda x: x.cumsum(0).amax(-1, keepdim=True).neg().exp() * x) == ["aten.exp.default"]
    assert saved(lambda x: x.cumsum(0).amax(0).sum() * x) == ["aten.sum.default"]
    # What torch computes is in memory, and nothing is compared in the gradient of a softmax.
    assert saved(lambda x: (x @ x.mT).amax(-1) * 3) == ["aten.mm.default", "aten.amax.default"]
    assert "aten.amax.default" in saved(lambda x: F.layer_norm(x, x.shape[1:]).softmax(-1))


def test_sums_that_are_compared_with_their_extremes_are_in_memory() -> None:
    def rows(x, compare):
        values = x - x.mean(-1, keepdim=True)
        largest = values.amax(-1, keepdim=True)
        return values == largest if compare else values - largest

    counts = [len(fuse(rows).plan(randn(40, 50), compare).plan.steps) for compare in (False, True)]
    assert counts == [1, 2]


def test_results_of_torchs_own_calls_are_saved_but_for_those_that_are_returned() -> None:
    x, weight = randn(30, 20), randn(20, 40, seed=1)
    function = check(lambda x, w: F.gelu(x @ w), x, weight)
    assert [str(n.target) for n in forward_of(function).saved.nodes] == ["aten.mm.default"]

    def both(x, w):
        y = x @ w
        return y, F.gelu(y)

    assert not forward_of(check(both, x, weight)).saved.nodes


def test_a_result_may_be_changed_before_the_backward() -> None:
    x = randn(50, 60).requires_grad_()
    result = fuse(lambda x: torch.softmax(x, -1) * 2)(x)
    result.add_(1).sum().backward()
    assert x.grad is not None


@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "tanh", "sigmoid", "sqrt", "rsqrt", "softmax"])
def test_a_result_that_torch_keeps_is_lent(name: str, dtype: torch.dtype) -> None:
    fn = (lambda x: torch.softmax(x, -1)) if name == "softmax" else getattr(torch, name)
    function = check(fn, randn(50, 60).abs().add(0.5).to(dtype))
    assert forward_of(function).saved.reused_results == [0]
    # Neither the input nor a statistic is read: the gradient of the result and the result are.
    (kernel,) = kernels(backward_of(function))
    assert sorted(b.position for b in kernel.buffers_read) == [0, 2]
    assert "exp" not in source_of(backward_of(function)).partition("void ")[2].partition("backward_0(")[2]


def test_a_result_that_is_lent_must_not_be_changed() -> None:
    x = randn(50, 60).requires_grad_()
    result = fuse(torch.exp)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.add_(1).sum().backward()


def test_no_result_is_lent_that_would_be_one_more_tensor_to_read() -> None:
    x = randn(50, 60)
    assert forward_of(check(lambda x: (torch.tanh(x), x * x), x)).saved.reused_results == []
    assert forward_of(check(lambda x: torch.tanh(x) * 2, x)).saved.reused_results == []
    assert forward_of(check(lambda x: (torch.tanh(x), torch.exp(x)), x)).saved.reused_results == []
    assert forward_of(check(lambda x, y: (x * 2, torch.exp(y)), x, x)).saved.reused_results == [1]


def test_a_gradient_of_some_inputs_and_a_second_one() -> None:
    x, weight, bias = (
        t.requires_grad_() for t in (randn(50, 60).double(), randn(60).double(), randn(60).double())
    )
    function = fuse(layer_norm)
    for wanted in ([x], [weight], [x, bias]):
        ours = torch.autograd.grad(function(x, weight, bias).exp().sum(), wanted)
        theirs = torch.autograd.grad(layer_norm(x, weight, bias).exp().sum(), wanted)
        torch.testing.assert_close(ours, theirs)
    (first,) = torch.autograd.grad(function(x, weight, bias).exp().sum(), x, create_graph=True)
    (plain,) = torch.autograd.grad(layer_norm(x, weight, bias).exp().sum(), x, create_graph=True)
    torch.testing.assert_close(
        torch.autograd.grad(first.square().sum(), x), torch.autograd.grad(plain.square().sum(), x)
    )


# --- sums that pick ---------------------------------------------------------------------------------------


def test_the_gradient_of_cross_entropy_is_elementwise() -> None:
    x, targets = randn(70, 50), torch.arange(70) % 50
    targets[[3, 9]] = -100
    function = check(F.cross_entropy, x, targets)
    assert kernels(backward_of(function))[-1].kind == "elementwise"


@pytest.mark.parametrize("at", [-1, 0, 6, 7])
def test_a_sum_picks_what_is_there(at: int) -> None:
    def fn(x, places):
        hit = places[:, None] == torch.arange(7)
        return torch.where(hit, x[:, :1], 0.0).sum(-1), torch.where(hit, x[:, :1], 1.0).sum(-1)

    x, places = randn(20, 7), torch.full((20,), at)
    for ours, theirs in zip(fuse(fn)(x, places), fn(x, places), strict=True):
        torch.testing.assert_close(ours, theirs)
