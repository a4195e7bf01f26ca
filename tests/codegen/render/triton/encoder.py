"""A training step of a transformer's encoder by `burnt.compile`, on the CPU with another target's kernels."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import burnt
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.runtime import targets
from burnt.codegen.runtime.target import BuiltKernels, Target
from burnt.codegen.runtime.triton_backend import TRITON


def encoder(dropout: float, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, 2, 2 * width, dropout, "gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def gradients(model: nn.Module, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    """The result, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    y = call(x)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), [x, *model.parameters()])]


@contextlib.contextmanager
def sent_to(target: Target) -> Iterator[None]:
    """Let tensors on the CPU have kernels of this target."""
    before = targets.BY_DEVICE["cpu"]
    targets.BY_DEVICE["cpu"] = target
    try:
        yield
    finally:
        targets.BY_DEVICE["cpu"] = before


def step(
    dtype: torch.dtype = torch.float32, dropout: float = 0.0, width: int = 32
) -> tuple[nn.Module, Tensor, list[Tensor]]:
    """Take a step; return the model, its input, and the result and gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = encoder(dropout, width).to(dtype), torch.randn(2, 9, width, dtype=dtype)
    return model, x, gradients(model, burnt.compile(model, fullgraph=True), x)


def expected(model: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The same by eager torch, and in float64."""
    exact = copy.deepcopy(model).double()
    return gradients(model, model, x), gradients(exact, exact, x.double())


def kernels_of_step(dtype: torch.dtype, dropout: float = 0.1, width: int = 256) -> list[Kernel]:
    """The kernels of forward and backward as scheduled for Triton; nothing is run."""
    found: list[Kernel] = []

    def build(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> BuiltKernels:
        found.extend(kernels)
        return BuiltKernels(dict.fromkeys(kernels, ""), dict.fromkeys(kernels, lambda *_: None))

    with sent_to(dataclasses.replace(TRITON, build=build, why_unavailable=lambda: None)):
        step(dtype, dropout, width)
    return found
