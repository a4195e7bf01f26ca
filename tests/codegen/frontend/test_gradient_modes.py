"""Changes that autograd does not record, `.data` and gradient modes: gradients are those of eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, no_grad
from torch.testing import assert_close

from burnt.codegen import fuse
from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

UNRECORDED = "modifies a tensor that requires a gradient in a way that autograd does not record"
STRIDED = "writes through as_strided"
LATE = "writes what has a gradient to memory of a detached tensor"


def leaf() -> Tensor:
    return torch.linspace(-1.1, 1.3, 20).reshape(5, 4).requires_grad_()


def outcome(fn: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None] | str:
    """The result and the gradient, each element with a weight of its own; or that a saved tensor changed."""
    x = leaf()
    result = fn(x)
    weight = torch.arange(1.0, result.numel() + 1).reshape(result.shape)
    try:
        (grad,) = torch.autograd.grad((result * weight).sum(), x, allow_unused=True)
    except RuntimeError as error:
        return str(error).partition(";")[0]
    return result.detach(), grad


@no_grad()
def clipped(x: Tensor) -> Tensor:
    return x.clamp_(-0.5, 0.5)


def writes(body: str) -> Callable[[Tensor], Tensor]:
    """A function of x that runs statements on ``y = x.exp()`` and ``z``, zeros without a gradient."""
    namespace: dict[str, Any] = {"torch": torch, "no_grad": no_grad, "clipped": clipped, "F": F}
    source = f"def fn(x):\n    y, z = x.exp(), torch.zeros(5, 4)\n    {body}\n"
    exec(source, namespace)
    return namespace["fn"]  # type: ignore[no-any-return]


# What the plan's gradient would be another one's for: the eager function runs.
FALLBACKS = {
    "with no_grad(): y.mul_(2)\n    return y.sin()": UNRECORDED,
    "with no_grad(): y[1:] += 1\n    return y.sin()": UNRECORDED,
    "with no_grad(): y[y > 1] = 0.5\n    return y * x": UNRECORDED,
    "with no_grad(): torch.mul(x, 5, out=y)\n    return y.sin()": UNRECORDED,
    "with no_grad(): y.view(-1)[3:].zero_()\n    return y * x": UNRECORDED,
    "v = y[0]\n    with no_grad(): y.zero_()\n    return v + x": UNRECORDED,
    "torch.set_grad_enabled(False); y.add_(1); torch.set_grad_enabled(True)\n    return y * y": UNRECORDED,
    "w = clipped(y)\n    return w * 2 + y": UNRECORDED,
    "y.detach().mul_(2)\n    return y * x": UNRECORDED,
    "y.detach().view(-1)[2:5].fill_(3)\n    return y * y": UNRECORDED,
    "torch._foreach_mul_([y.detach()], 2.0)\n    return y * y": UNRECORDED,
    "y.detach().chunk(2, 1)[0].zero_()\n    return y * x": UNRECORDED,
    "y.data.clamp_(-0.5, 0.5)\n    return y * y": UNRECORDED,
    "y.data.index_put_((torch.tensor([0]),), torch.ones(4))\n    return y * x": UNRECORDED,
    "y.view(-1).data.view(5, 4).t().mul_(2)\n    return y * y": UNRECORDED,
    "z.copy_(x); z.detach().mul_(3)\n    return z.sin()": UNRECORDED,
    "torch.nn.init.constant_(y, 2.0)\n    return y * x": UNRECORDED,
    "y.as_strided((3,), (2,)).mul_(3)\n    return y": STRIDED,
    "w = x.T.clone(); w.as_strided((3,), (1,)).zero_()\n    return w * 1": STRIDED,
    "z.detach().copy_(y)\n    return z * x": LATE,
    "w = z.data; w.copy_(y)\n    return z * x": LATE,
    "w = z.detach(); z[0] = y[0]\n    return z * 2 + w": LATE,
    "t = torch.tensor([0.0, 0.0]); t[0] = y[0, 0]\n    return t.sum() * x": LATE,
    "with torch.inference_mode(): w = y * 2\n    return y + x": "enters inference mode",
}
# What plans compute, with the gradient of eager torch.
PLANNED = [
    "return y * y.data / y.data.sum() + torch.where(x.data > 0, x, x.data.view(-1)[0])",
    "with no_grad(): z.copy_(y)\n    return z * x",
    "with no_grad(): z[1:3] = x[1:3]; z[x > 1] = 2.0; z += y; z.add_(other=x)\n    return z * x",
    "with no_grad(): torch.mul(x, 3, out=z)\n    return z * x",
    "with no_grad(): w = z.fill_(1.0)\n    w[0] = y[0]\n    return w * 2 + z",
    "with no_grad(): w = F.relu(z, inplace=True); w.copy_(x)\n    z.mul_(x)\n    return w + z",
    "y = x * 3\n    with no_grad(), torch.enable_grad(): y.mul_(x)\n    return y * x.detach()",
    "y = x * 3; w = y.detach(); y.sub_(w.mean()); return y * x.detach() + w",
    "with no_grad(): w = y * 2; w.mul_(2)\n    return w * x",
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("body", FALLBACKS)
def test_a_change_that_autograd_does_not_record_is_left_to_torch(body: str) -> None:
    fused = Function(writes(body), always_generate=True)
    expected, found = outcome(writes(body)), outcome(fused)
    if isinstance(expected, str):
        assert found == expected
    else:
        assert_close(found, expected)
    assert FALLBACKS[body] in str(fused.fallback_reason(leaf()))


@pytest.mark.sample(5)
@pytest.mark.parametrize("body", PLANNED)
def test_gradient_modes_and_data_within_a_plan(body: str) -> None:
    fused = Function(writes(body), always_generate=True)
    assert_close(outcome(fused), outcome(writes(body)))
    assert fused.fallback_reason(leaf()) is None


def test_without_gradients_such_changes_are_in_a_plan() -> None:
    fused, x = fuse(writes("y.data.mul_(2)\n    return y.sin() * 2 + x")), leaf()
    with no_grad():
        assert_close(fused(x), (x.exp() * 2).sin() * 2 + x)
        assert fused.fallback_reason(x) is None
    with torch.inference_mode():
        assert_close(fused(x), (x.exp() * 2).sin() * 2 + x)
        assert fused.fallback_reason(x) is None
