"""What fuses, by kernels and kind; and that a fused function means what the plain one does, always."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch.utils._pytree import tree_leaves

from burnt import kernels
from burnt.codegen import Function, explain, function, fuse
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime import c_library
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.schedule.scheduler import TorchCall
from burnt.errors import CompileError, ConfigError, DefinitionError, FusionError
from tests import forked
from tests.codegen.compare import randn

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def steps(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The kind of each kernel, and the name of each call, of a fused function's forward."""
    result = fuse(fn).plan(*args)
    assert result is not None
    return [s.kind if isinstance(s, Kernel) else str(s.node.target) for s in result.plan.steps]


def same(fused: Any, plain: Any) -> None:
    torch.testing.assert_close(fused, plain, equal_nan=True)


def agree(fn: Callable[..., Any], *args: Any) -> None:
    """A fused function and the plain one: results, which of them require a gradient, and the gradients."""
    found = []
    for run in (fn, fuse(fn)):
        given = [a.clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]
        results = [r for r in tree_leaves(run(*given)) if isinstance(r, Tensor)]
        leaves = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
        terms = [(i + 1) * r.square().sum() for i, r in enumerate(results) if r.requires_grad]
        slopes = torch.autograd.grad(sum(terms), leaves, allow_unused=True) if terms else ()
        needed = [r.requires_grad for r in results], [slope is None for slope in slopes]
        found.append((needed, [r.detach() for r in results], [g for g in slopes if g is not None]))
    assert found[1][0] == found[0][0]
    same(found[1][1:], found[0][1:])


# --- what fuses -------------------------------------------------------------------------------------------


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def rms_norm(x, residual, weight):
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight, total


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def normalised_by_groups(x):
    grouped = F.layer_norm(x.reshape(2, 3, 2, 5, 7), (2, 5, 7))
    return F.relu(grouped).reshape(x.shape)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


