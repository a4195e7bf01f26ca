"""The autograd node of a fused function: what it saves, and what may change before the backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from burnt.codegen import fuse
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputRuntimeError

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

WEIGHT = torch.linspace(-1, 1, 12).reshape(3, 4)

# No derivative reads the argument: it is not saved.
LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "affine": lambda x: x * 2 + 1,
    "of a weight": lambda x: x * WEIGHT,
    "a matmul": lambda x: (x * 2) @ WEIGHT.t() @ WEIGHT,
    "less its mean": lambda x: x - x.mean(-1, keepdim=True),
    "moved": lambda x: x.flip(0).roll(1, 1) * 3,
    "a cast": lambda x: (x.double() * 2).float(),
}
# The backward reads the result; second derivatives read the argument.
OF_THE_RESULT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": lambda x: torch.tanh(x),
    "softmax": lambda x: torch.softmax(x, -1),
}


def leaf() -> Tensor:
    return torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()


def added(fn: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    x = weight * 1
    return x.add_(fn(x)).square().sum()


@pytest.mark.parametrize("name", LINEAR | OF_THE_RESULT)
def test_an_argument_that_the_backward_does_not_read_may_change(name: str) -> None:
    fn = (LINEAR | OF_THE_RESULT)[name]
    fused = fuse(fn)
    grads = [torch.autograd.grad(added(f, weight := leaf()), weight)[0] for f in (fn, fused, fused)]
    assert fused.fallback_reason(leaf()) is None
    assert_close(grads[1], grads[0])
    assert_close(grads[2], grads[0])


@pytest.mark.parametrize("name", LINEAR)
def test_an_argument_that_no_derivative_reads_is_not_kept(name: str) -> None:
    x = leaf() * 1
    memory = weakref.ref(x.untyped_storage())
    result = fuse(LINEAR[name])(x)
    del x
    gc.collect()
    assert memory() is None
    assert result.requires_grad


@pytest.mark.parametrize("name", LINEAR)
def test_second_derivatives_of_what_is_not_saved(name: str) -> None:
    found = []
    for f in (LINEAR[name], fuse(LINEAR[name])):
        weight = leaf()
        (first,) = torch.autograd.grad(added(f, weight), weight, create_graph=True)
        found.append((first, torch.autograd.grad(first.square().sum(), weight)[0]))
    assert_close(found[1], found[0])


def test_second_derivatives_of_an_argument_that_changed_are_refused() -> None:
    weight = leaf()
    (expected,) = torch.autograd.grad(torch.tanh(weight).sum(), weight)
    result = fuse(OF_THE_RESULT["tanh"])(x := weight * 1)
    x.add_(1)
    (found,) = torch.autograd.grad(result.sum(), weight, retain_graph=True)
    assert_close(found, expected)
    with pytest.raises(InputRuntimeError, match="modified by an inplace operation") as caught:
        torch.autograd.grad(result.sum(), weight, create_graph=True)
    assert "tensor 0 of shape [3, 4] at version 0" in str(caught.value)


def test_an_argument_that_the_backward_reads_must_not_change() -> None:
    for fn in (lambda x: x * x, lambda x: torch.tanh(x) * x):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            added(fuse(fn), leaf()).backward()


def test_a_gradient_of_one_argument_that_a_product_needs_is_still_checked() -> None:
    fused = fuse(lambda x, y: torch.tanh(x) * y)
    x, y = leaf(), leaf()
    changed = x * 1
    result = fused(changed, y)
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result.sum(), y)


@pytest.mark.parametrize("name", ["affine", "tanh"])
def test_what_is_not_saved_is_recomputed_by_checkpointing(name: str) -> None:
    fn = (LINEAR | OF_THE_RESULT)[name]
    grads = []
    for f in (fn, fuse(fn)):
        weight = leaf()
        checkpoint(lambda x, f=f: f(x * 2), weight, use_reentrant=False).square().sum().backward()
        grads.append(weight.grad)
    assert_close(grads[1], grads[0])
