"""Sums that need the largest element or the mean, taken in one pass with it: which, and what they come to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.codegen import explain, fuse
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel, OnlineReduction
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.schedule.capabilities import OnlineThresholds
from tests.codegen.compare import check_outcome, judge, randn
from tests.codegen.programs import program

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

ALWAYS = dataclasses.replace(C, online_thresholds=OnlineThresholds())
NEVER = dataclasses.replace(C, online_thresholds=None)


def online(function: Function) -> list[str]:
    """The kinds of sums in the plan that share a pass."""
    (entry,) = function._entries.values()
    assert entry.forward is not None
    steps = [s for k in entry.forward.plan.steps if isinstance(k, Kernel) for s in k.steps]
    return [step.kind for step in steps if isinstance(step, OnlineReduction)]


def check(fn: Callable[..., Any], *args: Tensor, gradient: bool = False) -> list[str]:
    """Compare a function, its sums joined, with float64 and eager torch; the kinds of these sums."""
    function = Function(fn, target=ALWAYS)
    check_outcome(function, args, gradient=gradient)
    return online(function)


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.var(-1), torch.logsumexp(x, -1)


def check_specials(function: Function, length: int) -> None:
    """Rows with infinities and NaN, in rows and in columns of memory."""
    x, infinity = randn(8, length), float("inf")
    x[0] = -infinity
    x[1, : length // 2] = -infinity
    x[2, length // 2 :] = -infinity
    x[3, 0] = infinity
    x[4, -1] = infinity
    x[5, 30] = float("nan")
    x[6] = infinity
    x[7], x[7, -1] = -infinity, 2.5
    for given in (x, x.T.contiguous().T):
        torch.testing.assert_close(function(given), function.fn(given), equal_nan=True, rtol=1e-5, atol=1e-5)


def specials(x: Tensor) -> tuple[Tensor, ...]:
    peak = x.amax(-1, keepdim=True)
    return torch.logsumexp(x, -1), (x - peak).exp().sum(-1), x.var(-1)


def four_of_rows(x: Tensor) -> tuple[Tensor, ...]:
    return *spread(x), torch.softmax(x, -1), x.mean(-1)


# --- which sums -------------------------------------------------------------------------------------------


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (lambda x: torch.logsumexp(x, -1), ["exp"]),
        (lambda x: torch.log_softmax(x, -1), ["exp"]),
        (lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1), ["exp"]),
        (lambda x: (x * 2 - (x * 2).max(-1, keepdim=True).values).exp().sum(-1), ["exp"]),
        (lambda x: x.var(-1), ["squares"]),
        (lambda x: (x - x.mean(-1, keepdim=True)).square().mean(-1), ["squares"]),
        (lambda x: F.layer_norm(x, (300,)), ["squares"]),
        (spread, ["squares", "exp"]),
        # The exponentials are stored, so that the sum of them is free.
        (lambda x: torch.softmax(x, -1), []),
        # Neither the largest element of what is summed, nor its mean.
        (lambda x: (x - x.amin(-1, keepdim=True)).exp().sum(-1), []),
        (lambda x: (x - x.square().amax(-1, keepdim=True)).exp().sum(-1), []),
        (lambda x: (x - x.sum(-1, keepdim=True) / 299).square().sum(-1), []),
        (lambda x: (x - x.amax(0)).exp().sum(-1), []),
    ],
)
def test_sums_that_share_a_pass(fn: Callable[[Tensor], Any], kinds: list[str]) -> None:
    assert sorted(check(fn, randn(40, 300))) == sorted(kinds)


def test_cross_entropy_reads_its_logits_once() -> None:
    function = fuse(F.cross_entropy)
    function(randn(64, 4000), torch.arange(64) * 30)
    assert online(function) == ["exp"]
    (entry,) = function._entries.values()
    text = next(iter(entry.forward.texts.values()))  # type: ignore[union-attr]
    # Both loops of a block, and the label's own logit.
    assert text.count("for (int64_t block") == 1
    assert text.count("b0[") == 3


def test_short_rows_of_squares_and_of_exponentials_take_two_passes() -> None:
    for fn, shape in (lambda x: x.var(-1), (64, 1024)), (lambda x: torch.logsumexp(x, -1), (64, 32)):
        function = fuse(fn)
        function(randn(*shape))
        assert online(function) == []


def test_an_explanation_names_them() -> None:
    (step,) = explain(lambda x: torch.logsumexp(x, -1), randn(4, 4000), timed=False).steps
    assert "online sum" in step.ops
    assert {"sub", "exp"} <= set(step.ops)


# --- what they come to ------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 2), (5, 511), (7, 513), (3, 1024), (2, 2049), (20, 3001), (2, 70_001)])
def test_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Shorter than a part, of several, and cut for the threads."""
    assert check(spread, randn(*shape, dtype=dtype) + 3) == ["squares", "exp"]


