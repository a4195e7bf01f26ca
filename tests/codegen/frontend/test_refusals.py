"""Calls that torch's kernels refuse: a fused function raises the same error, and takes all other calls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import burnt
from burnt import _torch
from burnt.codegen.frontend.refusals import RefusalWatch
from burnt.codegen.frontend.trace import trace
from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

DTYPES = (torch.float32, torch.float16, torch.uint8, torch.int64, torch.bool)
SCALARS = (math.inf, math.nan, -1, 300, 1e9, 1e39, 2**40, True)

# Functions of a tensor and a number, which may be beyond what its dtype holds or what the op allows.
CALLS: dict[str, Callable[[Tensor, Any], Any]] = {
    "masked_fill": lambda x, s: x.masked_fill(x == 1, s),
    "masked_fill_": lambda x, s: x.clone().masked_fill_(x == 1, s),
    "masked_fill by a tensor": lambda x, s: x.masked_fill(x == 1, torch.tensor(s)),
    "clamp": lambda x, s: x.clamp(max=s),
    "clamp_min": torch.clamp_min,
    "hardtanh": lambda x, s: F.hardtanh(x, 0, s),
    "threshold": lambda x, s: F.threshold(x, 0, s),
    "where": lambda x, s: torch.where(x == 1, x, s),
    "full": lambda x, s: torch.full((2,), s, dtype=x.dtype),
    "full_like": torch.full_like,
    "new_full": lambda x, s: x.new_full((2,), s),
    "fill_": lambda x, s: x.clone().fill_(s),
    "pad": lambda x, s: F.pad(x, (1, 0), value=s),
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([0]), s),
    "scatter": lambda x, s: x.scatter(0, torch.tensor([0]), s),
    "setitem": lambda x, s: (y := x.clone(), y.__setitem__(0, s))[0],
    "add": lambda x, s: torch.add(x, x, alpha=s),
    "addcmul": lambda x, s: torch.addcmul(x, x, x, value=s),
    "sub": lambda x, s: s - x,
    "mul_": lambda x, s: x.clone().mul_(s),
    "floor_divide": lambda x, s: s // x,
    "leaky_relu": F.leaky_relu,
    "celu": F.celu,
    "nan_to_num": lambda x, s: torch.nan_to_num(x, s),
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(x, x, beta=s),
    "huber_loss": lambda x, s: F.huber_loss(x, x, delta=s),
    "bernoulli": lambda x, s: torch.bernoulli(x, s),
}


def error_of(fn: Callable[..., Any], *args: Any) -> str | None:
    try:
        fn(*args)
    except Exception as error:  # of any kind: another fused function must raise the same
        return f"{type(error).__name__}: {error}"
    return None


def is_refused(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether a trace would end: the call raises without memory, or is one that torch refuses."""
    watch = RefusalWatch()

    def watched(*fake: Any) -> Any:
        with watch:
            return fn(*fake)

    return error_of(_torch.fake_call, watched, args) is not None or watch.refusal is not None


@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_refused_where_torch_refuses_them(name: str) -> None:
    pairs = list(itertools.product(DTYPES, SCALARS))
    for dtype, scalar in pairs[list(CALLS).index(name) % 3 :: 3]:
        args = torch.ones(2, dtype=dtype), scalar
        error = error_of(CALLS[name], *args)
        assert is_refused(CALLS[name], *args) == (error is not None), (dtype, scalar, error)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "masked_fill": (lambda x: x.masked_fill(x == 0, -1e9), (torch.zeros(4).half(),)),
    "masked_fill by an argument": (CALLS["masked_fill"], (torch.zeros(4).half(), -(10**9))),
    "masked_fill by a tensor": (
        lambda x, s: x.masked_fill(x == 0, s),
        (torch.zeros(4).half(), torch.tensor(-1e9)),
    ),
    "where": (CALLS["where"], (torch.tensor([1, 200], dtype=torch.uint8), 300)),
    "clamp": (lambda x: x.clamp(max=300), (torch.tensor([1, 200], dtype=torch.uint8),)),
    "full_like": (lambda x: torch.full_like(x, math.nan), (torch.zeros(3).long(),)),
    "nothing to fill": (lambda x: x.masked_fill(x == 1, -1e9), (torch.zeros(0).half(),)),
    "a parameter out of range": (lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0), (torch.ones(3),)),
    "a parameter that is a divisor": (lambda x: F.celu(x, 0.0), (torch.ones(3),)),
    "a probability": (lambda x: torch.bernoulli(x, 2.0), (torch.ones(3),)),
    "no kernel for the dtype": (lambda x: F.leaky_relu(x, 1), (torch.ones(3).int(),)),
    "subtraction of a bool": (lambda x: True - x, (torch.ones(3),)),
}


