"""Random numbers: distributions, independence, and reproducibility."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import fuse
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.schedule.scheduler import TorchCall
from tests.codegen.philox_reference import words

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

N = 200_000


def planned(fn: Callable[..., Any], *args: Any) -> Any:
    """Return a fused function, and check that its plan calls no torch op."""
    fused = fuse(fn)
    plan = fused.plan(*args)
    assert plan is not None, fused.fallback_reason(*args)
    assert not any(isinstance(step, TorchCall) for step in plan.plan.steps)
    return fused


def correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    return float((a * b).mean() / (a.std() * b.std())) * math.sqrt(a.numel())  # in standard deviations


# --- the stream -------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 41), (5, 1000), (100_003,), (2, 3, 5, 7)])
def test_the_stream_is_the_documented_one(shape: tuple[int, ...]) -> None:
    fused = planned(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.empty(shape))
    plan = fused.plan(torch.empty(shape))
    seed = torch.tensor([0x0123456789ABCDEF])
    for stream, result in enumerate(plan([torch.empty(shape)], [], seed)):
        expected = (words(int(seed), stream, result.numel()) >> np.uint64(8)).astype(np.float32) * 2.0**-24
        assert np.array_equal(result.flatten().numpy(), expected)


def test_the_stream_does_not_depend_on_layout_or_schedule() -> None:
    x = torch.zeros(37, 53)
    seed = torch.tensor([99])
    plain, through = (
        fuse(lambda x: torch.rand_like(x) + x).plan(x)([x], [], seed)[0],
        fuse(lambda x: (torch.rand_like(x).t() + x.t()).contiguous()).plan(x)([x], [], seed)[0],
    )
    assert torch.equal(plain, through.t())
    sliced = fuse(lambda x: torch.rand_like(x)[3:, ::2] * 1).plan(x)([x], [], seed)[0]
    assert torch.equal(plain[3:, ::2], sliced)
    total = fuse(lambda x: torch.rand_like(x).sum(0)).plan(x)([x], [], seed)[0]
    torch.testing.assert_close(plain.sum(0), total)


# --- distributions ----------------------------------------------------------------------------------------


def chi_square(counts: Tensor, expected: float) -> float:
    """Return the chi-square statistic, in standard deviations from its mean."""
    n = counts.numel() - 1
    return (float(((counts - expected) ** 2 / expected).sum()) - n) / math.sqrt(2 * n)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = planned(lambda x: torch.rand_like(x), torch.empty(N, dtype=dtype))(torch.empty(N, dtype=dtype))
    assert x.dtype == dtype
    assert float(x.min()) >= 0
    assert float(x.max()) < 1
    wide = x.double()
    assert abs(float(wide.mean()) - 0.5) < 0.005
    assert abs(float(wide.var()) - 1 / 12) < 0.002
    assert abs(chi_square(torch.histc(wide, 64, 0, 1), N / 64)) < 5
    for lag in (1, 2, 3, 4, 8, 16, 64, 1000):
        assert abs(correlation(wide[:-lag], wide[lag:])) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normal_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    fused = planned(lambda x: torch.randn_like(x), torch.empty(N, dtype=dtype))
    x = fused(torch.empty(N, dtype=dtype)).double()
    assert x.isfinite().all()
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.var()) - 1) < 0.02
    assert abs(float((x**3).mean())) < 0.03
    assert abs(float((x**4).mean()) - 3) < 0.1
    uniform = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    if dtype != torch.bfloat16:
        assert abs(chi_square(torch.histc(uniform, 64, 0, 1), N / 64)) < 5
    for lag in (1, 2, 3, 4):
        assert abs(correlation(x[:-lag], x[lag:])) < 5
        assert abs(correlation(x[:-lag] ** 2, x[lag:] ** 2)) < 5


def test_integers() -> None:
    torch.manual_seed(3)
    x = planned(lambda: torch.randint(-3, 7, (N,)))()
    assert x.dtype == torch.int64
    assert x.unique().tolist() == list(range(-3, 7))
    assert abs(chi_square(torch.bincount(x + 3), N / 10)) < 5
    like = torch.empty(1000, dtype=torch.int32)
    assert planned(lambda x: torch.randint_like(x, 5), like)(like).max() == 4
    wide = planned(lambda: torch.randint(0, 2**32, (N,)))()
    assert abs(float(wide.double().mean()) / 2**31 - 1) < 0.01


def test_shares() -> None:
    torch.manual_seed(4)
    p = torch.linspace(0, 1, 5)[:, None].expand(5, N)
    happened = planned(lambda p: torch.bernoulli(p), p)(p)
    for row, share in zip(happened, (0, 0.25, 0.5, 0.75, 1), strict=True):
        assert abs(float(row.mean()) - share) <= 5 * math.sqrt(share * (1 - share) / N)
    assert set(happened.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    x = torch.ones(N, dtype=dtype)
    y = planned(lambda x: F.dropout(x, 0.3), x)(x)
    assert abs(float((y == 0).double().mean()) - 0.3) < 0.006
    assert y.unique().tolist() == [0.0, float(torch.tensor(1 / 0.7, dtype=torch.float64).to(dtype))]
    dropped = (y == 0).double()
    for lag in (1, 2, 3, 4, 512, 1024):
        assert abs(correlation(dropped[:-lag], dropped[lag:])) < 5


def test_dropout_of_all_and_of_nothing() -> None:
    x = torch.randn(50)
    assert torch.equal(fuse(lambda x: F.dropout(x, 1.0) + 1)(x), torch.ones(50))
    assert torch.equal(fuse(lambda x: F.dropout(x, 0.0) + 1)(x), x + 1)
    assert torch.equal(fuse(lambda x: F.dropout(x, 0.5, training=False) + 1)(x), x + 1)
    with pytest.raises(ValueError, match="dropout probability"):
        fuse(lambda x: F.dropout(x, 1.5))(x)
    odd = torch.tensor([math.nan, math.inf])
    assert fuse(lambda x: F.dropout(x, 1.0))(odd).isnan().all()  # 0 * NaN, as in torch


# --- seeds ------------------------------------------------------------------------------------------------


def test_torchs_seed_gives_the_numbers_and_its_state_advances() -> None:
    x = torch.zeros(1000)
    fused = planned(lambda x: torch.rand_like(x), x)
    torch.manual_seed(7)
    first, second = fused(x), fused(x)
    torch.manual_seed(7)
    assert torch.equal(first, fused(x))
    assert not torch.equal(first, second)
    assert abs(correlation(first, second)) < 5


def test_each_op_has_a_stream_of_its_own() -> None:
    x = torch.zeros(N)
    a, b, c = planned(lambda x: (torch.rand_like(x), torch.rand_like(x), torch.randn_like(x)), x)(x)
    for one, two in ((a, b), (a, c), (b, c)):
        assert abs(correlation(one, two)) < 5
    for lag in (1, 2, 4):
        assert abs(correlation(a[lag:], b[:-lag])) < 5


def test_plans_without_random_numbers_draw_no_seed() -> None:
    before = torch.get_rng_state()
    fuse(lambda x: x + 1)(torch.zeros(3))
    assert torch.equal(before, torch.get_rng_state())


# --- gradients --------------------------------------------------------------------------------------------


def test_the_backward_drops_what_the_forward_dropped() -> None:
    x = torch.randn(64, 1000, requires_grad=True)
    fused = planned(lambda x: F.dropout(F.dropout(x * 2, 0.3).tanh(), 0.5), x)
    for _ in range(3):
        y = fused(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient == 0, (y == 0) | (gradient == 0))
        kept = y != 0
        inner = y.detach()[kept] / 2  # tanh of the inner dropout, which kept these
        expected = 2 * (1 - inner**2) * 2 / 0.7
        torch.testing.assert_close(gradient[kept], expected, rtol=1e-3, atol=1e-3)


def test_two_calls_keep_their_own_numbers() -> None:
    x = torch.ones(1000, requires_grad=True)
    fused = fuse(lambda x: F.dropout(x, 0.5))
    first, second = fused(x), fused(x)
    for result in (second, first):
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(gradient, result)


def test_random_factors_are_the_same_in_the_backward() -> None:
    x = torch.randn(500, requires_grad=True)

    def fn(x):
        scale = torch.randn_like(x)
        shift = torch.rand(500)
        return x * scale + shift, scale, torch.bernoulli(torch.sigmoid(x)) * x

    fused = planned(fn, x)
    y, scale, gated = fused(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.testing.assert_close(gradient, scale)
    (gradient,) = torch.autograd.grad(gated.sum(), x)
    torch.testing.assert_close(gradient, (gated != 0).float())


def test_second_derivatives_see_the_same_numbers() -> None:
    x = torch.randn(300, requires_grad=True)
    y = fuse(lambda x: F.dropout(x, 0.5) ** 3 * torch.rand_like(x))(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(first.detach() * x.detach(), 3 * y.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second * x.detach(), 2 * first.detach(), rtol=1e-4, atol=1e-5)


def test_what_torch_draws_itself_is_refused_with_gradients() -> None:
    x = torch.rand(20, requires_grad=True)
    fused = fuse(lambda x: x * torch.poisson(x.detach()))
    fused(x)
    assert "draws random numbers" in str(fused.fallback_reason(x))
    with torch.no_grad():
        assert fused.fallback_reason(x) is None


# --- kernels ----------------------------------------------------------------------------------------------


def test_dropout_and_what_is_around_it_are_one_kernel() -> None:
    x = torch.randn(37, 53)
    plan = fuse(lambda x: F.dropout(F.gelu(x), 0.1) + x).plan(x)
    assert [step.kind for step in plan.plan.steps if isinstance(step, Kernel)] == ["elementwise"]
    assert "philox_fill" in "".join(plan.texts.values())
