"""Quantize and dequantize are expressions: they are computed in the kernel of what is around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import burnt
from burnt import kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.ops.quantized.quantize import quantized_example
from burnt.scheme import VALUES

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")


@pytest.mark.sample(1)
@pytest.mark.parametrize("value", VALUES)
def test_one_kernel_with_a_prologue_and_an_epilogue(value: str) -> None:
    block = 16 if VALUES[value].bits < 8 else 0
    values, scale, _ = quantized_example(torch.device("cpu"), 12, 64, value, block)

    def normalized(values: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """Its rows are read by a softmax, and quantized again."""
        weight = torch.softmax(kernels.dequantize(values, scale, None, value, block) + bias, -1)
        return kernels.quantize(weight, scale, None, value, block)

    bias = torch.randn(64)
    fused = burnt.fuse(normalized, single=True)  # which raises where it is more than one kernel
    result = fused(values, scale, bias)
    assert len(burnt.explain(fused, values, scale, bias).steps) == 1
    different = result != normalized(values, scale, bias)
    assert different.float().mean() < 0.01  # exponentials that differ in the last place, next to a tie


def test_dequantize_and_a_bias() -> None:
    values, scale, zero_point = quantized_example(torch.device("cpu"), 256, 256, "int4", 32, True)
    bias = torch.randn(256)

    def biased(values: Tensor, scale: Tensor, zero_point: Tensor, bias: Tensor) -> Tensor:
        return kernels.dequantize(values, scale, zero_point, "int4", 32) + bias

    fused = burnt.fuse(biased)
    assert torch.equal(fused(values, scale, zero_point, bias), biased(values, scale, zero_point, bias))
    (step,) = burnt.explain(fused, values, scale, zero_point, bias).steps
    assert step.kind == "elementwise"