FUSED = {
    "gelu": (gelu, (randn(37, 53),), ["elementwise"]),
    "gelu, transposed": (gelu, (randn(37, 53).t(),), ["elementwise"]),
    "softmax": (lambda x: torch.softmax(x, -1), (randn(37, 53),), ["reduction"]),
    "softmax over columns": (lambda x: torch.softmax(x, 0), (randn(37, 53),), ["reduction"]),
    "layer norm": (layer_norm, (randn(37, 53), randn(53), randn(53)), ["reduction"]),
    "rms norm and residual": (rms_norm, (randn(37, 53), randn(37, 53, seed=1), randn(53)), ["reduction"]),
    "swiglu": (swiglu, (randn(7, 64),), ["elementwise"]),
    "rotary": (rotary, (randn(2, 3, 5, 8), randn(5, 8), randn(5, 8, seed=1)), ["elementwise"]),
    "matmul, bias and relu": (
        lambda x, w, b: F.relu(x @ w + b),
        (randn(5, 7), randn(7, 3), randn(3)),
        ["aten.mm.default", "elementwise"],
    ),
    "linear and relu": (
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        (randn(5, 7), randn(3, 7), randn(3)),
        ["aten.t.default", "aten.addmm.default", "elementwise"],
    ),
    "cross entropy": (F.cross_entropy, (randn(50, 7), torch.arange(50) % 7), ["reduction", "reduction"]),
    "cross entropy of each row": (
        lambda x, y: F.cross_entropy(x, y, reduction="none", ignore_index=2),
        (randn(50, 7), torch.arange(50) % 7),
        ["reduction"],
    ),
    "cross entropy, weights": (
        F.cross_entropy,
        (randn(50, 7), torch.arange(50) % 7, randn(7).abs()),
        ["reduction", "reduction"],
    ),
    "a table looked up": (
        lambda i, w: F.gelu(F.embedding(i, w)),
        (torch.arange(12).reshape(3, 4), randn(50, 7)),
        ["elementwise"],
    ),
    "look-ups of look-ups": (
        lambda x, i: torch.softmax(x[i][:, i.argmax()[None]], 0),
        (randn(50, 7), torch.tensor([3, -1, 3])),
        ["reduction"],
    ),
    "groups of channels": (normalised_by_groups, (randn(2, 6, 5, 7),), ["reduction"]),
    "groups of channels, channels last": (
        normalised_by_groups,
        (randn(2, 5, 7, 6).permute(0, 3, 1, 2),),
        ["reduction"],
    ),
    "a softmax under another shape, twice": (
        lambda x: (torch.softmax(x, -1).flatten(), torch.softmax(x, -1).view(3, 2, 1, 7).unsqueeze(0)),
        (randn(6, 7),),
        ["reduction"],
    ),
    "max-pool and relu": (lambda x: F.relu(F.max_pool2d(x, 3, 2, 1)), (randn(2, 3, 9, 7),), ["pooling"]),
    "views alone": (lambda x: x.t().reshape(-1)[5::3].flip(0), (randn(37, 53),), ["elementwise"]),
    "several results": (lambda x: (x + 1, x * 2, x > 0), (randn(37, 53),), ["elementwise"]),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_fuses(name: str) -> None:
    fn, args, expected = FUSED[name]
    assert steps(fn, *args) == expected
    same(fuse(fn)(*args), fn(*args))


def test_single_refuses_what_takes_several_kernels() -> None:
    def two(x, w):
        return F.relu(x @ w)

    with pytest.raises(FusionError, match="two cannot be compiled to a single kernel") as error:
        fuse(two, single=True)(randn(3, 4), randn(4, 5))
    assert "aten.mm" in str(error.value)
    assert "burnt.explain shows" in str(error.value)
    assert "aten.mm" in str(explain(fuse(two, single=True), randn(3, 4), randn(4, 5)))
    same(fuse(gelu, single=True)(randn(9)), gelu(randn(9)))


# --- special values ---------------------------------------------------------------------------------------

SPECIAL = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, 0.5, 2.5, -2.5, 88.8, -104.0, 3e38
]  # fmt: skip
_UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac log log10
log1p log2 neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc isnan isinf
logical_not nan_to_num"""
_BINARY = """add sub mul div maximum minimum fmax fmin atan2 copysign pow fmod remainder eq ne lt le gt ge
floor_divide logical_and logical_or logical_xor"""
_ACTIVATIONS = """relu gelu silu softplus elu leaky_relu hardtanh hardswish hardsigmoid mish logsigmoid relu6
softshrink hardshrink celu selu"""
UNARY, BINARY, ACTIVATIONS = _UNARY.split(), _BINARY.split(), _ACTIVATIONS.split()
# Of 0.0 and -0.0 either may be the larger one, and torch's vector and scalar code differ.
_EITHER_ZERO = frozenset({"maximum", "minimum", "fmax", "fmin", "softshrink", "hardshrink"})


def assert_same(fused: Tensor, plain: Tensor, name: str) -> None:
    """Equal but for the last bits, and with the same signs of zeros where these are specified."""
    if name == "gelu":  # torch's float32 kernel has NaN at infinity, and infinity for 3e38
        fused, plain = fused[plain.isfinite()], plain[plain.isfinite()]
    torch.testing.assert_close(
        fused, plain, equal_nan=True, rtol=2e-6, atol=1e-44, msg=lambda m: f"{name}: {m}"
    )
    if fused.is_floating_point() and name not in _EITHER_ZERO:
        zero = (plain == 0) & (fused == 0)
        assert torch.equal(fused.signbit()[zero], plain.signbit()[zero]), f"{name}: the sign of a zero"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values_of_unary_operations(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    functions = [getattr(torch, n) for n in UNARY] + [getattr(F, n) for n in ACTIVATIONS]

    def all_of(x):
        return [fn(x) for fn in functions]

    for name, ours, theirs in zip(UNARY + ACTIVATIONS, fuse(all_of)(x), all_of(x), strict=True):
        assert_same(ours, theirs, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values_of_binary_operations(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)

    def all_of(a, b):
        return [getattr(torch, n)(a, b) for n in BINARY]

    a, b = x[:, None], x[None, :]
    for name, ours, theirs in zip(BINARY, fuse(all_of)(a, b), all_of(a, b), strict=True):
        assert_same(ours, theirs, name)


def test_special_values_of_reductions() -> None:
    x = torch.tensor(SPECIAL)
    # Rows: each value next to ordinary ones; columns: another walk through memory.
    wide = torch.stack([torch.cat([randn(70), x[i : i + 1], randn(29, seed=1)]) for i in range(len(x))])

    def all_of(x, axis: int):
        return (
            x.sum(axis), x.mean(axis), x.amax(axis), x.amin(axis), x.argmax(axis), x.argmin(axis),
            x.any(axis), x.all(axis), x.var(axis), torch.softmax(x, axis), torch.logsumexp(x, axis),
            x.prod(axis), x.max(),
        )  # fmt: skip

    for given in (wide, wide.t(), wide.t().contiguous()):
        for axis in (0, 1):
            for ours, theirs in zip(fuse(all_of)(given, axis), all_of(given, axis), strict=True):
                torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [0, 1, (0, 1), None])
def test_a_mean_beside_an_infinity(axes: int | tuple[int, int] | None) -> None:
    """It is infinite, from `var_mean` too, where torch's is NaN (but for rows that end in the infinity)."""
    x = randn(5, 7)
    x[2, 3] = -math.inf
    for fn in (torch.mean, lambda x, axes: torch.var_mean(x, axes)[1]):
        torch.testing.assert_close(fuse(lambda x, fn=fn: fn(x, axes))(x), torch.mean(x, axes))


@pytest.mark.sample
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "name", ["hardtanh", "relu6", "elu", "celu", "selu", "hardswish", "silu", "softplus"]
)
def test_gradients_at_the_edges_of_an_activation(name: str, dtype: torch.dtype) -> None:
    fn = getattr(F, name)
    edges = [math.nan, math.inf, -math.inf, -6.0, -3.0, -1.0, -0.0, 0.0, 0.1, 1.0, 3.0, 6.0]
    found = []
    for run in (fuse(fn), fn):
        # Repeated, as torch's loops over the rest of a vector differ.
        x = torch.tensor(edges * 16, dtype=dtype).requires_grad_()
        found += torch.autograd.grad(run(x), x, torch.full_like(x, 0.75))
    torch.testing.assert_close(*found, equal_nan=True)


def test_a_fault_of_the_compiler_is_reported_and_the_plain_function_runs(monkeypatch) -> None:
    def fail(*_):
        raise CompileError("generated code does not compile", found="no such instruction")

    monkeypatch.setattr(c_library, "load", fail)
    function, x = fuse(lambda x: x.sin() * 3), randn(5)
    with pytest.warns(
        RuntimeWarning, match="eager function(.|\n)*please report it(.|\n)*no such instruction"
    ):
        result = function(x)
    same(result, x.sin() * 3)
    assert "no such instruction" in function.fallback_reason(x)
    same(function(x), result)  # which is reported once
    monkeypatch.undo()
    function, x = fuse(lambda x: x.sin() * 5), randn(5).requires_grad_()
    result = function(x)
    monkeypatch.setattr(c_library, "load", fail)
    with pytest.warns(RuntimeWarning, match="'s backward runs as the eager function"):
        (gradient,) = torch.autograd.grad(result.sum(), x)
    same(gradient, x.cos() * 5)


