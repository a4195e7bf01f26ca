"""Quantized ops printed as Metal and run as C++: elementwise ops, and a linear layer as one reduction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen import explain
from burnt.codegen.function import Function
from burnt.kernels.ops.quantized.quantize import quantized_example
from burnt.kernels.ops.quantized.weight_only_gpu import linear_as_sum
from burnt.scheme import VALUES
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")
CPU = torch.device("cpu")


def one_kernel(fn: Any, *args: Any) -> Any:
    fused = Function(fn, target=METAL_SHIM)
    assert fused.fallback_reason(*args) is None
    assert len(explain(fused, *args).steps) == 1
    return fused(*args)


@pytest.mark.sample(1)
@pytest.mark.parametrize("value", VALUES)
def test_elementwise_ops(value: str) -> None:
    torch.manual_seed(0)
    bits = VALUES[value].bits
    block, zero = (8, True) if value in ("int4", "int2") else (0, False)
    values, scale, zero_point = quantized_example(CPU, 6, 24, value, block, zero)
    bias = torch.randn(24)

    def dequantized(values: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return kernels.dequantize.reference(values, scale, zero_point, value, block) + bias

    ours = one_kernel(dequantized, values, scale, bias)
    assert torch.equal(ours, dequantized(values, scale, bias))
    x = torch.randn(6, 24)
    x[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    quantize = kernels.quantize.reference
    ours = one_kernel(quantize, x, scale * 30, zero_point, value, block, False)
    assert torch.equal(ours, quantize(x, scale * 30, zero_point, value, block, False))
    indices, options = torch.tensor([[5, 0], [2, 2]]), (value, block, None, torch.float32)
    embedding = kernels.quantized_embedding.reference
    ours = one_kernel(embedding, indices, values, scale, zero_point, *options)
    assert torch.equal(ours, embedding(indices, values, scale, zero_point, *options))
    if bits == 8:
        rows = kernels.quantize_rows.reference
        for a, b in zip(one_kernel(rows, x[1:], value), rows(x[1:], value), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("special", [None, torch.nan, torch.inf])
def test_a_whole_tensor(special: float | None) -> None:
    x = torch.randn(6, 24)
    if special is not None:
        x[2, 3] = special
    whole = kernels.quantize_tensor.reference
    fused = Function(whole, target=METAL_SHIM)
    assert fused.fallback_reason(x) is None
    for ours, theirs in zip(fused(x), whole(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("rows", "value", "block", "activation", "dtype"),
    [
        (1, "int4", 32, "silu", torch.float16),
        (1, "int8", 0, None, torch.float32),
        (2, "float8_e4m3", 0, "relu", torch.bfloat16),
        (1, "float4_e2m1", 16, "gelu", torch.float32),
    ],
    ids=str,
)
def test_a_linear_layer_is_one_reduction(
    rows: int, value: str, block: int, activation: str | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    parts = quantized_example(CPU, 13, 96, value, block)
    x, bias = torch.randn(rows, 96).to(dtype), torch.randn(13).to(dtype)
    ours = one_kernel(linear_as_sum, x, *parts, bias, activation, value, block)
    reference = kernels.quantized_linear.reference
    theirs = reference(x, *parts, bias, activation, value, block)
    exact = reference(
        x.double(), parts[0], parts[1].double(), parts[2], bias.double(), activation, value, block
    )
    limit = 4 * (theirs.double() - exact).abs().max() + 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert ours.dtype == dtype
    assert (ours.double() - exact).abs().max() <= limit


def test_the_sum_is_selected_for_one_row_on_mps() -> None:
    candidate = kernels.quantized_linear.candidates["sum"]
    assert candidate.devices == ("mps",)
    parts = (*quantized_example(CPU, 3, 8, "int8"), None, None, "int8", 0)
    assert candidate.is_best((torch.ones(1, 8), *parts))
    assert not candidate.is_best((torch.ones(2, 8), *parts))
    assert candidate.when is not None
    assert "5 rows" in str(candidate.when(torch.ones(5, 8), *parts))
    assert candidate.when(torch.ones(0, 8), *parts) == "an empty tensor"
