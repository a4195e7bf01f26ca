"""Where a trace has other tensors than the eager function: strides, views and copies, operators in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from burnt.codegen import fuse
from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def filled(x: Tensor) -> Tensor:
    """A transposed tensor, changed in place; functionalized, it is contiguous."""
    y = x.t().clone()
    return y.masked_fill_(y > 0, 1.0)


def gapped() -> Tensor:
    return torch.empty_strided((4, 5), (10, 1)).fill_(1.0)


def modify_copy(x: Tensor) -> tuple[Tensor, Tensor]:
    y = filled(x)
    copy = y.reshape(-1)
    return y * 2, copy.mul_(2)


def modify_copy_of_base(x: Tensor) -> tuple[Tensor, Tensor]:
    y = gapped()
    y[1].add_(1)
    return y * x.t(), y.reshape(-1).zero_()


def modify_contiguous(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t().clone()
    return y.cumsum_(0) * 2, y.contiguous().add_(1)


def replace_memory(x: Tensor) -> Tensor:
    y = x * 2
    y.set_(x.detach().t())
    return y + 1


def resize_intermediate(x: Tensor) -> Tensor:
    y = x * 2
    return y.resize_as_(torch.ones(2, 2)) * 2


COPY = "returns a copy here and a view in a plan"
STRIDES = "reads the strides of a tensor that has others in a plan"
LAYOUTS: dict[str, tuple[Callable[[Tensor], Any], str | None]] = {
    "a stride": (lambda x: x * filled(x).stride(0), STRIDES),
    "whether it is contiguous": (lambda x: x * 2 if filled(x).is_contiguous() else x * 3, STRIDES),
    "the order of axes": (lambda x: x * filled(x).dim_order()[0] + x, STRIDES),
    "strides of a scatter": (
        lambda x: x * x.t().clone().scatter_(0, torch.zeros(1, 5).long(), 1.0).stride()[1], STRIDES
    ),
    "strides of like": (lambda x: torch.empty_like(filled(x)).stride(0) * x, STRIDES),
    "an address": (lambda x: x * (x.data_ptr() == x.clone().data_ptr()), "reads a tensor's data_ptr"),
    "storage": (lambda x: x * filled(x).untyped_storage().nbytes(), "reads a tensor's untyped_storage"),
    "a copy that is modified": (modify_copy, COPY),
    "a copy of a base": (modify_copy_of_base, COPY),
    "what is not contiguous": (modify_contiguous, COPY),
    "set_": (replace_memory, "other memory"),
    "resize_": (resize_intermediate, "other memory"),
    "transposed in place": (lambda x: (y := x * 1).t_() * y.stride(0), None),
    "with another axis": (lambda x: (x * 2).unsqueeze_(1).squeeze_(1).transpose_(0, 1).exp(), None),
    "strides that are the same": (lambda x: x * x.t().clone().add_(1).stride(0) + x, None),
    "a result": (lambda x: filled(x) * 2 + filled(x).sin(), None),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_after_a_change_in_place(name: str) -> None:
    fn, reason = LAYOUTS[name]
    fused, x = Function(fn, always_generate=True), torch.linspace(-1, 1, 20).reshape(5, 4)
    expected, found = (pytree.tree_leaves(f(x.clone())) for f in (fn, fused))
    assert_close(found, expected)
    assert [r.stride() for r in found] == [r.stride() for r in expected]
    why = fused.fallback_reason(x)
    assert why is None if reason is None else reason in str(why)


def combine_masks(x: Tensor, mask: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    positive = x > 0
    positive &= other
    positive |= mask
    positive[0] ^= True
    mask &= other
    return x * positive, mask


def shift_bits(x: Tensor) -> Tensor:
    bits = x.to(torch.int32)
    bits <<= 3
    bits >>= 1
    bits |= 1
    return bits * 2


def test_bitwise_operators_in_place() -> None:
    x = torch.linspace(-9, 9, 12).reshape(3, 4)
    masks = [torch.arange(12).reshape(3, 4) % n == 0 for n in (2, 3)]
    fused, results = fuse(combine_masks), []
    for fn in (combine_masks, fused):
        mask = masks[0].clone()
        result, returned = fn(x, mask, masks[1])
        assert returned is mask
        results.append((result, mask))
    assert_close(results[1], results[0], rtol=0, atol=0)
    assert fused.fallback_reason(x, *masks) is None
    fused = fuse(shift_bits)
    assert fused(x).equal(shift_bits(x))
    assert fused.fallback_reason(x) is None


def test_an_operator_in_place_that_torch_refuses() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        y &= x > 0
        return y

    fused = fuse(fn)
    with pytest.raises(NotImplementedError, match="bitwise_and"):
        fused(torch.ones(3))
    assert "torch refuses a call in it" in str(fused.fallback_reason(torch.ones(3)))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True).relu() + 1


def test_attention_without_dropout_is_not_random() -> None:
    source = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 2, 16, 8, generator=source, requires_grad=True) for _ in range(3)]
    weight = torch.randn(2, 2, 16, 8, generator=source)
    fused = fuse(attention)
    before = torch.get_rng_state()
    expected, found = (torch.autograd.grad((f(*tensors) * weight).sum(), tensors) for f in (attention, fused))
    assert torch.get_rng_state().equal(before)
    assert_close(found, expected)
    assert fused.fallback_reason(*tensors) is None


@pytest.mark.full
def test_attention_has_the_gradient_of_its_mask() -> None:
    def fn(q: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask * 1.5) * 2

    q, mask = torch.randn(2, 4, 16, 8, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    fused = fuse(fn)
    expected, found = (torch.autograd.grad(f(q, mask).sin().sum(), (q, mask)) for f in (fn, fused))
    torch.testing.assert_close(found, expected)
    assert "a mask that needs a gradient" in str(fused.fallback_reason(q, mask))
    assert fused.fallback_reason(q, mask.detach()) is None


def test_attention_with_dropout_has_the_gradient_of_its_mask() -> None:
    fused = fuse(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.4) * 2)
    q, k, v = (torch.randn(2, 2, 16, 8, requires_grad=True) for _ in range(3))
    weight = torch.randn(2, 2, 16, 8)
    loss = (fused(q, k, v) * weight).sum()
    (grad,) = torch.autograd.grad(loss, v)
    assert_close((grad * v).sum(), loss, rtol=1e-4, atol=1e-3)  # it is linear in v