# --- numbers ----------------------------------------------------------------------------------------------


def test_numbers_are_given_at_run_time() -> None:
    fused = fuse(lambda x, s: x * s + s)
    x = randn(5, 3)
    for s in (0.5, -2.0, 1e30, math.inf, math.nan):
        same(fused(x, s), x * s + s)
    assert len(fused._entries) == 1


@pytest.mark.parametrize(
    "fn",
    [lambda x, s: x * s if s > 0 else x - s, lambda x, s: x * (s * 2) + x / math.sqrt(abs(s))],
    ids=["inspected", "in arithmetic"],
)
def test_a_number_that_is_inspected_is_built_in(fn: Callable[..., Tensor]) -> None:
    fused, x = fuse(fn), randn(5)
    for s in (1.0, -1.0, 0.25, -0.25, 2.0, 1.0):
        same(fused(x, s), fn(x, s))
    assert len(fused.cache_entries()) == 5


def test_integers_and_flags_are_built_in() -> None:
    def fn(x, n, flag):
        return x.sum(n) if flag else x * n

    fused, x = fuse(fn), randn(5, 3)
    for n, flag in ((0, True), (1, True), (1, False), (3, False), (-1, True)):
        same(fused(x, n, flag), fn(x, n, flag))
    same(fused(x, 1.0, False), x)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: (x * 9).int().masked_fill(x > 0, s),
        lambda x, s: (x > 0).masked_fill(x > 1, s),
        lambda x, s: torch.full_like(x.int(), s) + x,
        lambda x, s: x.clamp(-abs(s), s * s),
        lambda x, s: x * int(s) + x * round(s, 1),
        lambda x, s: x**s,
        lambda x, s: F.leaky_relu(x, s),
        lambda x, s: torch.where(x > 0, x, s),
        lambda x, s: x + torch.tensor(s),
        lambda x, s: x * float(str(s)),
        lambda x, s: x.new_full((5,), s) * x,
        lambda x, s: x * {0.0: 2, 1.5: 3}.get(s, 4),
    ],
)
def test_numbers_made_something_else(fn: Callable[..., Tensor]) -> None:
    """An integer, a truth, a text: a plan for one number must not serve another."""
    fused, x = fuse(fn), torch.tensor([-1.5, 0.0, 0.5, 1.5, 2.0])
    for s in (2.5, 0.0, 1.5, -3.7):
        same(fused(x, s), fn(x, s))
        if not fn(x, s).is_floating_point():
            continue
        slopes = []
        for run in (fused, fn):
            y = x.clone().requires_grad_()
            slopes.append(torch.autograd.grad(run(y, s).sum(), y)[0])
        same(*slopes)


def _tried(x, s):
    try:
        k = int(s)
    except Exception:
        k = 1
    return x * k


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: x * abs(s),
        lambda x, s: x * math.fabs(s) + math.copysign(1, s),
        lambda x, s: x + s % (2 * math.pi),
        lambda x, s: x + s // 10.0,
        lambda x, s: x + math.fmod(s, 2),
        lambda x, s: x * 2 if math.isinf(s) else x,
        lambda x, s: x * 2 if math.isnan(s) else x,
        lambda x, s: x * float(np.clip(s, 0, 10)),
        lambda x, s: x * {0.5: 3.0}.get(s, 1.0),
        lambda x, s: x * (s in {0.5, 1.0}),
        lambda x, s: x * 2 if type(s) is float else x,
        lambda x, s: x * len(f"{s:.1f}"),
        lambda x, s: x * 2 if s.is_integer() else x,
        lambda x, s: x + s * 0.0,
        lambda x, s: (x, s),
        _tried,
    ],
)
def test_numbers_whose_uses_agree_for_most_values(fn: Callable[..., Any]) -> None:
    fused, x = fuse(fn), torch.tensor([1.0, 2.0, -3.0])
    for s in (0.3, 1.0, 7.0, -2.0, 17.0, math.inf, math.nan, 0.5, -0.0):
        try:
            plain = fn(x, s)
        except (ValueError, OverflowError) as error:  # the remainder of an infinity
            with pytest.raises(type(error)):
                fused(x, s)
            continue
        same(fused(x, s), plain)


def test_numbers_in_arithmetic_of_tensors_are_given_at_run_time() -> None:
    for fn in (
        lambda x, s: torch.where(x > s, x, s),
        lambda x, s: F.layer_norm(x, (5,), eps=s) * s + x.clamp(min=s),
        lambda x, s: F.softplus(x, s) + torch.addcmul(x, x, x, value=s),
    ):
        assert not fuse(fn).cache_entry(randn(5), 0.25).is_specialized


def test_whole_numbers_have_a_plan_each_and_then_none(monkeypatch):
    monkeypatch.setattr(function, "_MAX_INTEGER_VALUES", 4)
    fused, x = fuse(lambda x, k: x * k), randn(3)
    for k in range(8):
        same(fused(x, k), x * k)
    assert fused.fallback_reason(x, 3) is None
    assert "4 values of its integer arguments" in fused.fallback_reason(x, 7)
    assert fused.fallback_reason(randn(4), 7) is None  # another signature
    assert fused.fallback_reason(x, True) is None
    assert len(fused.cache_entries()) <= 8, "what is beyond takes no room"


def test_numbers_inspected_have_a_plan_each_and_then_none(monkeypatch) -> None:
    monkeypatch.setattr(function, "_MAX_FLOAT_VALUES", 4)

    def fn(x, s):
        return x * s if s > 0.5 else x - s

    fused, x = fuse(fn), randn(3)
    for k in range(6):
        same(fused(x, k / 6), fn(x, k / 6))
    assert fused.fallback_reason(x, 1 / 6) is None
    assert "more than 4 of them" in fused.fallback_reason(x, 0.95)
    assert "more than 4 of them" in fused.fallback_reason(randn(4), 0.95)
    # Other shapes are no other values, also where one that is beyond came first.
    for size in range(2, 9):
        assert fused.fallback_reason(randn(size), 1 / 6) is None, size


