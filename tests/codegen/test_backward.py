"""The autograd node of a fused function: what it saves, and what may change before the backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from burnt.codegen import fuse
from burnt.codegen.runtime.c_compiler import find_compiler

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
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "reciprocal": torch.reciprocal,
    "tan": torch.tan,
}


def leaf() -> Tensor:
    return torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()


def added(fn: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    x = weight * 1
    return x.add_(fn(x)).square().sum()


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", LINEAR | OF_THE_RESULT)
def test_an_argument_that_the_backward_does_not_read_may_change(name: str) -> None:
    fn = (LINEAR | OF_THE_RESULT)[name]
    fused = fuse(fn)
    grads = [torch.autograd.grad(added(f, weight := leaf()), weight)[0] for f in (fn, fused, fused)]
    assert fused.fallback_reason(leaf()) is None
    assert_close(grads[1], grads[0])
    assert_close(grads[2], grads[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LINEAR)
def test_an_argument_that_no_derivative_reads_is_not_kept(name: str) -> None:
    x = leaf() * 1
    memory = weakref.ref(x.untyped_storage())
    result = fuse(LINEAR[name])(x)
    del x
    gc.collect()
    assert memory() is None
    assert result.requires_grad


def test_the_argument_of_a_dropout_is_not_kept() -> None:
    weight = leaf()
    result = fuse(lambda x: F.dropout(x, 0.5) * WEIGHT)(x := weight * 1)
    memory = weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    assert memory() is None
    kept = torch.where(result == 0, 0.0, 2.0)
    (first,) = torch.autograd.grad(result.sum(), weight, retain_graph=True)
    assert_close(first, kept * WEIGHT)
    (first,) = torch.autograd.grad(result.square().sum(), weight, create_graph=True)
    assert_close(first, 2 * result * kept * WEIGHT)
    (second,) = torch.autograd.grad(first.sum(), weight)
    assert_close(second, 2 * (kept * WEIGHT).square())


@pytest.mark.sample(3)
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
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .*\[3, 4\].* is at version 1"):
        torch.autograd.grad(result.sum(), weight, retain_graph=True, create_graph=True)
    (found,) = torch.autograd.grad(result.sum(), weight)
    assert_close(found, expected)


def test_second_derivatives_are_refused_without_a_first_backward() -> None:
    result = fuse(OF_THE_RESULT["tanh"])(x := (weight := leaf()) * 1)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result.sum(), weight, create_graph=True)


def test_a_changed_result_is_refused_beside_a_changed_argument() -> None:
    weight = leaf()
    result = fuse(OF_THE_RESULT["tanh"])(x := weight * 1)
    total = result.sum()
    x.add_(1)
    result.add_(1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(total, weight, retain_graph=True)


def test_other_errors_of_a_backward_are_torchs() -> None:
    result = fuse(OF_THE_RESULT["tanh"])(x := leaf() * 1).sum()
    result.backward(retain_graph=True)
    x.add_(1)
    result.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


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


def two_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x) * x, x.exp().sum(-1)


BATCHED: dict[str, Callable[[Tensor], Any]] = {
    "a square": lambda x: x * x,
    "not saved": LINEAR["of a weight"],
    "a product": lambda x: (x @ x.mT).softmax(-1),
    "two results": two_of,
    "no plan": lambda x: x.repeat(11, 1).cumprod(0),
}


def grads_of(fn: Callable[[Tensor], Any], grad: Callable[..., Any]) -> list[Tensor]:
    x = leaf()
    results = pytree.tree_leaves(fn(x))
    source = torch.Generator().manual_seed(0)
    batches = [torch.randn(3, *r.shape, generator=source).requires_grad_() for r in results]
    return pytree.tree_leaves(grad(results, x, batches))


GRADS: dict[str, Callable[..., Any]] = {
    "batched": lambda y, x, batches: torch.autograd.grad(y, x, batches, is_grads_batched=True),
    "batched, to differentiate": lambda y, x, batches: torch.autograd.grad(
        torch.autograd.grad(y, x, batches, is_grads_batched=True, create_graph=True)[0].sin().sum(),
        [x, *batches], materialize_grads=True,
    ),
    "under vmap": lambda y, x, batches: torch.vmap(
        lambda *g: torch.autograd.grad(y, x, g, retain_graph=True)
    )(*batches),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", GRADS)
@pytest.mark.parametrize("name", BATCHED)
def test_batched_gradients(name: str, kind: str) -> None:
    fused = fuse(BATCHED[name])
    expected, found = (grads_of(f, GRADS[kind]) for f in (BATCHED[name], fused))
    assert_close(found, expected)
    assert fused.fallback_reason(leaf()) is None


def test_batched_gradients_of_dropout_take_the_mask_of_the_forward() -> None:
    x = leaf()
    result = fuse(lambda x: F.dropout(x, 0.5) * x)(x)
    batch = torch.randn(3, 3, 4)
    expected = [torch.autograd.grad(result, x, g, retain_graph=True)[0] for g in batch]
    for kind in ("under vmap", "batched"):
        (found,) = GRADS[kind]([result], x, [batch])
        assert_close(found, torch.stack(expected))


def test_a_hessian_of_vectorized_jacobians() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.tanh(x * x).sum()

    x = leaf().detach()
    expected, found = (torch.autograd.functional.hessian(f, x, vectorize=True) for f in (fn, fuse(fn)))
    assert_close(found, expected)


@pytest.mark.parametrize("name", ["a square", "not saved"])
def test_gradients_carry_forward_derivatives(name: str) -> None:
    def duals(y: Any, x: Tensor, batches: list[Tensor]) -> list[Tensor]:
        with forward_ad.dual_level():
            grad_outs = [forward_ad.make_dual(b[0], b[1]) for b in batches]
            return list(forward_ad.unpack_dual(*torch.autograd.grad(y, x, grad_outs)))

    expected, found = (grads_of(f, duals) for f in (BATCHED[name], fuse(BATCHED[name])))
    assert len(expected) == 2
    assert_close(found, expected)


def test_a_hook_is_called_once_for_a_gradient_that_can_be_differentiated() -> None:
    x = leaf()
    calls: list[Tensor] = []
    x.register_hook(lambda grad: calls.append(grad) or grad * 3)
    (found,) = torch.autograd.grad(fuse(torch.square)(x).sum(), x, create_graph=True)
    assert len(calls) == 1
    assert_close(found, 6 * x)


@pytest.mark.parametrize("name", ["affine", "tanh"])
def test_what_is_not_saved_is_recomputed_by_checkpointing(name: str) -> None:
    fn = (LINEAR | OF_THE_RESULT)[name]
    grads = []
    for f in (fn, fuse(fn)):
        weight = leaf()
        checkpoint(lambda x, f=f: f(x * 2), weight, use_reentrant=False).square().sum().backward()
        grads.append(weight.grad)
    assert_close(grads[1], grads[0])
