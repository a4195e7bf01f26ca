"""Losses of rows of logits and their gradients in Triton, compared with torch's in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.kernels.ops.loss.cross_entropy_rows import losses_and_gradient, row_losses

IGNORED = 2
# ignored, smoothed, smoothing, squared, z
SETTINGS = {
    "plain": (IGNORED, False, 0.0, False, 0.0),
    "smoothed": (IGNORED, True, 0.1, False, 0.0),
    "squared": (IGNORED, False, 0.0, True, 0.01),
    "all of it": (-100, True, 0.2, True, 0.1),
}


def by_definition(logits: Tensor, target: Tensor, settings: tuple[Any, ...]) -> Tensor:
    ignored, _, smoothing, _, z = settings
    losses = F.cross_entropy(
        logits, target, ignore_index=ignored, reduction="none", label_smoothing=smoothing
    )
    return losses + torch.where(target != ignored, z * torch.logsumexp(logits, 1).square(), 0.0)


def near(made: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    error = float((made.double() - exact).abs().max())
    assert error <= 8 * torch.finfo(dtype).eps * max(float(exact.abs().max()), 1.0)


@pytest.mark.sample(2, full=12)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(d, marks=pytest.mark.full) for d in (torch.bfloat16, torch.float16))],
    ids=str,
)
@pytest.mark.parametrize("classes", [1, 53, pytest.param(1029, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", SETTINGS)
def test_losses_and_their_gradient(name: str, classes: int, dtype: torch.dtype) -> None:
    settings = SETTINGS[name]
    source = torch.Generator().manual_seed(classes)
    logits = (torch.randn(9, classes, generator=source) * 3).to(dtype)
    target = torch.randint(classes, (9,), generator=source)
    target[::4] = settings[0]
    scale = torch.rand(9, generator=source)
    exact = logits.double().requires_grad_()
    right = by_definition(exact, target, settings)
    (slope,) = torch.autograd.grad(right, exact, scale.double())

    alone = Function(row_losses.fn, target=TRITON)
    near(alone(logits, target, *settings), right.detach(), torch.float32)
    assert alone.fallback_reason(logits, target, *settings) is None
    both = Function(losses_and_gradient.fn, target=TRITON)
    losses, gradient = both(logits, target, scale, *settings)
    assert both.fallback_reason(logits, target, scale, *settings) is None
    assert gradient.dtype == dtype
    near(losses, right.detach(), torch.float32)
    near(gradient, slope, dtype)
    assert not gradient[target == settings[0]].any()