@pytest.mark.parametrize("shape", [(5, 511), (3, 2049), (2, 70_001)])
def test_rows_in_double(shape: tuple[int, ...]) -> None:
    x = randn(*shape, dtype=torch.float64) * 20 + 3
    for ours, theirs in zip(Function(spread, target=ALWAYS)(x), spread(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape", [(2, 8), (17, 64), (63, 65), (700, 100), (129, 1000), (33_000, 9)])
def test_columns(shape: tuple[int, ...]) -> None:
    x = randn(*shape) - 5
    kinds = check(lambda x: (x.var(0), torch.logsumexp(x, 0), x.argmax(0).float(), x.sum(0)), x)
    assert kinds == ["squares", "exp"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(5, 3, 7, 11), (3, 20, 40, 33), (2, 2, 300, 400)])
def test_loops_within_loops(shape: tuple[int, ...]) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.var((0, 2, 3)), torch.logsumexp(x, (0, 2, 3)), torch.logsumexp(x, (1, 2)), x.var()

    check(fn, randn(*shape))
    check(fn, randn(*shape).transpose(2, 3))
    check(fn, randn(*shape, seed=1)[..., ::2])


def test_chunks_without_elements() -> None:
    """A pass of 54,000 elements is cut along its longest loop, of 60, for 64 chunks."""
    check(lambda x: (x.var(), torch.logsumexp(x, (0, 1, 2))), (randn(60, 60, 60) + 7)[::2, ::2])


@pytest.mark.sample(3)
@pytest.mark.parametrize("fn", [torch.var, torch.logsumexp, torch.log_softmax])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients(fn: Callable[..., Tensor], axis: int) -> None:
    assert check(lambda x: fn(x, axis), randn(130, 1100), gradient=True)


def test_losses_and_norms_with_gradients() -> None:
    targets = torch.arange(70) * 13
    targets[[3, 9]] = -100
    check(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), randn(70, 1200), targets, gradient=True)
    check(lambda x: F.layer_norm(x, x.shape[1:]), randn(70, 1200), gradient=True)
    check(lambda x: F.batch_norm(x, None, None, training=True), randn(6, 5, 40, 40), gradient=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(9, 5000), (2, 200_000), (5000, 40)])
def test_elements_that_drift(shape: tuple[int, ...]) -> None:
    """Each part has another mean, and a larger or smaller maximum, than all before it."""
    axis = 0 if shape[0] > shape[1] else 1
    length = shape[axis]
    ramp = torch.linspace(-40, 40, length).unsqueeze(1 - axis)
    step = (torch.arange(length) > length // 2).float().unsqueeze(1 - axis) * 1000

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.var(axis), torch.logsumexp(x, axis)

    for change in (ramp, -ramp, step, -step, torch.full((1,), 3e4)):
        check(fn, randn(*shape) + change)
    # Far apart, and beyond float32's exponentials.
    check(fn, randn(*shape) * 1e15)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(12, 3000), (12, 40_000), (3000, 40), (70_000, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinities_and_nan(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    axis = 0 if shape[0] > shape[1] else 1
    x = randn(*shape, dtype=dtype) * 30
    rows = x if axis else x.T
    length = rows.shape[1]
    infinity, nan = float("inf"), float("nan")
    rows[0] = -infinity
    rows[1, : length // 2] = -infinity
    rows[2, length // 2 :] = -infinity
    rows[3, 0] = infinity
    rows[4, -1] = infinity
    rows[5, [0, -1]] = nan
    rows[6, length // 2] = nan
    rows[7] = infinity
    rows[8, : length // 2], rows[8, -1] = -infinity, infinity
    rows[9], rows[9, -1] = -infinity, nan
    rows[10], rows[10, -1] = -infinity, 2.5

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        peak = x.amax(axis, keepdim=True)
        return torch.logsumexp(x, axis), (x - peak).exp().sum(axis), x.var(axis), torch.log_softmax(x, axis)

    ours, others = Function(fn, target=ALWAYS), Function(fn, target=NEVER)
    for found, twice, eager in zip(ours(x), others(x), fn(x), strict=True):
        torch.testing.assert_close(found, twice, equal_nan=True, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found, eager, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert sorted(online(ours)) == ["exp", "exp", "exp", "squares"]
    assert online(others) == []


def test_payloads_of_nan_are_not_lost() -> None:
    x = torch.zeros(2, 600)
    x.view(torch.int32)[0, 5] = 0x7FC00000 + 0x80  # which turns the exponent of a sum over
    x.view(torch.int32)[1, 5] = -(1 << 22) + 0x80
    result = Function(lambda x: (torch.logsumexp(x, -1), torch.logsumexp(x.T, 0)), target=ALWAYS)(x)
    assert all(bool(t.isnan().all()) for t in result)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, y = randn(3, 100_003), randn(50_000, 30)
    function = Function(lambda x, y: (*spread(x), *spread(y.T)), target=ALWAYS)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(function(x, y))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_elements_of_which_some_are_not_there() -> None:
    """Bodies that load under a test, and that look up."""
    x, places = randn(9, 2000), torch.arange(2000).flip(0)

    def fn(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        padded = F.pad(x, (3, 700), value=-1.0)
        return *spread(padded), *spread(x[:, places])

    check(fn, x, places, gradient=True)


# --- the gate ---------------------------------------------------------------------------------------------


def judged(seeds: range) -> None:
    for seed in seeds:
        judge(program(seed), functools.partial(Function, target=ALWAYS))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_random_programs() -> None:
    judged(range(700, 704))


@pytest.mark.sample(0, full=16)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(3000, 4000, 25))
def test_more_random_programs(first: int) -> None:
    """Of all of them 16, which BURNT_SEED draws."""
    judged(range(first, first + 25))