# --- gradients --------------------------------------------------------------------------------------------


def test_grad_modes() -> None:
    fused = fuse(gelu)
    x = randn(6).requires_grad_()
    assert fused(x).requires_grad
    with torch.no_grad():
        assert not fused(x).requires_grad
    with torch.inference_mode():
        result = fused(x)
        assert result.is_inference()
        same(result, gelu(x))
        same(fused(randn(6)), gelu(randn(6)))
    assert not fused(x.detach()).requires_grad
    assert fused(x).requires_grad


def test_second_derivatives() -> None:
    def fn(x, w):
        return torch.softmax(torch.tanh(x * w), -1)

    def penalty(run):
        x, w = (randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4), (4,)))
        (slope,) = torch.autograd.grad(run(x, w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, w))

    for ours, theirs in zip(penalty(fuse(fn)), penalty(fn), strict=True):
        same(ours, theirs)


def with_constants(x):
    return torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])) * x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def without_gradients_inside(x):
    with torch.no_grad():
        peak = x.exp()
    return x * peak, x.detach() * x, peak


def changed_in_place(x, y):
    result = x * 2
    result[1:] *= y[1:]
    result.mul_(y.sigmoid()).clamp_(max=1)
    result[..., 0] = x[..., 1]
    return result


GRADIENTS: list[Callable[..., Any]] = [
    with_constants,
    without_gradients_inside,
    lambda x: (x, x + 1),
    # What is not lowered:
    lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    lambda x: torch.linalg.inv(x[:, :4] + 3 * torch.eye(4)),
    lambda x: x[torch.tensor([1, 0, 2])] * 2,
    lambda x: x @ torch.ones(5),
    lambda x: (x * (x > 0)).prod(1),
    lambda x: (x * 0).std(1) + x.norm(),
    lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    lambda x: F.conv1d(x[None], torch.ones(2, 4, 3)) + 1,
    lambda x: x.sort(1).values.cumsum(0) * x.max(1, keepdim=True).values,
    lambda x: F.batch_norm(x, None, None, training=True),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("fn", GRADIENTS)
def test_gradients(fn: Callable[..., Any]) -> None:
    agree(fn, randn(4, 5).requires_grad_())


@pytest.mark.full
def test_gradients_of_some_inputs() -> None:
    args = [randn(4, 5), randn(5, seed=1), randn(4, 1, seed=2)]
    for mask in range(1, 8):
        needed = [arg.requires_grad_(bool(mask >> i & 1)) for i, arg in enumerate(args)]
        agree(lambda x, w, b: torch.tanh(x * w) + b, *needed)
    changed = randn(5, 4).requires_grad_(), randn(5, 4, seed=1).requires_grad_()
    agree(changed_in_place, *changed)
    assert fuse(changed_in_place).fallback_reason(*changed) is None
    for scale in (0.5, 3.0):
        agree(lambda x, s: torch.tanh(x * s) / s, randn(7).requires_grad_(), scale)


# --- in place, random, modes ------------------------------------------------------------------------------


def _swapped(x, y):
    """Each becomes what the other was."""
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def _kept_as_it_was(x, y):
    before = x.clone()
    x.add_(y)
    return before, x, x * 2


CHANGES: dict[str, tuple[Callable[..., Any], int]] = {
    "a sum": (lambda x, y: x.add_(y), 1),
    "a part": (lambda x, y: x[1:, ::2].mul_(y[1:, ::2]).sum(), 1),
    "a column": (lambda x, y: (x.t()[1].copy_(y[:, 0]), x + 1)[1], 1),
    "a diagonal": (lambda x, y: (x.diagonal().zero_(), y.fill_(2.0), None)[2], 2),
    "what was computed": (lambda x, y: torch.softmax(x * 2, 0).mul_(y).t_().add_(1), 0),
    "written piece by piece": (
        lambda x, y: (made := torch.empty_like(x), made[0].copy_(y[1]), made[1:].fill_(3.0))[0],
        0,
    ),
    "swapped": (_swapped, 2),
    "kept as it was": (_kept_as_it_was, 1),
    "through a mask": (lambda x, y: x.masked_fill_(y > 0, 0.0).clamp_(max=1), 1),
    "through look-ups": (lambda x, y: x.index_put_((torch.tensor([1, 3]),), y[:2]), 1),
}


@pytest.mark.sample
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("layout", ["plain", "transposed", "sliced"])
def test_arguments_changed_in_place(name: str, layout: str) -> None:
    fn, changed = CHANGES[name]
    fused = fuse(fn)

    def given() -> list[Tensor]:
        if layout == "transposed":
            return [randn(5, 5).t(), randn(5, 5, seed=1).t()]
        if layout == "sliced":
            return [randn(9, 9)[::2, 1::2][:, :4], randn(9, 9, seed=1)[::2, 1::2][:, :4]]
        return [randn(5, 4), randn(5, 4, seed=1)]

    ours, theirs = given(), given()
    versions = [t._version for t in ours]
    for _ in range(2):
        mine, his = fused(*ours), fn(*theirs)
        assert fused.fallback_reason(*given()) is None
        same(mine, his)
        same(ours, theirs)
    # A result is an argument where torch's is, and nothing else shares its memory.
    for result, expected in zip(*(r if isinstance(r, tuple) else (r,) for r in (mine, his)), strict=True):
        assert [result is t for t in ours] == [expected is t for t in theirs]
    assert sum(t._version > v for t, v in zip(ours, versions, strict=True)) == changed


def test_changes_that_the_plain_function_makes() -> None:
    """Gradients, shapes, views that are returned: what torch does, torch does."""
    fused, base = fuse(lambda x, y: x.add_(y)), randn(6)
    leaf = randn(6).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        fused(leaf, base)
    x, y = randn(6), randn(6).requires_grad_()
    fused(x, y).sum().backward()
    assert x.requires_grad
    same(y.grad, torch.ones(6))
    with pytest.raises(RuntimeError, match="written-to tensor"):
        fused(torch.zeros(1).expand(6), base)
    turned = fuse(lambda x: x.t_())
    z = randn(2, 3)
    turned(z)
    assert z.shape == (3, 2)
    viewed = fuse(lambda x: (x.add_(1), x.view(-1))[1])
    view = viewed(z.contiguous().clone())
    assert view._base is not None or view.shape == (6,)


UNCHANGED: dict[str, Callable[..., Any]] = {
    "a constant": lambda x: (x + 1, torch.tensor(0), torch.as_tensor([1.0, 2.0]), x.new_tensor([3])),
    "a cast constant": lambda x: (torch.tensor([1.0]).float(), torch.tensor([1]).to(torch.int64)),
    "rounded integers": lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x + 1),
    "nothing moved": lambda x: (x.flip([]), torch.view_copy(x, x.shape), torch.clone(x)),
    "turned twice": lambda x: (x.view(2, 3).clone().t().t(), x + 1, x + 1),
    "a call's output": lambda x: (s := x.sort(0).values, s.floor(), torch.clone(s)),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_results_that_equal_an_input_or_a_constant_are_new_memory(name: str) -> None:
    fused = fuse(UNCHANGED[name])
    x = torch.arange(6)
    for _ in range(2):
        results, expected = fused(x), UNCHANGED[name](torch.arange(6))
        for result, other in zip(results, expected, strict=True):
            assert torch.equal(result, other)
            assert result.dtype == other.dtype
            result.add_(1)
        assert torch.equal(x, torch.arange(6))
    assert fused.fallback_reason(x) is None


@pytest.mark.parametrize(
    "shape",
    [(0,), (3, 0), (0, 5, 2), (), (1,), (1, 1)],
    ids=lambda shape: "x".join(map(str, shape)) or "scalar",
)
def test_empty_and_tiny(shape: tuple[int, ...]) -> None:
    def fn(x):
        return gelu(x), x.sum(), x > 0, x.flatten()

    x = randn(*shape)
    for ours, theirs in zip(fuse(fn)(x), fn(x), strict=True):
        same(ours, theirs)


def test_empty_inside() -> None:
    def fn(x):
        return torch.cat([x[:0], x * 2]), x[:0].sum(), x[2:2]

    for ours, theirs in zip(fuse(fn)(randn(5)), fn(randn(5)), strict=True):
        same(ours, theirs)


def test_inputs_that_are_not_contiguous() -> None:
    whole = randn(6, 8, 10)
    fused = fuse(gelu)
    for x in (whole.permute(2, 0, 1), whole[::2, 1::3], whole[:, :1].expand(6, 8, 10), whole[0, 0, 3:]):
        same(fused(x), gelu(x))
        assert fused(x).stride() == gelu(x).stride()


def test_gradients_under_another_autocast_than_the_call() -> None:
    def fn(x, w):
        with torch.autocast("cpu", enabled=False):
            wide = x.float() @ w.float()
        return F.gelu(wide) + (x @ w).float()

    x, w = randn(4, 5), randn(5, 6)
    fused = fuse(fn)
    for around, inside in itertools.product([False, True], repeat=2):
        found = []
        for call in (fused, fn):
            given = [t.clone().requires_grad_() for t in (x, w)]
            with torch.autocast("cpu", torch.bfloat16, enabled=around):
                result = call(*given)
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                found.append([result, *torch.autograd.grad(result.square().sum(), given)])
        for ours, theirs in zip(*found, strict=True):
            assert ours.dtype == theirs.dtype
            rough = around or inside
            torch.testing.assert_close(
                ours, theirs, rtol=2e-2 if rough else 1e-5, atol=5e-2 if rough else 1e-5
            )


def test_inside_of_other_compilers_and_transforms() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    fused, x = fuse(gelu), randn(3, 5)
    same(torch.compile(lambda x: fused(x) + 1, backend="eager")(x), gelu(x) + 1)
    graph = make_fx(fused)(x)
    assert any("tanh" in str(node.target) for node in graph.graph.nodes)
    same(torch.vmap(fused)(x), gelu(x))
    same(torch.func.grad(lambda x: fused(x).sum())(x), torch.func.grad(lambda x: gelu(x).sum())(x))
    same(torch.func.jvp(fused, (x,), (x,)), torch.func.jvp(gelu, (x,), (x,)))

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return fused(super().forward(x))

    layer = Layer(5, 2)
    doubled = {name: p * 2 for name, p in layer.named_parameters()}
    same(
        torch.func.functional_call(layer, doubled, (x,)),
        gelu(F.linear(x, doubled["weight"], doubled["bias"])),
    )


def test_what_depends_on_values_runs_plain() -> None:
    def fn(x):
        return x * 2 if x.sum() > 0 else x - 1

    fused = fuse(fn)
    for x in (torch.ones(3), -torch.ones(3)):
        same(fused(x), fn(x))
    assert fused.fallback_reason(torch.ones(3)) == "it cannot be traced: it depends on a tensor's value"
    assert "depends on a tensor's values" in fuse(lambda x: x[x > 0]).fallback_reason(torch.ones(3))
    with pytest.raises(DefinitionError, match="the object to fuse is not callable"):
        fuse(3)
    same(fuse(lambda x: x[x > 0])(randn(9)), randn(9)[randn(9) > 0])
    with pytest.raises(RuntimeError, match="must match"):
        fuse(lambda x, y: x + y)(randn(3), randn(4))


@pytest.mark.full
def test_eight_threads_at_once() -> None:
    fused = fuse(lambda x, s: torch.softmax(gelu(x) * s, -1).sum(0))
    failed: list[BaseException] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            start.wait()
            for i in range(8):
                x = randn(3 + i % 2, 40, seed=seed * 100 + i)
                y = x.clone().requires_grad_()
                same(fused(x, 0.5 + seed), torch.softmax(gelu(x) * (0.5 + seed), -1).sum(0))
                z = x.clone().requires_grad_()
                fused(y, 0.5).square().sum().backward()
                torch.softmax(gelu(z) * 0.5, -1).sum(0).square().sum().backward()
                same(y.grad, z.grad)
        except BaseException as error:  # handed to the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_calls_of_torchs_own_take_what_kernels_made() -> None:
    def fn(x, w, s):
        matmul = torch.addmm(w[0], x, w, alpha=s)  # which takes the number, too
        return torch.cumsum(x * s, 0).sum(0) @ (w + 1), torch.sort(x + s).values, matmul

    x, w = randn(6, 5), randn(5, 4)
    fused = fuse(fn)
    for s in (0.5, 2.0):
        same(fused(x, w, s), fn(x, w, s))
    assert len(fused.cache_entries()) == 1
    result = fused.plan(x, w, 0.5)
    assert any(isinstance(step, TorchCall) for step in result.plan.steps)


class TestExplain:
    def test_names_kernels_ops_bytes_and_times(self):
        explanation = explain(lambda x: torch.softmax(x * 2, -1), torch.randn(40, 80))
        (step,) = explanation.steps
        assert (step.kind, step.bytes) == ("reduction", 2 * 40 * 80 * 4)
        assert {"mul", "exp", "sum", "max"} <= set(step.ops)
        assert step.seconds is not None
        assert 0 < step.seconds < 1
        assert "GB/s" in str(explanation)
        assert step.name in explanation.source(step.name)
        assert explanation.backward is None

    def test_is_json(self):
        reported = json.loads(json.dumps(explain(lambda x: x.cos() @ x, torch.randn(8, 8)).as_dict()))
        assert [s["kind"] for s in reported["steps"]] == ["elementwise", "library"]

    def test_where_nothing_is_computed(self) -> None:
        x = torch.randn(4, 4, requires_grad=True)
        for fn, arg in ((lambda x: x + 1, x), (lambda x: x, x), (lambda x: x, x.detach())):
            explanation = explain(fn, arg)
            assert all(step.seconds is not None for step in explanation.steps)
            assert "kernel" in str(explanation)
        assert explain(lambda x: x, x.detach()).steps == ()
        assert "kernel" in str(explain(lambda x: x + 1, torch.randn(0, 4)))
        x, weight = torch.randn(0, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        explanation = explain(lambda x, weight: (x @ weight).relu(), x, weight).backward
        assert explanation is not None
        assert all(step.seconds > 0 for step in explanation.steps)

    def test_says_why_the_plain_function_runs(self):
        held = [2.0]
        assert "captures a list" in str(explain(lambda x: x * held[0], torch.ones(2)))

    @pytest.mark.parametrize(
        ("target", "word"), [("c", "void "), ("triton", "@triton.jit"), ("metal", "kernel void ")]
    )
    def test_shows_kernels_for_devices_that_are_not_there(self, target, word, monkeypatch):
        monkeypatch.setattr(c_library, "load", lambda *args: pytest.fail("nothing is compiled to be shown"))
        x = torch.ones(40, 80).requires_grad_()
        explanation = explain(lambda x: torch.softmax(x * 2, -1), x, target=target)
        (step,) = explanation.steps
        assert word in explanation.source(step.name)
        assert explanation.backward is not None
        (step,) = explanation.backward.steps
        assert "backward" in step.name
        assert word in explanation.source(step.name)

    def test_an_unknown_target_is_named_with_those_that_exist(self):
        with pytest.raises(ConfigError, match="there is no target 'cobol'") as caught:
            explain(lambda x: x * 2, torch.ones(2), target="cobol")
        assert "c, triton, metal" in str(caught.value)

    def test_an_unknown_kernel_is_named_with_those_that_exist(self):
        explanation = explain(lambda x: x * 2, torch.ones(2))
        with pytest.raises(KeyError, match=r"no kernel 'other'; there are: _lambda__0"):
            explanation.source("other")


def test_views_of_folded_rows_lie_in_memory_as_torchs() -> None:
    for fn in (
        lambda x: torch.softmax(x, -1).t().unsqueeze(0),
        lambda x: torch.softmax(x, -1).view(2, 3, 7).unsqueeze(1),
        lambda x: torch.softmax(x, 0).t().reshape(-1),
    ):
        result, right = fuse(fn)(randn(6, 7)), fn(randn(6, 7))
        same(result, right)
        assert result.stride() == right.stride()


def test_a_negated_view_after_a_plain_tensor_of_its_layout():
    fused, x = fuse(lambda a: a * 2 + 1), torch.tensor([1.0, 2.0, 3.0])
    same(fused(x), x * 2 + 1)
    same(fused(torch._neg_view(x)), x * -2 + 1)
    for cotangent in (torch._neg_view(x), torch._efficientzerotensor(3)):
        leaf = x.clone().requires_grad_()
        (result,) = torch.autograd.grad(fused(leaf), leaf, cotangent)
        same(result, cotangent * 2)


@pytest.mark.filterwarnings("ignore:.*(beta|prototype) (state|stage)")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["csr", "coo", "nested"],
)
def test_what_has_no_strides_is_left_to_torch(make: Callable[[], Tensor]) -> None:
    x = make()
    fused = fuse(lambda x: x * 2)
    assert fused(x).layout == x.layout
    assert re.search("no strides|layout", fused.fallback_reason(x))


def test_an_input_that_no_result_is_made_of_has_no_gradient():
    def fn(x, y, z, i):
        return x * 2 + z.detach() * (y > 0) + x[i]

    x, y, z = (randn(4, seed=seed).requires_grad_() for seed in range(3))
    i = torch.arange(4)
    for run in (fn, fuse(fn)):
        run(x, y, z, i).sum().backward()
        assert y.grad is None
        assert z.grad is None
    weight = randn(4).requires_grad_()
    fuse(lambda x: x * 2 + weight.detach())(x).sum().backward()
    assert weight.grad is None


def test_a_process_made_while_a_plan_is_can_make_plans():
    code = """
import os, threading
from burnt.codegen.frontend.trace import PLANNING_LOCK
PLANNING_LOCK.acquire()
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
else:
    there = threading.Thread(target=PLANNING_LOCK.acquire, daemon=True)
    there.start()
    there.join(20)
    os._exit(there.is_alive())
"""
    done = forked.run(code, timeout=60)
    assert done.returncode == 0, done.stderr


def test_8_bit_floats_are_left_to_torch():
    x = randn(8).to(torch.float8_e4m3fn)
    fused = fuse(lambda x: ((x.to(torch.float32) * 2).sin(), x))
    assert steps(fused.fn, x) == ["aten._to_copy.default", "elementwise"]
    same(fused(x)[0], fused.fn(x)[0])
    fused = fuse(lambda x: (x * 2).sin().to(torch.float8_e4m3fn))
    assert steps(fused.fn, randn(3)) == ["elementwise", "aten._to_copy.default"]
    assert torch.equal(fused(randn(3)).float(), fused.fn(randn(3)).float())


def test_plans_are_reported_as_they_are_made(monkeypatch, capfd):
    monkeypatch.setenv("BURNT_DEBUG", "1")

    def told(x, *rest):
        return x.sin() * 2

    fused = fuse(told)
    fused(randn(3).requires_grad_()).sum().backward()
    fused(randn(3), {1})
    fused(randn(3), {2})
    fused(randn(3).to(torch.complex64))
    text = capfd.readouterr().err
    assert "  told_0, elementwise\n" in text
    assert "void told_0(" in text
    assert len(text.splitlines()) < 150, "the helpers that all kernels share are no part of a plan"
    lines = [line for line in text.splitlines() if line.startswith("burnt: ")]
    assert lines[:2] == ["burnt: told: 1 step", "burnt: told_backward: 1 step"]
    assert lines[2].startswith("burnt: told: the eager function runs: argument 1 is a set")
    assert lines[3].startswith("burnt: told: the eager function runs: a tensor of layout")
    assert len(lines) == 4


def test_a_reference_of_an_op_can_be_explained_for_another_target():
    x, weight = randn(64, 64), randn(64, 64, seed=1)
    found = explain(kernels.linear.reference, x, weight, None, None, "gelu", target="triton")
    assert found.fallback_reason is None
    assert "erf(" in "".join(found.texts.values())


def test_memory_between_steps_is_let_go_of():
    fused = Function(lambda x: ((x.cos() @ x).cos() @ x).cos() @ x)
    plan = fused.plan(torch.randn(16, 16))
    released = [slot for run in plan.prepared_steps for slot in run.release] + [*plan.shared.values()]
    assert len(released) == len(set(released)) == len(plan.slots) - 1  # all but the result
    x = torch.randn(16, 16)
    torch.testing.assert_close(fused(x), fused.fn(x))
    assert not x.isnan().any()


def test_the_old_name_of_fallback_reason_warns():
    fused = fuse(lambda x: x[x > 0])
    with pytest.warns(DeprecationWarning, match="use Function.fallback_reason"):
        assert fused.why_plain(torch.ones(3)) == fused.fallback_reason(torch.ones(3))
    explained = explain(fused, torch.ones(3), timed=False)
    with pytest.warns(DeprecationWarning, match="use Explanation.fallback_reason"):
        assert explained.plain == explained.fallback_reason


def test_what_is_known_is_of_these_arguments():
    fused = Function(lambda x: x * 2)
    fused(torch.ones(3))
    fused(torch.ones(3, dtype=torch.complex64))
    assert fused.fallback_reason(torch.ones(3)) is None
    assert "complex64" in fused.fallback_reason(torch.ones(3, dtype=torch.complex64))


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [1, 7, 8, 15, 16, 17, 33, 511, 70_001])
def test_rows_of_float16(size: int) -> None:
    """Parts of a row are converted on the way in and out; a single op is rounded as in torch."""
    base = torch.randn(3, 2 * size + 1, generator=torch.Generator().manual_seed(size)).half()
    base[0, 0], base[1, 0], base[2, 0] = math.inf, math.nan, 65504
    for x in base[:, 1:], base[:, :size], base[:, ::2], base.t():
        y = x.flip(0)

        def fn(x, y):
            return x + y, x * y, x.float(), x.bfloat16(), (x > y).half(), torch.relu(x)

        for result, expected in zip(fuse(fn)(x, y), fn(x, y), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
        mixed = fuse(lambda x, y: x * y.float())
        torch.testing.assert_close(mixed(x, y), x * y.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_elements_and_rows_that_are_repeated(times: int) -> None:
    for shape in (3, 5), (7, 16), (40, 33):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

        def fn(x):
            wide = x[:, None, :, None].expand(-1, times, -1, times)
            return wide.reshape(x.shape[0] * times, -1) * 2 + 1

        torch.testing.assert_close(fuse(fn)(x), fn(x))
        folded = fuse(lambda x: x.reshape(-1)[1:].repeat(times) + 1)
        torch.testing.assert_close(folded(x), x.reshape(-1)[1:].repeat(times) + 1)


def test_a_fused_function_in_another_is_fused_with_it() -> None:
    scale = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)

    @fuse
    def inner(x):
        return torch.relu(x) * scale

    @fuse(single=True)
    def outer(x):
        return inner(x + 1).sum(-1)

    x = torch.randn(5, 3, requires_grad=True)
    expected = (torch.relu(x + 1) * scale).sum(-1)
    torch.testing.assert_close(outer(x), expected)
    assert steps(outer, x) == ["reduction"]
    for ours, theirs in zip(
        torch.autograd.grad(outer(x).square().sum(), (x, scale)),
        torch.autograd.grad(expected.square().sum(), (x, scale)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    # What the inner one captured is an input, and another tensor in its place is noticed.
    scale = torch.tensor([0.0, 0.0, 1.0])
    torch.testing.assert_close(outer(x), torch.relu(x + 1)[:, 2])
    assert "captures a tuple" in str(fuse(lambda x: (inner, 1)[0](x) + PAIR[0](x)).fallback_reason(x))


PAIR = (fuse(lambda x: x * 2), 0)


def test_what_is_the_same_for_a_row_of_float16_is_computed_once() -> None:
    x = torch.randn(40, 33).half()
    (text,) = explain(fuse(lambda x: torch.log_softmax(x, -1)), x, timed=False).texts.values()
    assert text.count("log_f32(") == 1
    assert text.index("log_f32(") < text.index("f32_of_f16_strip(")


@pytest.mark.parametrize("size", [5, 17, 32])
def test_nothing_is_divided_beyond_the_end_of_float16(size: int) -> None:
    x, y = (torch.arange(1, size + 1).roll(i).half() for i in (1, 2))
    divide = fuse(lambda x, y: (x.int() // y.int()).half())
    assert torch.equal(divide(x, y), (x.int() // y.int()).half())


@pytest.mark.sample(4)
@pytest.mark.parametrize("columns", [2, 3, 4, 5])
@pytest.mark.parametrize("rows", [4, 8, 13, 32])
def test_places_that_are_divided_and_left_out(rows: int, columns: int) -> None:
    x = randn(rows, columns)

    def doubled(x):
        return torch.cat([x, x], 0).reshape(-1).repeat(2).reshape(2, -1)

    assert torch.equal(fuse(doubled)(x), doubled(x))


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
@pytest.mark.parametrize(("start", "end", "step"), [(2.1, -2.9, -1.0), (-1.5, 2.5, 1.0), (1.2, 9.0, 1.9)])
def test_a_range_of_integers_from_floats(start: float, end: float, step: float, dtype: torch.dtype) -> None:
    if dtype == torch.uint8 and min(start, end) < 0:
        pytest.skip("no such range")

    def ranged(x):
        return x.sum().to(dtype) + torch.arange(start, end, step, dtype=dtype)

    x = torch.ones(3)
    assert fuse(ranged).fallback_reason(x) is None
    assert torch.equal(fuse(ranged)(x), ranged(x))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_evenly_spaced_numbers(dtype: torch.dtype) -> None:
    sizes = (0, 1, 7)
    ends = [
        (4.3, 50.9),
        (0.0, 7.0),
        (torch.tensor(4.3), 50),
        (9, torch.tensor(2.5)),
        (*torch.tensor([4, 1.5]),),
    ]

    def spaced(x, *ends):
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return [x[0].to(dtype) + torch.linspace(a, b, n, dtype=dtype) for a, b in pairs for n in sizes]

    args = (torch.zeros(3), *(v for pair in ends for v in pair))
    assert not any("linspace" in step for step in steps(spaced, *args))
    for result, right in zip(fuse(spaced)(*args), spaced(*args), strict=True):
        if dtype.is_floating_point:
            torch.testing.assert_close(result, right)
        else:
            assert torch.equal(result, right)


@pytest.mark.parametrize("way", ["hooks", "checkpoint"])
def test_a_backward_of_its_own_where_saved_tensors_have_hooks(way: str) -> None:
    fused = fuse(lambda x: torch.erf(x) * x)
    x = torch.randn(5, 7, requires_grad=True)
    with contextlib.ExitStack() as stack:
        if way == "hooks":
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.detach))
            result = fused(x)
        else:
            result = torch.utils.checkpoint.checkpoint(fused, x, use_reentrant=False)
        with torch.profiler.profile(acc_events=True) as profile:
            (found,) = torch.autograd.grad(result.sum(), x)
    (expected,) = torch.autograd.grad((torch.erf(x) * x).sum(), x)
    torch.testing.assert_close(found, expected)
    assert "aten::erf" not in {event.key for event in profile.key_averages()}


def test_the_gradient_of_a_maximum_finds_its_element():
    """Backward looks for the maximum among products and sums that it computes again, with another use."""

    @fuse
    def both(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        p = x * y
        return p.sin(), (p + z).amax(0)

    x, y, z = (torch.randn(500, 64, requires_grad=True) for _ in range(3))
    waves, tops = both(x, y, z)
    (found,) = torch.autograd.grad([waves.sum(), tops.sum()], [z])
    assert torch.equal(found.sum(0), torch.ones(64))
    assert torch.equal(found != 0, x * y + z == tops)
