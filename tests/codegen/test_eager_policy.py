"""Functions that one call of torch's own serves: which, when, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain, fuse
from burnt.codegen.function import Function
from burnt.kernels.dispatch.generated import Generated
from burnt.kernels.ops.reduction import reduce_sum

SOURCE = torch.Generator().manual_seed(0)
# Positive: a sum near zero would have a large relative error however it is computed.
ROWS = torch.rand(2048, 64, generator=SOURCE)
LONG = torch.rand(8, 1 << 14, generator=SOURCE)
CLASSES = torch.randint(0, 64, (2048,), generator=SOURCE)

SERVED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "log_softmax": (lambda x: F.log_softmax(x, -1), (ROWS,)),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), (ROWS, CLASSES)),
    "softmax": (lambda x: F.softmax(x, 1), (ROWS,)),
    "softmax_16": (lambda x: F.softmax(x, -1), (LONG.bfloat16(),)),
    "layer_norm": (lambda x: F.layer_norm(x, (64,)), (ROWS.half(),)),
    "long_sum_16": (lambda x: x.sum(-1), (LONG.half(),)),
    "sum": (lambda x: x.sum(-1), (ROWS,)),
    "sum_16": (lambda x: x.sum(1), (ROWS.bfloat16(),)),
    "mean": (lambda x: x.mean(-1, keepdim=True), (ROWS,)),
    "cummax": (lambda x: torch.cummax(x, 1), (ROWS,)),
    "cummin": (lambda x: torch.cummin(x, -1)[0], (ROWS.bfloat16(),)),
    "gelu": (lambda x: F.gelu(x), (ROWS.bfloat16(),)),
}

OURS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "few elements": (lambda x: x.sum(-1), (ROWS[:100],)),
    "not contiguous": (lambda x: x.sum(-1), (torch.randn(2048, 65)[:, 1:],)),
    "another axis": (lambda x: x.sum(0), (ROWS,)),
    "all axes": (lambda x: x.sum(), (ROWS,)),
    "long rows": (lambda x: x.mean(-1), (LONG,)),
    "long rows of logits": (lambda x: F.log_softmax(x, -1), (LONG,)),
    "softmax of long rows": (lambda x: F.softmax(x, -1), (LONG,)),
    "softmax of columns": (lambda x: F.softmax(x, 0), (ROWS,)),
    "layer norm of two axes": (lambda x: F.layer_norm(x, x.shape), (ROWS.half(),)),
    "layer norm in float32": (lambda x: F.layer_norm(x, (64,)), (ROWS,)),
    "two passes of torch's": (lambda x: x.mean(-1), (ROWS.bfloat16(),)),
    "other columns": (lambda x: torch.cummax(x, 0), (ROWS,)),
    "float16's running maximum": (lambda x: torch.cummax(x, -1), (ROWS.half(),)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), (ROWS.bfloat16(),)),
    "gelu in float32": (lambda x: F.gelu(x), (ROWS,)),
    "something else next to it": (lambda x: x.sum(-1) * 2, (ROWS,)),
    "something else before it": (lambda x: (x + 1).sum(-1), (ROWS,)),
    "the same twice": (lambda x: (x.sum(-1), x.sum(-1)), (ROWS,)),
}


def leaves(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


@pytest.mark.parametrize("name", SERVED)
def test_is_served(name: str) -> None:
    fn, given = SERVED[name]
    fused = fuse(fn)
    for found, expected in zip(leaves(fused(*given)), leaves(fn(*given)), strict=True):
        assert torch.equal(found, expected)
    (step,) = explain(fused, *given).steps
    assert step.kind == "library"
    assert step.why.startswith("torch's call is used: ")
    assert step.why.endswith(str(fused.fallback_reason(*given)))
    assert step.why in str(explain(fused, *given))
    assert step.bytes >= given[0].numel() * given[0].dtype.itemsize
    assert explain(fused, *given, target="c").texts, "what ours would be can be shown"


@pytest.mark.parametrize("name", [*SERVED, *OURS])
def test_is_ours(name: str) -> None:
    fn, given = (SERVED | OURS)[name]
    function = Function(fn, always_generate=name in SERVED)
    assert function.fallback_reason(*given) is None
    assert all(step.kind != "library" for step in explain(function, *given, timed=False).steps)
    for found, expected in zip(leaves(function(*given)), leaves(fn(*given)), strict=True):
        torch.testing.assert_close(found, expected)


def test_one_kernel_is_ours() -> None:
    function = fuse(lambda x: x.sum(-1), single=True)
    assert function.fallback_reason(ROWS) is None
    assert [step.kind for step in explain(function, ROWS, timed=False).steps] == ["reduction"]


def test_gradients_are_ours() -> None:
    function = fuse(lambda x: F.log_softmax(x, -1))
    x = ROWS.clone().requires_grad_()
    assert function.fallback_reason(x) is None
    (found,) = torch.autograd.grad(function(x).square().sum(), x)
    (expected,) = torch.autograd.grad(F.log_softmax(x, -1).square().sum(), x)
    # Sums of squares of some tens, of which the gradient is a difference.
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        assert function.fallback_reason(x) is not None


def test_captured_tensors() -> None:
    weight = torch.randn(2048, 64)
    function = fuse(lambda: weight.sum(-1))
    assert torch.equal(function(), weight.sum(-1))
    assert explain(function).steps[0].kind == "library"
    weight.requires_grad_()
    assert function().requires_grad


def test_an_op_keeps_a_kernel_of_its_own() -> None:
    generated = reduce_sum.candidates["generated"]
    assert isinstance(generated, Generated)
    function, _ = generated.function_for((ROWS, -1, False, None))
    assert function.fallback_reason(ROWS) is None
