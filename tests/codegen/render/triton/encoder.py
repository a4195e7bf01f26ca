"""A transformer's encoder through `burnt.compile`, on whatever tensors on the CPU are sent to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import burnt
from burnt.codegen.runtime import targets
from burnt.codegen.runtime.target import Target


def encoder(dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def gradients(model: nn.Module, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    """The result, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    y = call(x)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), [x, *model.parameters()])]


def train_step(
    target: Target | None = None, dtype: torch.dtype = torch.float32, dropout: float = 0.0
) -> tuple[list[Tensor], ...]:
    """A step's result and gradients: compiled for this target, of eager torch, and in float64."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = encoder(dropout).to(dtype), torch.randn(2, 9, 32, dtype=dtype)
    exact = copy.deepcopy(model).double()
    before = targets.BY_DEVICE["cpu"]
    if target is not None:
        targets.BY_DEVICE["cpu"] = target
    try:
        found = gradients(model, burnt.compile(model, fullgraph=True), x)
    finally:
        targets.BY_DEVICE["cpu"] = before
    return found, gradients(model, model, x), gradients(exact, exact, x.double())