@needs_compiler
@pytest.mark.parametrize("name", REFUSED)
def test_a_fused_function_raises_torchs_error(name: str) -> None:
    fn, args = REFUSED[name]
    copies = [[a.clone() if isinstance(a, Tensor) else a for a in args] for _ in range(2)]
    expected = error_of(fn, *copies[0])
    assert expected is not None
    assert error_of(Function(fn, always_generate=True), *copies[1]) == expected
    assert all(torch.equal(a, b) for a, b in zip(*copies, strict=True) if isinstance(a, Tensor))


def test_the_reason_names_the_call() -> None:
    fused = burnt.fuse(lambda x: x.masked_fill(x == 0, -1e9) * 2)
    assert fused.fallback_reason(torch.zeros(4).half()) == (
        "torch refuses a call in it: aten.masked_fill.Scalar: "
        "value cannot be converted to type c10::Half without overflow"
    )


@needs_compiler
def test_a_float_argument_is_limited_by_the_dtype() -> None:
    fused = Function(lambda x, s: x.masked_fill(x == 0, s) + s, always_generate=True)
    x = torch.zeros(4).half()
    for number in (-65504.0, 65504.0, math.inf, -math.inf, 0.5, 65504.5, -1e9):
        expected = error_of(fused.fn, x, number)
        assert (expected is None) == (abs(number) != 65504.5 and number != -1e9)
        assert error_of(fused, x, number) == expected
        if expected is None:
            assert torch.equal(fused(x, number), fused.fn(x, number))
    assert len(fused.cache_entries()) == 1  # for all of these numbers
    _, is_general = trace(lambda x, s: F.huber_loss(x, x, delta=s), (x, 1.0))
    assert not is_general  # 0 is refused, so one plan cannot take all numbers


@needs_compiler
def test_a_refused_number_keeps_no_other_from_a_plan() -> None:
    fused = Function(lambda x, s: x.masked_fill(x == 1, s), always_generate=True)
    x = torch.ones(4, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="without overflow"):
        fused(x, 1e9)
    assert "torch refuses a call in it" in str(fused.fallback_reason(x, 1e9))
    assert fused.fallback_reason(x, 5.0) is None
    assert fused(x, 5.0).tolist() == [5, 5, 5, 5]


@needs_compiler
def test_a_derivative_of_a_limited_number() -> None:
    def fn(x: Tensor, s: float) -> Tensor:
        return x.clamp(max=s).exp()

    grads = []
    for call in (fn, Function(fn, always_generate=True)):
        x = torch.arange(4.0, requires_grad=True)
        call(x, 1.5).sum().backward()
        assert error_of(call, x, 1e39) is not None
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_the_calls_draw_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert not is_refused(lambda x: torch.bernoulli(x, 0.5) + F.dropout(x) + torch.rand(3), torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_constant_of_the_function_has_its_value() -> None:
    x = torch.zeros(4).half()
    assert is_refused(lambda x: x.masked_fill(x == 0, torch.tensor(-1e9)), x)
    assert not is_refused(lambda x: x.masked_fill(x == 0, torch.tensor(-1e4)), x)


# What torch takes, and might not with small tensors.
TAKEN: dict[str, Callable[[Tensor], Any]] = {
    "a stride and groups": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, groups=2),
    "sizes": lambda x: F.layer_norm(x, (8, 8)) + F.group_norm(x, 3) + F.pixel_shuffle(x, 1),
    "a pooling window": lambda x: F.max_pool2d(x, 4) + F.adaptive_avg_pool2d(x, 2),
    "indices": lambda x: x.index_select(1, torch.tensor([5])).gather(0, torch.full((1, 1, 8, 8), 1)),
    "classes": lambda x: F.nll_loss(x, torch.full((2, 8, 8), 5)) + F.embedding(torch.tensor([7]), x[0, 0]),
    "a divisor": lambda x: x.long() // (x.long() + 1) + 7 % (x.long() + 1),
    "one element fewer": lambda x: F.pad(x, (-7, 0, 0, -7)).var() + x[..., :3].std(-1).sum(),
    "a factorization": lambda x: torch.linalg.solve(x[0, 0], x[0]) + torch.cholesky(x[0, 0]) + x[0].inverse(),
    "probabilities": lambda x: F.binary_cross_entropy(x, x) + torch.multinomial(x[0, 0], 2).sum(),
    "nothing": lambda x: F.softmax(x[:0], 0).sum() + x[:0].cumsum(1).sum(),
    "an infinite number": lambda x: x.half().masked_fill(x == 0, -math.inf) + torch.full_like(x, math.nan),
}


@pytest.mark.parametrize("name", TAKEN)
def test_nothing_is_refused_that_torch_takes(name: str) -> None:
    assert not is_refused(TAKEN[name], torch.ones(2, 6, 8, 8))


def test_a_call_with_a_large_result_takes_little_memory() -> None:
    assert not is_refused(lambda x: x + torch.zeros(1 << 40) + torch.arange(1 << 40), torch.ones(1))
